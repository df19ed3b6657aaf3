"""Does the page work for somebody with a browser? Against a stand-in that speaks the API's words by a script."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.browser import ARTIFACTS, FLAGS, find_chromium
from torpor.dashboard.assets import HEADERS, asset

pytestmark = pytest.mark.browser

PICTURES = ARTIFACTS / "dashboard"
PASSWORD = "correct horse"

Json = dict[str, Any]


def workspace(name: str, phase: str, **more: Any) -> Json:
    return {
        "id": f"id-of-{name}",
        "name": name,
        "owner": "ada",
        "template": "terminal",
        "desired_state": phase if phase in ("RUNNING", "STANDBY", "ARCHIVED") else "RUNNING",
        "phase": phase,
        "operation": "NONE",
        "progress": None,
        "observed_status": "STANDBY",
        "health_status": "OK",
        "error": None,
        "url": f"http://{name}.localhost:1/",
        "created_at": "2026-11-15T20:00:00Z",
        "phase_changed_at": "2026-11-15T20:00:00Z",
        **more,
    }


LOST: Json = {
    "reason": "DataLost",
    "message": "the volume of generation 3 is gone, and it was not archived <b>since</b>",
    "is_terminal": True,
    "operation": "STARTING",
}


@dataclass
class Product:
    """What the stand-in knows, and what it was asked."""

    workspaces: list[Json] = field(default_factory=list)
    asked: list[tuple[str, str, Json | None]] = field(default_factory=list)
    is_away: bool = False
    session: str | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, name: str) -> Json:
        return next(item for item in self.workspaces if item["name"] == name)

    def wishes(self) -> list[tuple[str, str, Json | None]]:
        """What was asked for beyond looking."""
        return [asked for asked in self.asked if asked[0] != "GET"]

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Json | None) -> tuple[int, Any]:
        """Status and JSON, for somebody who is signed in."""
        match method, path.strip("/").split("/"):
            case "GET", ["me"]:
                return 200, {"username": "ada"}
            case "POST", ["logout"]:
                self.session = None
                return 204, None
            case "GET", ["templates"]:
                return 200, {"items": TEMPLATES}
            case "GET", ["workspaces"]:
                begin = int(query.get("cursor", ["0"])[0])
                page = self.workspaces[begin : begin + 3]
                more = begin + 3 < len(self.workspaces)
                return 200, {"items": page, "next_cursor": str(begin + 3) if more else None}
            case "POST", ["workspaces"]:
                assert body is not None
                if any(item["name"] == body["name"] for item in self.workspaces):
                    return 409, {"code": "name_taken", "detail": f"there is a workspace {body['name']} already"}
                self.workspaces.append(workspace(body["name"], "PENDING", template=body["template"], operation="PROVISIONING"))
                return 201, self.workspaces[-1]
            case "PATCH", ["workspaces", asked]:
                assert body is not None
                found = self.find(asked.removeprefix("id-of-"))
                found["desired_state"] = body["desired_state"]
                found["operation"] = {"RUNNING": "STARTING", "STANDBY": "STOPPING", "ARCHIVED": "ARCHIVING"}[
                    body["desired_state"]
                ]
                return 200, found
            case "DELETE", ["workspaces", asked]:
                found = self.find(asked.removeprefix("id-of-"))
                found |= {"phase": "DELETING", "desired_state": "DELETED", "operation": "DELETING"}
                return 202, found
            case "POST", ["workspaces", asked, "recover"]:
                found = self.find(asked.removeprefix("id-of-"))
                if found["error"]["reason"] == "DataLost" and not body:
                    detail = "its home is lost: say whether to go on from an archive or with an empty home"
                    return 409, {"code": "say_which_way", "detail": detail, "archive_keys": ["ws/1/op-7", "ws/1/op-3"]}
                found |= {"phase": "PENDING", "error": None, "operation": "RESTORING"}
                return 202, found
            case "GET", ["workspaces", asked, "explain"]:
                return 200, EXPLANATION
            case "GET", ["workspaces", asked, "operations"]:
                return 200, {"items": HISTORY}
            case _:
                return 404, {"code": "not_found", "detail": "no such thing"}


TEMPLATES = [
    {
        "name": "command",
        "title": "Command",
        "description": "A program of your own that listens on $PORT.",
        "takes_command": True,
    },
    {"name": "jupyterlab", "title": "JupyterLab", "description": "Notebooks, installed on first use.", "takes_command": False},
    {"name": "terminal", "title": "Terminal", "description": "A shell in the browser.", "takes_command": False},
]
EXPLANATION = {
    "summary": "broken is in ERROR.",
    "lines": [
        "Wished: RUNNING (wish 4).",
        "Seen: container Missing, volume Missing, archive Ready; this amounts to ERROR.",
        "Next: nothing by itself; it needs a word from you.",
    ],
    "ways_out": [
        {"command": "torpor recover broken --archive-key ws/1/op-7", "means": "go on from this older archive"},
        {"command": "torpor recover broken --empty", "means": "go on with an empty home"},
    ],
}
HISTORY = [
    {
        "kind": "STARTING",
        "attempt": 2,
        "outcome": "FAILED",
        "started_at": "2026-11-15T20:00:00Z",
        "ended_at": "2026-11-15T20:00:03Z",
        "seconds": 3.21,
        "message": "the volume of generation 3 is gone",
        "reason": "DataLost",
    },
    {
        "kind": "ARCHIVING",
        "attempt": 1,
        "outcome": "DONE",
        "started_at": "2026-11-14T20:00:00Z",
        "ended_at": "2026-11-14T20:00:11Z",
        "seconds": 11.0,
        "message": None,
        "reason": None,
    },
]


class Handler(BaseHTTPRequestHandler):
    product: Product

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has above
        pass

    def _do(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        url = urlsplit(self.path)
        if self.product.is_away:
            self._send(502, "text/plain", b"Torpor does not answer.\n")
        elif found := asset(url.path):
            self._send(200, found.content_type, found.body, dict(HEADERS))
        elif url.path.startswith("/api/v1/"):
            with self.product.lock:
                self._answer(url.path.removeprefix("/api/v1"), parse_qs(url.query), body)
        else:
            self._send(404, "text/plain", b"no\n")

    do_GET = do_POST = do_PATCH = do_DELETE = _do  # noqa: N815 - the names that http.server calls

    def _answer(self, path: str, query: dict[str, list[str]], body: Json | None) -> None:
        product = self.product
        product.asked.append((self.command, path + (f"?{urlsplit(self.path).query}" if query else ""), body))
        if self.command != "GET" and self.headers.get("X-Torpor") != "page":
            self._json(403, {"code": "cross_site", "detail": "X-Torpor is missing"})
        elif path == "/login":
            assert body is not None
            if body != {"username": "ada", "password": PASSWORD}:
                self._json(401, {"code": "bad_credentials", "detail": "username or password is wrong"})
                return
            product.session = "s1"
            self._json(204, None, {"Set-Cookie": "torpor_session=s1; HttpOnly; SameSite=Strict; Path=/"})
        elif product.session is None or f"torpor_session={product.session}" not in self.headers.get("Cookie", ""):
            self._json(401, {"code": "unauthorized", "detail": "sign in first"})
        else:
            self._json(*product.answer(self.command, path, query, body))

    def _json(self, status: int, said: Any, headers: dict[str, str] | None = None) -> None:
        kind = "application/json" if status < 400 else "application/problem+json"
        self._send(status, kind, b"" if said is None else json.dumps(said).encode(), headers or {})

    def _send(self, status: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = find_chromium()
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def product() -> Iterator[tuple[Product, str]]:
    made = Product()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"product": made}))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield made, f"http://localhost:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass
class Seat:
    """Somebody in front of the page."""

    page: Page
    product: Product
    url: str
    complaints: list[str]

    def sign_in(self, password: str = PASSWORD) -> None:
        self.page.get_by_label("Username").fill("ada")
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()

    def enter(self) -> None:
        self.page.goto(self.url)
        self.sign_in()
        expect(self.page.get_by_role("heading", name="Workspaces")).to_be_visible()

    def card(self, name: str) -> Locator:
        return self.page.locator(f'[data-workspace="{name}"]')

    def buttons(self, name: str) -> list[str]:
        shown = self.card(name).locator("[data-action]:visible").all()
        return [button.get_attribute("data-action") or "" for button in shown]

    def picture(self, name: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


@pytest.fixture
def seat(browser: Browser, product: tuple[Product, str]) -> Iterator[Seat]:
    made, url = product
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    context.set_default_timeout(10_000)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    yield Seat(page, made, url, complaints)
    context.close()
    # The browser itself notes every answer that is no success; those are the script's doing.
    assert [text for text in complaints if "Failed to load resource" not in text] == []


def test_the_door(seat: Seat) -> None:
    seat.page.goto(seat.url)
    expect(seat.page.get_by_label("Username")).to_be_focused()
    seat.picture("door")
    seat.sign_in("wrong")
    expect(seat.page.locator("#door-error")).to_have_text("username or password is wrong")
    seat.sign_in()
    expect(seat.page.locator("#user")).to_have_text("ada")
    expect(seat.page.locator("#empty")).to_be_visible()
    seat.picture("empty")
    seat.page.reload()
    expect(seat.page.get_by_role("heading", name="Workspaces")).to_be_visible()
    seat.page.get_by_role("button", name="Sign out").click()
    expect(seat.page.get_by_label("Username")).to_be_visible()
    assert seat.product.session is None


def test_a_session_that_ends_leads_back_to_the_door(seat: Seat) -> None:
    seat.enter()
    seat.product.session = "another"
    expect(seat.page.locator("#door-error")).to_have_text("Your session has ended. Sign in again.")
    seat.sign_in()
    expect(seat.page.get_by_role("heading", name="Workspaces")).to_be_visible()


def test_the_list_lives(seat: Seat) -> None:
    product = seat.product
    product.workspaces = [
        workspace("one", "RUNNING"),
        workspace("two", "STANDBY"),
        workspace("three", "ARCHIVED"),
        workspace("four", "ARCHIVED", desired_state="RUNNING", operation="RESTORING", progress=40),
        workspace("five", "DELETING", desired_state="DELETED", operation="DELETING"),
    ]
    seat.enter()
    expect(seat.page.locator("#list > li")).to_have_count(5)
    assert seat.buttons("one") == ["open", "stop", "archive", "delete"]
    assert seat.buttons("two") == ["start", "archive", "delete"]
    assert seat.buttons("three") == ["start", "delete"]
    assert seat.buttons("four") == ["stop", "archive", "delete"]
    assert seat.buttons("five") == []
    opened = seat.card("one").locator("[data-action=open]")
    assert (opened.get_attribute("href"), opened.get_attribute("target")) == ("http://one.localhost:1/", "_blank")
    expect(seat.card("four").locator(".moving p")).to_have_text("Restoring its home from the archive · 40 %")

    product.find("four").update(progress=90)
    expect(seat.card("four").locator("progress")).to_have_js_property("value", 90)
    product.find("four").update(phase="RUNNING", operation="NONE", progress=None)
    expect(seat.card("four").locator(".phase .word")).to_have_text("RUNNING")
    expect(seat.card("four").locator(".moving")).to_be_hidden()
    product.workspaces = [item for item in product.workspaces if item["name"] != "five"]
    expect(seat.page.locator("#list > li")).to_have_count(4)


def test_wishes(seat: Seat) -> None:
    product = seat.product
    product.workspaces = [workspace("one", "STANDBY"), workspace("two", "RUNNING")]
    seat.enter()
    product.asked.clear()
    seat.page.get_by_role("button", name="Start one").click()
    expect(seat.card("one").locator(".moving p")).to_have_text("Starting its program…")
    seat.page.get_by_role("button", name="Stop two").click()
    expect(seat.card("two").locator(".moving p")).to_have_text("Stopping its program…")
    seat.page.get_by_role("button", name="Archive two").click()
    expect(seat.card("two").locator(".moving p")).to_have_text("Putting its home into the archive…")
    assert product.wishes() == [
        ("PATCH", "/workspaces/id-of-one", {"desired_state": "RUNNING"}),
        ("PATCH", "/workspaces/id-of-two", {"desired_state": "STANDBY"}),
        ("PATCH", "/workspaces/id-of-two", {"desired_state": "ARCHIVED"}),
    ]


def test_deleting_asks_first(seat: Seat) -> None:
    product = seat.product
    product.workspaces = [workspace("one", "STANDBY"), workspace("two", "STANDBY")]
    seat.enter()
    product.asked.clear()
    dialog = seat.page.get_by_role("dialog")
    seat.page.get_by_role("button", name="Delete one").click()
    seat.picture("delete")
    dialog.get_by_role("button", name="Keep it").click()
    seat.page.get_by_role("button", name="Delete one").click()
    seat.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert product.wishes() == []
    seat.page.get_by_role("button", name="Delete one").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(seat.card("one").locator(".phase .word")).to_have_text("DELETING")
    seat.page.get_by_role("button", name="Delete two").click()
    dialog.get_by_label(re.compile("Purge")).check()
    dialog.get_by_role("button", name="Delete").click()
    expect(seat.card("two").locator(".phase .word")).to_have_text("DELETING")
    assert [path for _, path, _ in product.wishes()] == [
        "/workspaces/id-of-one?purge=false",
        "/workspaces/id-of-two?purge=true",
    ]


def test_creating(seat: Seat) -> None:
    seat.product.workspaces = [workspace("taken", "STANDBY")]
    seat.enter()
    seat.page.get_by_role("button", name="New workspace").click()
    expect(seat.page.get_by_label("Name", exact=True)).to_be_focused()
    form = seat.page.get_by_role("form", name="New workspace")
    seat.picture("create")
    form.get_by_label("Name", exact=True).fill("taken")
    form.get_by_role("button", name="Create").click()
    expect(seat.page.locator("#create-error")).to_have_text("there is a workspace taken already")
    expect(form.get_by_label("Command", exact=True)).to_be_hidden()
    form.get_by_label("Name", exact=True).fill("mine")
    form.get_by_label("Template").select_option("Command")
    form.get_by_label("Command", exact=True).fill("""sh -c 'echo "a  b" $PORT' "x\\"y" '' a\\ b""")
    form.get_by_role("button", name="Create").click()
    expect(seat.card("mine")).to_be_visible()
    expect(form).to_be_hidden()
    assert seat.product.wishes()[-1] == (
        "POST",
        "/workspaces",
        {"name": "mine", "template": "command", "command": ["sh", "-c", 'echo "a  b" $PORT', 'x"y', "", "a b"]},
    )


def test_trouble_is_explained_and_left(seat: Seat) -> None:
    product = seat.product
    product.workspaces = [workspace("broken", "ERROR", error=LOST, health_status="ERROR")]
    seat.enter()
    card = seat.card("broken")
    expect(card.locator(".trouble strong")).to_have_text("DataLost")
    expect(card.locator(".trouble p")).to_have_text(LOST["message"])
    assert seat.buttons("broken") == ["recover", "delete"]
    card.get_by_text("What is going on?").click()
    expect(card.locator(".story")).to_contain_text("torpor recover broken --empty")
    expect(card.locator("tbody tr")).to_have_count(2)
    seat.picture("trouble")

    seat.page.get_by_role("button", name="Recover broken").click()
    dialog = seat.page.get_by_role("dialog")
    expect(dialog).to_contain_text("say whether to go on")
    expect(dialog.get_by_role("radio")).to_have_count(3)
    seat.picture("recover")
    dialog.get_by_label("an empty home").check()
    dialog.get_by_role("button", name="Recover").click()
    expect(card.locator(".moving p")).to_have_text("Restoring its home from the archive…")
    assert [body for _, _, body in product.wishes()][-2:] == [{}, {"empty": True}]
    expect(card.locator("details")).to_have_attribute("open", "")


def test_it_finds_back_by_itself(seat: Seat) -> None:
    seat.product.workspaces = [workspace("one", "STANDBY")]
    seat.enter()
    seat.product.is_away = True
    expect(seat.page.locator("#connection")).to_be_visible()
    seat.page.get_by_role("button", name="Start one").click()
    expect(seat.page.locator("#notice")).to_contain_text("Torpor does not answer")
    seat.picture("away")
    seat.product.find("one").update(phase="RUNNING", desired_state="RUNNING")
    seat.product.is_away = False
    expect(seat.page.locator("#connection")).to_be_hidden()
    expect(seat.card("one").locator(".phase .word")).to_have_text("RUNNING")
    seat.page.get_by_role("button", name="Dismiss this message").click()
    expect(seat.page.locator("#notice")).to_be_hidden()


def test_a_refusal_is_readable(seat: Seat) -> None:
    seat.product.workspaces = [workspace("one", "STANDBY")]
    seat.enter()
    seat.page.route(
        "**/api/v1/workspaces/id-of-one",
        lambda route: route.fulfill(
            status=429,
            content_type="application/problem+json",
            body=json.dumps({"detail": "3 may run at once", "code": "limit_reached"}),
        ),
    )
    seat.page.get_by_role("button", name="Start one").click()
    expect(seat.page.locator("#notice-text")).to_have_text("3 may run at once")


def test_the_keyboard_is_enough_and_keeps_its_place(seat: Seat) -> None:
    seat.product.workspaces = [workspace("one", "STANDBY")]
    seat.page.goto(seat.url)
    expect(seat.page.get_by_label("Username")).to_be_focused()
    press = seat.page.keyboard.press
    seat.page.keyboard.type("ada")
    press("Tab")
    seat.page.keyboard.type(PASSWORD)
    press("Enter")
    expect(seat.card("one")).to_be_visible()
    seat.page.get_by_role("button", name="New workspace").focus()
    press("Tab")
    expect(seat.page.get_by_role("button", name="Start one")).to_be_focused()
    press("Enter")
    # Its button is gone, the place in the page is not.
    expect(seat.page.get_by_role("button", name="Stop one")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1100])
def test_how_it_looks(browser: Browser, product: tuple[Product, str], scheme: str, width: int) -> None:
    made, url = product
    made.workspaces = [
        workspace("notebooks", "RUNNING", template="jupyterlab"),
        workspace("website", "ARCHIVED", desired_state="RUNNING", operation="RESTORING", progress=64),
        workspace("playground", "STANDBY"),
        workspace("thesis-2024-with-a-rather-long-name-1234", "ARCHIVED"),
        workspace("compiler", "STANDBY", desired_state="RUNNING", operation="STARTING", template="command"),
        workspace("broken", "ERROR", error=LOST),
    ]
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce"
    )
    seat = Seat(context.new_page(), made, url, [])
    seat.page.goto(url)
    expect(seat.page.get_by_label("Username")).to_be_visible()
    seat.picture(f"door-{scheme}-{width}")
    seat.sign_in()
    expect(seat.card("broken")).to_be_visible()
    seat.card("broken").get_by_text("What is going on?").click()
    expect(seat.card("broken").locator("tbody tr")).to_have_count(2)
    seat.picture(f"list-{scheme}-{width}")
    assert seat.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing runs out at the side"
    seat.page.get_by_role("button", name="New workspace").click()
    seat.page.get_by_label("Template").select_option("Command")
    seat.picture(f"create-{scheme}-{width}")
    context.close()
