"""Users sign in on a workspace's host, and programs there cannot reach beyond it."""

import json
from collections.abc import Iterator

import pytest

from tests.support.http_browser import HttpBrowser
from tests.support.product import SERVE_HOME, Product, product
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]

# Echoes the request headers, and tries to set cookies for other hosts.
NOSY = """
import http.server, json, os
class Nosy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        said = json.dumps(self.headers.items()).encode()
        self.send_response(200)
        for cookie in ("torpor_session=evil; Domain=localhost; Path=/", "torpor_door=evil", "own=1; Domain=localhost", "b=2"):
            self.send_header("Set-Cookie", cookie)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
    do_POST = do_GET
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Nosy).serve_forever()
"""
# Tests from inside whether another workspace can be reached: through the proxy of this machine, or directly.
PRIES = """
import sys, urllib.error, urllib.request
for said in sys.argv[1:]:
    address, host = said.split()
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers={"Host": host}), timeout=3) as answer:
            print("OPEN", said, answer.status, answer.read(200))
    except urllib.error.HTTPError as error:
        print("refused", error.code)
    except OSError as error:
        print("closed", error)
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(tmp_path_factory.mktemp("door"), TORPOR_MAX_RUNNING_PER_USER="3") as running:
        running.ok("create", "nosy", "--template", "command", "--wait", "--", "python3", "-c", NOSY)
        running.ok("create", "site", "--template", "command", "--wait", "--", *SERVE_HOME)
        running.ok("exec", "site", "--", "sh", "-c", "echo precious > index.html")
        yield running


@pytest.fixture
def browser(here: Product) -> HttpBrowser:
    known = json.loads((here.data / "credentials.json").read_text())
    somebody = HttpBrowser(here.port)
    somebody.sign_in(known["username"], known["password"])
    return somebody


def test_a_signed_in_browser_reaches_each_workspace(here: Product, browser: HttpBrowser) -> None:
    answer = browser.go(f"http://site.localhost:{here.port}/index.html?a=%2F")
    assert (answer.status, answer.body) == (200, b"precious\n")
    assert answer.url.endswith("/index.html?a=%2F")
    assert "torpor_door" in browser.cookies["site.localhost"]
    assert "torpor_knock" not in browser.cookies["site.localhost"]
    stranger = HttpBrowser(here.port).go(f"http://site.localhost:{here.port}/")
    assert b"precious" not in stranger.body
    assert stranger.url.startswith(f"http://localhost:{here.port}/")


def test_a_workspace_sees_no_platform_cookies_and_sets_none_for_others(here: Product, browser: HttpBrowser) -> None:
    page = f"http://nosy.localhost:{here.port}/"
    assert browser.go(page).status == 200
    assert browser.cookies["nosy.localhost"].keys() == {"torpor_door", "torpor_workspace", "own", "b"}
    door = browser.cookies["nosy.localhost"]["torpor_door"]
    session = browser.cookies["localhost"]["torpor_session"]
    browser.cookies["nosy.localhost"] |= {"torpor_session": session, "mine": "3"}
    told = browser.fetch(page, Authorization="Bearer something-of-its-own")
    names = {name.lower(): value for name, value in told.json}
    assert names["cookie"] == "own=1; b=2; mine=3"
    assert names["authorization"] == "Bearer something-of-its-own"
    for secret in (door, session, here.token):
        assert secret not in told.body.decode()
    by_token = here.get("nosy")[2].decode() + here.get("nosy", Authorization=f"Bearer {here.token}")[2].decode()
    assert here.token not in by_token
    assert "X-Torpor-Token" not in by_token
    set_by_it = told.all("set-cookie")
    assert not [one for one in set_by_it if "torpor" in one or "domain" in one.lower()], set_by_it


def test_a_page_of_a_workspace_cannot_call_the_api_as_its_user(here: Product, browser: HttpBrowser) -> None:
    browser.go(f"http://nosy.localhost:{here.port}/")
    origin = f"http://nosy.localhost:{here.port}"
    api = f"http://localhost:{here.port}/api/v1"
    # The browser sends its cookie if both hosts are of one site.
    for method, path in (("POST", "/workspaces/site/undelete"), ("DELETE", "/workspaces/site"), ("POST", "/logout")):
        answer = browser.fetch(f"{api}{path}", method, Origin=origin, Sec_Fetch_Site="same-site")
        assert (answer.status, answer.json["code"]) == (403, "cross_site")
    reads = browser.fetch(f"{api}/workspaces", Origin=origin, Sec_Fetch_Site="same-site")
    asked = browser.fetch(f"{api}/workspaces", "OPTIONS", Origin=origin, Access_Control_Request_Method="DELETE")
    for answer in (reads, asked):
        assert not [name for name, _ in answer.headers if name.lower().startswith("access-control-")], "no page may read it"
    # The cookies of its own host are not accepted here.
    door = browser.cookies["nosy.localhost"]["torpor_door"]
    for headers in ({"Authorization": f"Bearer {door}"}, {"Cookie": f"torpor_session={door}"}):
        assert HttpBrowser(here.port).fetch(f"{api}/workspaces", **headers).status == 401
    room = f"http://localhost:{here.port}/.torpor/room/stop?workspace=nosy&stop=site"
    assert browser.fetch(room, "POST", Origin=origin, Sec_Fetch_Site="same-site").status == 403
    assert here.show("site")["desired_state"] == "RUNNING"


def test_a_page_of_one_workspace_cannot_request_another(here: Product, browser: HttpBrowser) -> None:
    for name in ("nosy", "site"):
        browser.go(f"http://{name}.localhost:{here.port}/")
    theirs = {"Origin": f"http://nosy.localhost:{here.port}", "Sec_Fetch_Site": "same-site"}
    for method in ("GET", "POST"):
        answer = browser.fetch(f"http://site.localhost:{here.port}/", method, **theirs)
        assert answer.status == 403
        assert b"precious" not in answer.body
    door = browser.cookies["nosy.localhost"]["torpor_door"]
    assert HttpBrowser(here.port).fetch(f"http://site.localhost:{here.port}/", Cookie=f"torpor_door={door}").status == 401


def port_of(here: Product, workspace: str) -> str:
    return here.ok("exec", workspace, "--", "sh", "-c", "echo $PORT").strip()


def test_a_workspace_cannot_reach_another_through_the_proxy(here: Product) -> None:
    front, port = f"http://127.0.0.1:{here.port}/", port_of(here, "site")
    ways = [f"{front} site.localhost:{here.port}", f"{front} {port}--site.localhost:{here.port}"]
    assert "OPEN" not in here.ok("exec", "nosy", "--", "python3", "-c", PRIES, *ways)


def test_a_workspace_cannot_reach_another_by_its_port(here: Product) -> None:
    here.must_confine("network")
    as_its_own = here.ok("exec", "nosy", "--", "python3", "-c", PRIES, f"http://127.0.0.1:{port_of(here, 'site')}/ localhost")
    assert "precious" not in as_its_own, "each has a loopback of its own"


def test_any_port_of_a_workspace_has_its_own_host(here: Product, browser: HttpBrowser) -> None:
    serve = (
        "mkdir -p dev; echo dev > dev/index.html; cd dev; "
        "setsid python3 -m http.server --bind 127.0.0.1 5173 >/dev/null 2>&1 & "
        # A process that still belongs to the command when that ends, ends with it: so the command ends when the port (in
        # hexadecimal) is open.
        "until grep -q ':1435 ' /proc/net/tcp; do sleep 0.1; done"
    )
    here.ok("exec", "site", "--", "sh", "-c", serve)

    def served() -> bytes | None:
        answer = browser.go(f"http://5173--site.localhost:{here.port}/")
        if answer.status == 200:
            return answer.body
        assert (answer.status, b"port 5173 of site" in answer.body) == (502, True)
        return None

    assert wait_until(served, every_s=0.1) == b"dev\n"
    assert browser.go(f"http://site.localhost:{here.port}/").body == b"precious\n"
    nothing = browser.go(f"http://5174--site.localhost:{here.port}/")
    assert nothing.status == 502


def test_requests_of_an_open_tab_do_not_wake_and_a_navigation_does(here: Product, browser: HttpBrowser) -> None:
    page = f"http://site.localhost:{here.port}/"
    assert browser.go(page).status == 200
    here.ok("stop", "site", "--wait")
    for _ in range(3):
        assert browser.fetch(page).status == 503
    follows = browser.fetch(f"{page}.torpor/standing?after=").json
    assert (follows["ready"], follows["can_wake"]) == (False, True)
    assert here.show("site")["desired_state"] == "STANDBY"

    shown = browser.go(page)
    assert (shown.status, b"site is starting" in shown.body) == (503, True)
    while not follows["ready"]:
        follows = browser.fetch(f"{page}.torpor/standing?after={follows['after']}").json
    assert browser.go(page).body == b"precious\n"

    here.ok("archive", "site", "--wait")
    assert here.get("site")[::2] == (200, b"precious\n"), "a program waits for it"
    wakes = [one for one in json.loads(here.ok("audit", "--json"))["items"] if one["action"] == "workspace.wake"]
    assert [(one["username"], one["how"], one["workspace"]) for one in wakes] == [
        ("admin", "TOKEN", "site"),
        ("admin", "DOOR", "site"),
    ]


def test_above_the_limit_another_workspace_can_be_stopped_first(here: Product, browser: HttpBrowser) -> None:
    here.ok("create", "fourth", "--template", "command", "--wait", "--", *SERVE_HOME)
    here.ok("stop", "fourth", "--wait")
    here.ok("create", "third", "--template", "command", "--wait", "--", *SERVE_HOME)
    page = f"http://fourth.localhost:{here.port}/"
    refused = browser.go(page)
    assert (refused.status, refused.all("retry-after")) == (503, ["30"])
    assert b"third" not in refused.body
    room = f"http://localhost:{here.port}/.torpor/room?workspace=fourth&back=%2F"
    assert room.replace("&", "&amp;").encode() in refused.body
    listed = browser.go(room)
    for name in (b"nosy", b"site", b"third"):
        assert b"<span>%s</span>" % name in listed.body
    stop = f"http://localhost:{here.port}/.torpor/room/stop?workspace=fourth&back=%2F&stop=third"
    made_room = browser.fetch(stop, "POST", Origin=f"http://localhost:{here.port}")
    assert (made_room.status, made_room.all("location")) == (303, [page])
    assert b"fourth is starting" in browser.go(page).body
    here.until("fourth", lambda seen: seen["phase"] == "RUNNING")
    assert here.show("third")["desired_state"] == "STANDBY"


def test_signing_out_ends_every_workspace_sign_in_at_once(here: Product, browser: HttpBrowser) -> None:
    page = f"http://nosy.localhost:{here.port}/"
    browser.go(page)
    door = browser.cookies["nosy.localhost"]["torpor_door"]
    assert browser.fetch(page).status == 200
    origin = f"http://localhost:{here.port}"
    assert browser.fetch(f"{origin}/api/v1/logout", "POST", Origin=origin).status == 204
    assert HttpBrowser(here.port).fetch(page, Cookie=f"torpor_door={door}").status == 401
