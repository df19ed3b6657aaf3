"""The dashboard in a real browser, with the real product."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import BrowserUser, browser_user, running_chromium
from tests.support.openid_providers import real_provider
from tests.support.product import SERVE_HOME, SEVERAL_USERS, Product, product

pytestmark = pytest.mark.browser

SEEN_WITHIN_MS = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_chromium() as running:
        yield running


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with (
        real_provider({"sub": "1906", "preferred_username": "grace"}) as issuer,
        product(
            tmp_path_factory.mktemp("product"),
            TORPOR_MAX_RUNNING_PER_USER="3",
            TORPOR_RECONCILER_RETRY_BACKOFF="1",
            TORPOR_OIDC_ISSUER=issuer,
            TORPOR_OIDC_CLIENT_ID="torpor",
            TORPOR_OIDC_CLIENT_SECRET="secret",
            TORPOR_OIDC_NAME="the office",
            **SEVERAL_USERS,
        ) as running,
    ):
        yield running


@pytest.fixture
def visit(browser: Browser, here: Product) -> Iterator[Callable[..., BrowserUser]]:
    """A browser that is not signed in."""
    with ExitStack() as stack:
        yield lambda **context: stack.enter_context(browser_user(browser, f"http://localhost:{here.port}", **context))


@pytest.fixture
def admin(visit: Callable[..., BrowserUser], here: Product) -> BrowserUser:
    sitting = visit()
    sitting.enter(*credentials(here))
    return sitting


def credentials(here: Product) -> tuple[str, str]:
    written = json.loads((here.data / "credentials.json").read_text())
    return written["username"], written["password"]


@pytest.fixture
def made(here: Product) -> Iterator[Callable[..., str]]:
    """A workspace for one test, purged after it."""
    names: list[str] = []

    def make(name: str, *words: str) -> str:
        here.ok("create", name, "--wait", *words)
        names.append(name)
        return name

    yield make
    for name in names:
        here.run("delete", name, "--purge", "--wait")


# ── sign-in ──


def test_a_wrong_password_is_refused_and_a_right_one_accepted(visit: Callable[..., BrowserUser], here: Product) -> None:
    username, password = credentials(here)
    sitting = visit()
    sitting.page.goto(f"{sitting.url}/account")
    expect(sitting.page.get_by_label("Username")).to_be_focused()
    sitting.sign_in(username, "wrong")
    expect(sitting.page.get_by_role("alert")).to_be_visible()
    expect(sitting.page.get_by_label("Password")).to_have_value("")
    sitting.sign_in(username, password)
    # The page that was requested before the sign-in.
    expect(sitting.page.get_by_role("heading", name="Sessions")).to_be_visible()
    sitting.page.reload()
    expect(sitting.page.get_by_role("heading", name="Sessions")).to_be_visible()


def test_sign_in_does_not_lead_to_another_origin(visit: Callable[..., BrowserUser], here: Product) -> None:
    sitting = visit()
    sitting.enter(*credentials(here), path="/?next=https%3A%2F%2Fevil.example%2F")
    expect(sitting.page.get_by_role("heading", name="Workspaces", exact=True)).to_be_visible()
    assert sitting.page.url.startswith(sitting.url)


def test_sign_in_with_a_provider(visit: Callable[..., BrowserUser]) -> None:
    sitting = visit()
    sitting.page.goto(f"{sitting.url}/activity")
    sitting.page.get_by_role("link", name="Continue with the office").click()
    sitting.page.locator("button, input[type=submit]").filter(has_text="1906").or_(
        sitting.page.locator("button[value='1906'], input[value='1906']")
    ).first.click()
    expect(sitting.page.get_by_role("heading", name="Activity")).to_be_visible()
    expect(sitting.page.get_by_role("button", name="grace")).to_be_visible()
    # Only administrators see the other pages.
    expect(sitting.page.get_by_role("navigation", name="Pages").get_by_role("link")).to_have_text(["Workspaces", "Activity"])
    sitting.page.goto(f"{sitting.url}/users")
    expect(sitting.page.get_by_role("heading", name="Page not found")).to_be_visible()


# ── the list ──


def test_the_list_follows_changes(admin: BrowserUser, here: Product, made: Callable[..., str]) -> None:
    expect(admin.page.get_by_text("No workspaces yet")).to_be_visible()
    made("one")
    admin.see("one", "RUNNING")
    assert admin.buttons("one") == ["open", "stop", "archive"]
    expect(admin.page.locator(".subtitle")).to_contain_text("1 of 3 running")
    here.ok("archive", "one")
    expect(admin.row("one").locator(".phase")).to_contain_text(re.compile("Stopping|Archiving"))
    admin.see("one", "ARCHIVED")
    assert admin.buttons("one") == ["open", "start"]
    admin.row("one").get_by_role("button", name="Start one").click()
    admin.see("one", "RUNNING")


def test_the_page_reconnects_and_shows_missed_changes(admin: BrowserUser, here: Product, made: Callable[..., str]) -> None:
    made("steady")
    admin.see("steady", "RUNNING")
    here.stop()
    expect(admin.page.get_by_text("reconnecting…")).to_be_visible()
    admin.row("steady").get_by_role("button", name="Stop steady").click()
    expect(admin.row("steady").get_by_role("alert")).to_contain_text("does not respond")
    admin.picture("reconnecting")
    here.up()
    here.ok("stop", "steady", "--wait")
    expect(admin.page.get_by_text("reconnecting…")).to_have_count(0, timeout=SEEN_WITHIN_MS)
    admin.see("steady", "STANDBY")
    admin.row("steady").get_by_role("button", name="Dismiss").click()
    expect(admin.row("steady").get_by_role("alert")).to_have_count(0)


def test_an_error_is_shown_in_the_row_of_the_action(admin: BrowserUser, here: Product, made: Callable[..., str]) -> None:
    made("sleeper")
    here.ok("stop", "sleeper", "--wait")
    for name in ("busy-1", "busy-2", "busy-3"):
        made(name, "--template", "command", "--", *SERVE_HOME)
    admin.row("sleeper").get_by_role("button", name="Start sleeper").click()
    expect(admin.row("sleeper").get_by_role("alert")).to_contain_text("the limit is 3")
    assert admin.buttons("sleeper") == ["open", "start", "archive"]


def test_delete_and_undelete(admin: BrowserUser, here: Product, made: Callable[..., str]) -> None:
    made("phoenix")
    admin.row("phoenix").get_by_role("link", name="phoenix", exact=True).click()
    delete = admin.page.get_by_role("button", name="Delete phoenix")
    dialog = admin.page.get_by_role("dialog")
    delete.click()
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    admin.picture("delete")
    admin.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(delete).to_be_focused()
    delete.click()
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    assert here.show("phoenix")["desired_state"] == "RUNNING"
    delete.click()
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(dialog).to_have_count(0)
    here.until("phoenix", lambda seen: seen["phase"] == "DELETED")
    admin.go("Workspaces")
    expect(admin.row("phoenix")).to_have_count(0)
    admin.page.get_by_text("Deleted workspaces").click()
    admin.page.get_by_role("button", name="Undelete phoenix").first.click()
    admin.see("phoenix", "ARCHIVED")


# ── create ──


def test_create(admin: BrowserUser, made: Callable[..., str]) -> None:
    made("taken")
    admin.page.get_by_role("button", name="New workspace").click()
    dialog = admin.page.get_by_role("dialog")
    expect(dialog.get_by_label("Name", exact=True)).to_be_focused()
    dialog.get_by_label("Name", exact=True).fill("taken")
    expect(dialog.get_by_label("Command", exact=True)).to_have_count(0)
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("taken")
    dialog.get_by_label("Name", exact=True).fill("quoted")
    dialog.locator("input[value=command]").check()
    dialog.get_by_label("Command", exact=True).fill("""sh -c 'oops""")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("unclosed quote")
    dialog.get_by_label("Command", exact=True).fill("""sh -c 'exec python3 -m http.server --bind 127.0.0.1 $PORT'""")
    admin.picture("create")
    with admin.page.expect_response("**/api/v1/workspaces") as answered:
        dialog.get_by_role("button", name="Create").click()
    assert answered.value.status == 201
    assert answered.value.json()["command"] == ["sh", "-c", "exec python3 -m http.server --bind 127.0.0.1 $PORT"]
    assert answered.value.request.headers["idempotency-key"]
    admin.see("quoted", "RUNNING")
    admin.page.get_by_role("button", name="Delete quoted").click()
    dialog.get_by_label("Purge").check()
    dialog.get_by_role("button", name="Purge").click()
    expect(dialog).to_have_count(0)


# ── workspace page ──


def test_the_workspace_page(admin: BrowserUser, here: Product, made: Callable[..., str]) -> None:
    made(
        "whole",
        "--template",
        "command",
        "--",
        "sh",
        "-c",
        "echo it says hello; exec python3 -m http.server --bind 127.0.0.1 $PORT",
    )
    here.ok("archive", "whole", "--wait")
    here.ok("start", "whole", "--wait")
    admin.page.goto(f"{admin.url}/workspaces/whole")
    admin.see("whole", "RUNNING")
    page = admin.page
    expect(page.locator(".status-line")).to_contain_text(re.compile(r"Running.*(stops|in use|busy)"))
    connect = page.get_by_role("region", name="Connect")
    expect(connect).to_contain_text(f"http://whole.localhost:{here.port}")
    expect(connect).to_contain_text("torpor shell whole")
    expect(connect.get_by_role("link", name="Shell")).to_be_visible()
    cards = page.locator(".card h2").all_inner_texts()
    assert cards[:2] == ["Connect", "What you can do"]
    for plot in ("CPU", "Memory"):
        shown = page.locator(f'[data-plot="{plot}"]')
        expect(shown).not_to_have_attribute("data-points", "0", timeout=60_000)

    expect(page.locator(".conditions")).to_have_count(0)
    page.get_by_text("Details", exact=False).first.click()
    expect(page.locator(".summary")).to_have_text("whole is running.")
    expect(page.get_by_role("img", name=re.compile("Status chart: .*running for"))).to_be_visible()
    expect(page.locator(".history li")).to_have_count(6)
    archives = page.get_by_role("region", name="Archives")
    expect(archives.locator("li")).to_contain_text(re.compile(r"current.* stored · .* new.*verified"))
    expect(page.locator(".conditions li[data-status=True]")).to_have_count(4)

    page.get_by_role("region", name="Log").get_by_role("button", name="Show").click()
    expect(page.get_by_role("log")).to_contain_text("it says hello")

    page.get_by_role("region", name="Keep awake").get_by_role("button", name="Keep awake").click()
    page.get_by_label("Reason").fill("a long build")
    page.get_by_role("region", name="Keep awake").get_by_role("button", name="Keep awake").click()
    expect(page.get_by_role("region", name="Keep awake")).to_contain_text("a long build")
    assert [one["reason"] for one in json.loads(here.ok("hold", "whole", "--json"))["items"]] == ["a long build"]
    page.get_by_role("button", name="Stop keeping awake: a long build").click()
    expect(page.get_by_role("region", name="Keep awake")).to_contain_text("goes to sleep when it is not in use")

    page.get_by_role("region", name="Settings").get_by_role("button", name="Change").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Stop after").fill("soon")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("soon")
    dialog.get_by_label("Stop after").fill("1 h 30 min")
    dialog.get_by_label("Name", exact=True).fill("renamed")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="renamed", level=1)).to_be_visible()
    assert page.url == f"{admin.url}/workspaces/renamed"
    assert here.show("renamed")["standby_ttl"] == 5400
    here.ok("delete", "renamed", "--purge", "--wait")


def test_a_workspace_that_does_not_exist(admin: BrowserUser) -> None:
    admin.page.goto(f"{admin.url}/workspaces/missing")
    expect(admin.page.get_by_role("heading", name="Workspace “missing” not found")).to_be_visible()
    admin.page.get_by_role("button", name="All workspaces").click()
    expect(admin.page.get_by_role("heading", name="Workspaces", exact=True)).to_be_visible()


# ── users ──


def test_a_token_is_shown_once_and_works_until_it_is_revoked(admin: BrowserUser) -> None:
    admin.page.goto(f"{admin.url}/account")
    admin.page.get_by_role("button", name="New API token").click()
    dialog = admin.page.get_by_role("dialog")
    dialog.get_by_label("Label").fill("a test")
    admin.picture("token")
    dialog.get_by_role("button", name="Create").click()
    secret = dialog.locator("code[data-secret]").inner_text()
    dialog.get_by_role("button", name="Done").click()
    expect(admin.page.get_by_text(secret)).to_have_count(0)

    def answered() -> int:
        asked = admin.page.context.request.get(
            f"{admin.url}/api/v1/workspaces", headers={"Authorization": f"Bearer {secret}", "Cookie": ""}
        )
        return asked.status

    assert answered() == 200
    admin.page.get_by_role("button", name="Revoke a test").click()
    expect(admin.page.get_by_role("button", name="Revoke a test")).to_have_count(0)
    assert answered() == 401


def test_a_deactivated_user_is_signed_out_at_once(admin: BrowserUser, visit: Callable[..., BrowserUser]) -> None:
    admin.go("Users")
    admin.page.get_by_role("button", name="New user").click()
    dialog = admin.page.get_by_role("dialog")
    dialog.get_by_label("Username").fill("carol")
    dialog.get_by_label("Password").fill("a long enough password")
    dialog.get_by_label("Limit of running workspaces").fill("1")
    dialog.get_by_role("button", name="Create").click()
    expect(admin.page.locator('[data-user="carol"]')).to_be_visible()
    carol = visit()
    carol.enter("carol", "a long enough password")
    expect(carol.page.locator(".subtitle")).to_contain_text("0 of 1 running")
    admin.page.get_by_role("button", name="Change carol").click()
    dialog.get_by_label("Active").uncheck()
    dialog.get_by_role("button", name="Save").click()
    expect(admin.page.locator('[data-user="carol"]')).to_contain_text("deactivated")
    expect(carol.page.get_by_role("alert")).to_contain_text("Your session has ended")


def test_changing_the_password_ends_the_other_sessions(
    admin: BrowserUser, visit: Callable[..., BrowserUser], here: Product
) -> None:
    username, password = credentials(here)
    other = visit()
    other.enter(username, password)
    admin.page.goto(f"{admin.url}/account")
    for old, new in ((password, "another long password"), ("another long password", password)):
        admin.page.get_by_label("Old password").fill(old)
        admin.page.get_by_label("New password").fill(new)
        admin.page.get_by_role("button", name="Change password").click()
        expect(admin.page.get_by_text("Your other sessions have ended")).to_be_visible()
        expect(admin.page.get_by_label("Old password")).to_have_value("")
    expect(other.page.get_by_label("Username")).to_be_visible()


def test_a_password_change_can_revoke_tokens(visit: Callable[..., BrowserUser], here: Product) -> None:
    done = here.run("users", "create", "dora", stdin=b"a long enough password\n")
    assert done.returncode == 0, done.stderr
    dora = visit()
    dora.enter("dora", "a long enough password", "/account")
    dora.page.get_by_role("button", name="New API token").click()
    dialog = dora.page.get_by_role("dialog")
    dialog.get_by_label("Label").fill("a test")
    dialog.get_by_role("button", name="Create").click()
    dialog.get_by_role("button", name="Done").click()
    expect(dora.page.get_by_role("button", name="Revoke a test")).to_be_visible()
    dora.page.get_by_label("Old password").fill("a long enough password")
    dora.page.get_by_label("New password").fill("another long password")
    dora.page.get_by_label("Revoke my API tokens").check()
    dora.page.get_by_role("button", name="Change password").click()
    expect(dora.page.get_by_text("your API tokens are revoked")).to_be_visible()
    expect(dora.page.get_by_role("button", name="Revoke a test")).to_have_count(0)


def test_changes_are_announced_to_screen_readers(admin: BrowserUser, made: Callable[..., str], here: Product) -> None:
    expect(admin.page.locator(".subtitle")).to_contain_text("running")
    made("heard")
    expect(admin.page.locator(".unseen[role=status]")).to_have_text("heard: Running.", timeout=SEEN_WITHIN_MS)
    here.ok("stop", "heard", "--wait")
    expect(admin.page.locator(".unseen[role=status]")).to_have_text("heard: Stopped.", timeout=SEEN_WITHIN_MS)


def test_the_activity_page(admin: BrowserUser, made: Callable[..., str]) -> None:
    made("watched")
    admin.go("Activity")
    admin.page.get_by_label("Filter by workspace").fill("watched")
    admin.page.keyboard.press("Enter")
    expect(admin.page.locator(".audit li")).to_have_count(1)
    expect(admin.page.locator(".audit li")).to_contain_text("created watched")


def test_the_system_page(admin: BrowserUser, made: Callable[..., str]) -> None:
    made("runner")
    admin.go("System")
    expect(admin.page.get_by_role("region", name="Running workspaces")).to_contain_text("runner")
    expect(admin.page.get_by_role("region", name="Controllers")).to_contain_text("leader")
    expect(admin.page.get_by_role("region", name="Health")).to_contain_text("ready")
    expect(admin.page.get_by_role("region", name="Garbage collection")).to_contain_text("kept")


# ── accessibility and layout ──


def test_the_keyboard_is_enough(visit: Callable[..., BrowserUser], here: Product, made: Callable[..., str]) -> None:
    made("one")
    username, password = credentials(here)
    sitting = visit()
    press = sitting.page.keyboard.press
    sitting.page.goto(sitting.url)
    expect(sitting.page.get_by_label("Username")).to_be_focused()
    sitting.page.keyboard.type(username)
    press("Tab")
    sitting.page.keyboard.type(password)
    press("Enter")
    expect(sitting.row("one")).to_be_visible()
    sitting.page.get_by_role("button", name="New workspace").focus()
    press("Enter")
    dialog = sitting.page.get_by_role("dialog")
    expect(dialog.get_by_label("Name", exact=True)).to_be_focused()
    for _ in range(12):
        press("Tab")
        # Never behind the dialog; the focus may be in the browser's own toolbar.
        assert sitting.page.evaluate(
            "document.activeElement === document.body || document.activeElement.closest('dialog') !== null"
        )
    press("Escape")
    expect(sitting.page.get_by_role("button", name="New workspace")).to_be_focused()
    press("Tab")
    expect(sitting.row("one").get_by_role("link", name="one", exact=True)).to_be_focused()
    outline = sitting.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus is visible"


def test_the_theme_is_chosen_and_kept(visit: Callable[..., BrowserUser], here: Product) -> None:
    sitting = visit(color_scheme="light")
    sitting.enter(*credentials(here))
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = sitting.page.evaluate(ground)
    sitting.page.get_by_role("button", name="Theme: system").click()
    sitting.page.get_by_role("button", name="Theme: light").click()
    dark = sitting.page.evaluate(ground)
    assert dark != light
    sitting.page.reload()
    expect(sitting.page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert sitting.page.evaluate(ground) == dark


NAMELESS = """[...document.querySelectorAll("button, a, input, select, summary, [role=img]")].filter((one) =>
  one.checkVisibility() && !one.getAttribute("aria-label") && !one.textContent.trim() && !(one.labels && one.labels.length)
  && one.getAttribute("aria-hidden") !== "true").map((one) => one.outerHTML)"""


@pytest.fixture(scope="module")
def examples(here: Product) -> None:
    """Workspaces in several states. Only for the last tests of this module: they are not removed."""
    for name in ("notebooks", "thesis-2024-with-a-rather-long-name-1234", "playground"):
        here.ok("create", name, "--wait")
    here.ok("archive", "notebooks", "--wait")
    here.ok("start", "notebooks", "--wait")
    here.ok("archive", "thesis-2024-with-a-rather-long-name-1234", "--wait")
    here.ok("stop", "playground", "--wait")
    here.run("create", "broken", "--template", "command", "--wait", "--", "sh", "-c", "echo cannot find the model; exit 3")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1180])
@pytest.mark.usefixtures("examples")
def test_the_layout_of_every_page(visit: Callable[..., BrowserUser], here: Product, scheme: str, width: int) -> None:
    sitting = visit(color_scheme=scheme, viewport={"width": width, "height": 820}, reduced_motion="reduce")
    named = f"{scheme}-{width}"
    sitting.page.goto(sitting.url)
    expect(sitting.page.get_by_label("Username")).to_be_visible()
    expect(sitting.page.get_by_role("link", name="Continue with the office")).to_be_visible()
    sitting.picture(f"sign-in-{named}")
    sitting.sign_in(*credentials(here))
    sitting.see("broken", "ERROR")
    expect(sitting.page.locator(".subtitle")).to_contain_text("running")
    for name, path, settled in (
        ("list", "/", "Deleted workspaces"),
        ("workspace", "/workspaces/notebooks", "What you can do"),
        ("error", "/workspaces/broken", "Clear the error"),
        ("account", "/account", "this session"),
        ("activity", "/activity", "signed in"),
        ("users", "/users", "administrator"),
        ("system", "/system", "to free"),
    ):
        sitting.page.goto(sitting.url + path)
        expect(sitting.page.get_by_text(settled).first).to_be_visible()
        expect(sitting.page.locator(".waiting")).to_have_count(0)
        sitting.picture(f"{name}-{named}")
        assert sitting.fits(), f"{path} is too wide"
        if sitting.page.locator(".details").count():
            sitting.page.locator(".details > summary").click()
            expect(sitting.page.locator(".history")).to_be_visible()
            assert sitting.fits(), f"{path} with details is too wide"
        assert sitting.page.evaluate(NAMELESS) == [], path
    sitting.page.goto(sitting.url)
    sitting.page.get_by_role("button", name="New workspace").click()
    sitting.page.get_by_role("dialog").locator("input[value=command]").check()
    sitting.picture(f"create-{named}")
    assert sitting.fits()


def test_an_older_archive_is_restored_and_forked(
    admin: BrowserUser, here: Product, made: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    made("past")
    for note in ("first", "second"):
        here.ok("start", "past", "--wait")
        here.ok("exec", "past", "--", "sh", "-c", f"echo {note} > note; head -c 300000 /dev/urandom > {note}")
        here.ok("archive", "past", "--wait")
    first = json.loads(here.ok("archives", "past", "--json"))["items"][1]["key"]
    admin.page.goto(f"{admin.url}/workspaces/past")
    card = admin.page.get_by_role("region", name="Archives")
    rows = card.locator("[data-archive]")
    older = card.locator(f'[data-archive="{first}"]')
    expect(rows).to_have_count(2)
    # The second archive has both files, and only one of them is new.
    expect(rows.first).to_contain_text(re.compile(r"current.*586 KiB home · 58\d KiB stored · 29\d KiB new.*verified .* ago"))
    expect(older).to_contain_text(re.compile(r"293 KiB home · 29\d KiB stored · 29\d KiB new.*verified .* ago"))
    expect(older.locator("code")).to_have_text(first.partition("/")[2][:8])
    for name, width in (("light", 1180), ("dark", 1180), ("phone", 390)):
        admin.page.emulate_media(color_scheme="dark" if name == "dark" else "light")
        admin.page.set_viewport_size({"width": width, "height": 820})
        assert admin.fits()
        admin.picture(f"archives-{name}")
    admin.page.set_viewport_size({"width": 1180, "height": 820})

    older.get_by_role("button", name="Restore").click()
    dialog = admin.page.get_by_role("dialog")
    expect(dialog).to_contain_text("The present home is archived first.")
    dialog.get_by_role("button", name="Cancel").click()
    expect(rows.first).to_contain_text("current")
    older.get_by_role("button", name="Restore").click()
    dialog.get_by_role("button", name="Restore").click()
    expect(older).to_contain_text("current")
    expect(rows.first).not_to_contain_text("current")

    older.get_by_role("button", name="Fork").click()
    expect(dialog).to_contain_text("Secrets are not copied.")
    dialog.get_by_label("Name").fill("past-copy")
    dialog.get_by_role("button", name="Fork").click()
    request.addfinalizer(lambda: here.run("delete", "past-copy", "--purge", "--yes", "--wait"))
    expect(admin.page).to_have_url(re.compile("/workspaces/past-copy$"))
    admin.see("past-copy", "RUNNING")
    assert here.ok("exec", "past-copy", "--", "cat", "note") == "first\n"
