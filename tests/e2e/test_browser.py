"""The main flows in a real browser: terminal, sleep and wake, recovery, sharing, sign-out."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import ARTIFACTS, BrowserUser, browser_user, running_chromium
from tests.support.product import Product, product

pytestmark = pytest.mark.browser

BOB = ("bob", "a long enough password")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_chromium() as running:
        yield running


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    tuning = {"TORPOR_MAX_RUNNING_PER_USER": "9", "TORPOR_RECONCILER_RETRY_BACKOFF": "1"}
    with product(tmp_path_factory.mktemp("product"), **tuning) as running:
        yield running


@pytest.fixture
def admin(browser: Browser, here: Product) -> Iterator[BrowserUser]:
    with browser_user(browser, f"http://localhost:{here.port}") as sitting:
        sitting.enter(*credentials(here))
        yield sitting


def credentials(here: Product) -> tuple[str, str]:
    written = json.loads((here.data / "credentials.json").read_text())
    return written["username"], written["password"]


def open_it(sitting: BrowserUser) -> Page:
    """Open the workspace with the link on the page, which opens a tab."""
    with sitting.page.expect_popup() as opened:
        sitting.page.get_by_role("link", name="Open ").first.click()
    return opened.value


def picture(page: Page, name: str) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"e2e-{name}.png")


def type_in(terminal: Page, command: str, expected: str) -> None:
    rows = terminal.locator(".xterm-rows")
    expect(rows).to_contain_text("$", timeout=20_000)
    terminal.keyboard.type(f"{command}\n")
    expect(rows).to_contain_text(expected, timeout=20_000)


def test_create_open_archive_and_wake(admin: BrowserUser, here: Product) -> None:
    admin.create("demo")
    admin.see("demo", "RUNNING")
    terminal = open_it(admin)
    type_in(terminal, "echo hi-$((6*7)) | tee note", "hi-42")
    assert terminal.url == f"http://demo.localhost:{here.port}/"
    picture(terminal, "terminal")

    admin.page.get_by_role("button", name="Archive demo").click()
    admin.see("demo", "ARCHIVED")
    picture(admin.page, "archived")

    # Opening its address wakes it: the page shows the progress and opens the workspace.
    answered = terminal.goto(f"http://demo.localhost:{here.port}/")
    assert answered is not None
    assert (answered.status, "demo is starting" in answered.text()) == (503, True)
    picture(terminal, "waking")
    type_in(terminal, "cat note", "hi-42")
    admin.see("demo", "RUNNING")
    admin.page.locator(".details > summary").click()
    expect(admin.page.locator(".history")).to_contain_text("Restore")
    terminal.close()

    admin.page.get_by_role("button", name="Delete demo").click()
    dialog = admin.page.get_by_role("dialog")
    dialog.get_by_label("Purge").check()
    dialog.get_by_role("button", name="Purge").click()
    admin.go("Workspaces")
    expect(admin.row("demo")).to_have_count(0, timeout=30_000)


def test_a_link_to_a_workspace_continues_after_the_sign_in(browser: Browser, here: Product) -> None:
    here.ok("create", "linked", "--wait")
    with browser_user(browser, f"http://localhost:{here.port}") as sitting:
        sitting.page.goto(f"http://linked.localhost:{here.port}/")
        expect(sitting.page.get_by_label("Username")).to_be_visible()
        sitting.sign_in(*credentials(here))
        type_in(sitting.page, "echo in-$((2*21))", "in-42")
        assert sitting.page.url == f"http://linked.localhost:{here.port}/"


def test_a_shell_on_the_dashboard(admin: BrowserUser, here: Product) -> None:
    here.ok("create", "shelled", "--wait")
    admin.page.goto(f"{admin.url}/workspaces/shelled")
    admin.page.get_by_role("link", name="Shell", exact=True).click()
    type_in(admin.page, "echo sh-$((6*7)); stty size", "sh-42")
    columns = admin.page.locator(".xterm-rows").inner_text()
    assert "24 80" not in columns, "the shell has the size of the page, not the default"
    # A colour that needs an inline style, which the content security policy forbids in markup.
    type_in(admin.page, "printf '\\033[38;2;250;100;50mcoloured\\033[0m\\n'", "coloured")
    expect(admin.page.locator(".xterm-rows span", has_text="coloured").last).to_have_css("color", "rgb(250, 100, 50)")
    admin.picture("shell")
    admin.page.keyboard.type("exit 3\n")
    expect(admin.page.get_by_role("status").filter(has_text="The shell exited with code 3.")).to_be_visible()
    admin.page.get_by_role("button", name="New shell").click()
    type_in(admin.page, "echo again-$((6*7))", "again-42")


def test_recover_from_an_error(admin: BrowserUser, here: Product) -> None:
    admin.create("fussy", "command", "sh -c 'test -e ready && exec python3 -m http.server --bind 127.0.0.1 $PORT'")
    admin.see("fussy", "ERROR", within_s=60)
    options = admin.page.get_by_role("list", name="What you can do")
    expect(options).to_be_visible()
    admin.picture("error")
    (here.home(here.show("fussy")) / "ready").touch()
    options.get_by_role("button", name="Retry").click()
    admin.see("fussy", "RUNNING")
    expect(options).to_have_count(0)


def test_a_lost_home_is_restored_from_its_archive(admin: BrowserUser, here: Product) -> None:
    here.ok("create", "lost", "--wait")
    here.ok("exec", "lost", "--", "sh", "-c", "echo kept > note")
    here.ok("archive", "lost", "--wait")
    here.ok("start", "lost", "--wait")
    here.ok("stop", "lost", "--wait")
    volume = here.home(here.show("lost")).parent
    volume.rename(volume.with_name("pulled-away"))
    admin.see("lost", "ERROR", within_s=60)
    # The list shows a dialog with the options.
    admin.row("lost").get_by_role("button", name="Recover lost").click()
    dialog = admin.page.get_by_role("dialog")
    expect(dialog.get_by_role("radio")).to_have_count(2)
    admin.picture("recover")
    admin.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    # The workspace page has a button for each option.
    admin.row("lost").get_by_role("link", name="lost", exact=True).click()
    admin.page.get_by_role("button", name="Restore the latest archive").click()
    admin.see("lost", "STANDBY", within_s=60)
    here.ok("start", "lost", "--wait")
    assert here.ok("exec", "lost", "--", "cat", "note") == "kept\n"


def test_shared_with_a_second_user(admin: BrowserUser, browser: Browser, here: Product) -> None:
    here.ok("create", "ours", "--wait")
    admin.go("Users")
    admin.page.get_by_role("button", name="New user").click()
    dialog = admin.page.get_by_role("dialog")
    dialog.get_by_label("Username").fill(BOB[0])
    dialog.get_by_label("Password").fill(BOB[1])
    dialog.get_by_role("button", name="Create").click()
    expect(admin.page.locator('[data-user="bob"]')).to_be_visible()

    with browser_user(browser, admin.url) as bob:
        bob.enter(*BOB)
        expect(bob.page.get_by_text("No workspaces yet")).to_be_visible()
        bob.picture("empty")

        admin.page.goto(f"{admin.url}/workspaces/ours")
        admin.page.get_by_role("button", name="Share", exact=True).click()
        admin.page.get_by_label("Username").fill("nobody-here")
        admin.page.get_by_role("button", name="Share", exact=True).click()
        expect(admin.page.get_by_role("alert")).to_contain_text("nobody-here")
        admin.page.get_by_label("Username").fill("bob")
        admin.page.get_by_role("button", name="Share", exact=True).click()
        expect(admin.page.get_by_label("Role of bob")).to_have_value("use")

        # The row appears without a reload, with the allowed actions only.
        expect(bob.row("ours")).to_be_visible()
        assert bob.buttons("ours") == ["open"]
        bob.row("ours").get_by_role("link", name="ours", exact=True).click()
        type_in(open_it(bob), "echo both-$((6*7))", "both-42")
        expect(bob.page.get_by_role("button", name="Share", exact=True)).to_have_count(0)
        bob.go("Workspaces")

        admin.page.get_by_label("Role of bob").select_option("manage")
        expect(bob.row("ours").locator("[data-action=stop]")).to_be_visible()
        bob.row("ours").get_by_role("button", name="Stop ours").click()
        bob.see("ours", "STANDBY")

        admin.page.get_by_role("button", name="Stop sharing with bob").click()
        expect(bob.row("ours")).to_have_count(0)
        bob.sign_out()


def test_sign_out_and_a_session_that_was_ended_in_another_browser(admin: BrowserUser, browser: Browser, here: Product) -> None:
    with browser_user(browser, admin.url) as elsewhere:
        elsewhere.enter(*credentials(here))
        admin.page.goto(f"{admin.url}/account")
        others = admin.page.get_by_role("button", name="End the session in")
        expect(others.first).to_be_visible()
        while others.count():
            before = others.count()
            others.first.click()
            expect(others).to_have_count(before - 1)
        expect(elsewhere.page.get_by_role("alert")).to_contain_text("Your session has ended")
        expect(elsewhere.page.get_by_label("Username")).to_be_focused()
    admin.sign_out()
    admin.page.goto(f"{admin.url}/account")
    expect(admin.page.get_by_label("Username")).to_be_visible()
