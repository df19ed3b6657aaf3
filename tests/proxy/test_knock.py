"""Is every cell of the table filled, and does each request mean what it should?"""

import uuid
from itertools import product

import pytest

from tests.support.builders import ID, workspace
from torpor.accounts import Caller, How
from torpor.domain.access import EVERY_SCOPE, Scope
from torpor.domain.hostnames import Hosts, ToWorkspace
from torpor.proxy.knock import KNOCK, Answer, Asks, What, Who, cookies, is_cross_site, read, what, who
from torpor.proxy.readiness import Standing
from torpor.proxy.request_head import Head
from torpor.store.user_store import User

HOSTS = Hosts("http://localhost:8080", "localhost")
SECURE = Hosts("https://torpor.example", "spaces.example")
HOST = (b"Host", b"ada.localhost:8080")
WAKES = {Answer.WAKE_AND_SHOW, Answer.WAKE_AND_HOLD}


def asking(*headers: tuple[bytes, bytes]) -> Asks:
    return read(Head(b"GET", b"/", b"HTTP/1.1", (HOST, *headers)))


def kind(*headers: tuple[bytes, bytes], method: bytes = b"GET", is_upgrade: bool = False) -> What:
    return what(asking(*headers), method, is_upgrade=is_upgrade)


def caller(
    username: str = "ada",
    *,
    is_admin: bool = False,
    how: How = How.TOKEN,
    scopes: frozenset[Scope] = EVERY_SCOPE,
    workspace_id: str | None = None,
) -> Caller:
    user = User(str(uuid.uuid4()), username, is_admin)
    return Caller(user, how, str(uuid.uuid4()), scopes, "test", workspace_id=workspace_id)


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("is_who", "kind", "stands"), list(product(Who, What, Standing)))
def test_the_whole_table(is_who: Who, kind: What, stands: Standing) -> None:
    said = KNOCK[is_who][kind][stands]
    assert (said is Answer.FORWARD) == (is_who is Who.MAY_USE and stands is Standing.READY)
    assert (said is Answer.SIGN_IN) == (is_who is Who.NOBODY and kind is What.NAVIGATION)
    if is_who is not Who.MAY_USE:
        assert len(set(KNOCK[is_who][kind].values())) == 1, "whoever may not come in learns nothing"
    if said in WAKES:
        assert kind in (What.NAVIGATION, What.PROGRAM), "a page's own sockets and requests never wake"
        assert stands is Standing.ASLEEP, "what wakes already is not woken again, and what is in trouble not at all"
    if said in (Answer.HOLD, Answer.WAKE_AND_HOLD):
        assert kind in (What.PROGRAM, What.UPGRADE), "a person is shown something"
        assert stands in (Standing.WAKING, Standing.ASLEEP)
    if said in (Answer.SHOW, Answer.WAKE_AND_SHOW):
        assert kind in (What.NAVIGATION, What.PROGRAM)


@pytest.mark.parametrize("kind", [What.NAVIGATION, What.PROGRAM])
def test_whoever_may_wake_does(kind: What) -> None:
    assert KNOCK[Who.MAY_USE][kind][Standing.ASLEEP] in WAKES


# ── who ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_who_somebody_is_for_a_workspace() -> None:
    shared = workspace(shares={"bob": "use", "eve": "manage"})
    assert who(None, shared) is Who.NOBODY
    assert who(caller("ada"), shared) is Who.MAY_USE
    assert who(caller("bob"), shared) is Who.MAY_USE
    assert who(caller("eve"), shared) is Who.MAY_USE
    assert who(caller("mallory"), shared) is Who.STRANGER
    assert who(caller("mallory", is_admin=True), shared) is Who.MAY_USE
    not_as_admin = caller("mallory", is_admin=True, scopes=EVERY_SCOPE - {Scope.ADMIN})
    assert who(not_as_admin, shared) is Who.STRANGER, "an administrator's token that was not made for that"
    assert who(caller("ada"), None) is Who.STRANGER


def test_a_token_must_be_made_for_it() -> None:
    assert who(caller(scopes=frozenset({Scope.READ, Scope.MANAGE})), workspace()) is Who.NOT_FOR_THIS
    assert who(caller(scopes=frozenset({Scope.USE})), workspace()) is Who.MAY_USE


def test_a_door_is_of_one_workspace() -> None:
    assert who(caller(how=How.DOOR, workspace_id=ID), workspace()) is Who.MAY_USE
    assert who(caller(how=How.DOOR, workspace_id=str(uuid.uuid4())), workspace()) is Who.NOBODY
    assert who(caller(how=How.DOOR, workspace_id=ID), None) is Who.NOBODY


# ── what ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

NAVIGATES = ((b"Sec-Fetch-Mode", b"navigate"), (b"Sec-Fetch-Dest", b"document"), (b"Accept", b"text/html,*/*"))


def test_a_browser_that_says_what_it_does() -> None:
    assert kind(*NAVIGATES) is What.NAVIGATION
    assert kind(*NAVIGATES, method=b"HEAD") is What.NAVIGATION
    assert kind(*NAVIGATES, method=b"POST") is What.SUBREQUEST
    assert kind((b"Sec-Fetch-Mode", b"navigate"), (b"Sec-Fetch-Dest", b"iframe"), (b"Accept", b"text/html")) is What.SUBREQUEST
    assert kind((b"Sec-Fetch-Mode", b"cors"), (b"Sec-Fetch-Dest", b"empty"), (b"Accept", b"text/html")) is What.SUBREQUEST
    assert kind((b"Sec-Fetch-Mode", b"no-cors"), (b"Sec-Fetch-Dest", b"image")) is What.SUBREQUEST


def test_a_browser_that_looks_ahead_goes_nowhere() -> None:
    assert kind(*NAVIGATES, (b"Sec-Purpose", b"prefetch;prerender")) is What.SUBREQUEST
    assert kind(*NAVIGATES, (b"Purpose", b"prefetch")) is What.SUBREQUEST


def test_a_browser_that_does_not_say() -> None:
    assert kind((b"Accept", b"text/html")) is What.NAVIGATION
    assert kind((b"Accept", b"*/*")) is What.SUBREQUEST
    assert kind((b"Accept", b"text/html"), (b"Origin", b"http://ada.localhost:8080")) is What.SUBREQUEST
    assert kind() is What.SUBREQUEST


def test_a_token_makes_a_program_of_it_and_an_upgrade_without_one_is_a_page_s() -> None:
    assert kind(is_upgrade=True) is What.UPGRADE
    for shown in ((b"Authorization", b"Bearer torpor_x"), (b"authorization", b"bearer  torpor_x "), (b"X-Torpor-Token", b"x")):
        assert kind(shown) is What.PROGRAM
        assert kind(shown, is_upgrade=True) is What.PROGRAM
    for not_ours in (b"Bearer other", b"Basic torpor_x", b"Bearer torpor_x y"):
        assert kind((b"Authorization", not_ours)) is What.SUBREQUEST, "that is between the page and its workspace"


def test_which_token_and_which_cookie() -> None:
    assert asking((b"Authorization", b"Bearer torpor_x")).token == "torpor_x"
    assert asking((b"Authorization", b"Bearer torpor_x"), (b"X-Torpor-Token", b"torpor_y")).token == "torpor_y"
    head = Head(
        b"GET", b"/", b"HTTP/1.1", (HOST, (b"Cookie", b"a=1; torpor_doors=2"), (b"Cookie", b" torpor_door=3;torpor_door=4"))
    )
    assert cookies(head, b"torpor_door") == ("3", "4"), "another host may have set the first for the whole domain"
    assert cookies(head, b"torpor_session") == ()
    many = b"; ".join(b"torpor_door=%d" % (number // 2) for number in range(1000))
    shown = cookies(Head(b"GET", b"/", b"HTTP/1.1", (HOST, (b"Cookie", many))), b"torpor_door")
    assert shown == ("0", "1", "2", "3", "4"), "each may cost a question"


# ── from where ────────────────────────────────────────────────────────────────────────────────────────────────────────

ADA = ToWorkspace("ada")


def crosses(kind: What, *headers: tuple[bytes, bytes], hosts: Hosts = HOSTS) -> bool:
    return is_cross_site(asking(*headers), kind, ADA, hosts)


def test_a_link_and_a_program_may_come_from_anywhere() -> None:
    for one in (What.NAVIGATION, What.PROGRAM):
        assert not crosses(one, (b"Origin", b"http://evil.example"), (b"Sec-Fetch-Site", b"cross-site"))


@pytest.mark.parametrize("kind", [What.SUBREQUEST, What.UPGRADE])
def test_the_ports_of_one_workspace_may_ask_each_other_and_nobody_else(kind: What) -> None:
    for ours in (b"http://ada.localhost:8080", b"http://5173--ada.localhost:8080"):
        assert not crosses(kind, (b"Origin", ours), (b"Sec-Fetch-Site", b"same-site"))
    for theirs in (
        b"http://bob.localhost:8080",
        b"http://localhost:8080",
        b"http://ada.localhost:9999",
        b"http://ada.localhost",
        b"http://evil.example",
        b"http://ada.localhost.evil.example:8080",
        b"null",
        b"",
    ):
        assert crosses(kind, (b"Origin", theirs)), theirs
    assert crosses(kind, (b"Origin", b"http://ada.localhost:8080"), (b"Origin", b"http://ada.localhost:8080"))


def test_without_an_origin_the_site_tells() -> None:
    for site, is_refused in ((b"same-origin", False), (b"none", False), (b"same-site", True), (b"cross-site", True)):
        assert crosses(What.SUBREQUEST, (b"Sec-Fetch-Site", site)) is is_refused
    assert not crosses(What.SUBREQUEST), "an old browser, or no browser at all"
    assert not crosses(What.UPGRADE), "a browser always says where a socket comes from"


@pytest.mark.parametrize("site", [b"same-site", b"cross-site"])
def test_without_an_origin_a_page_may_tell_that_it_is_of_the_same_workspace(site: bytes) -> None:
    for ours in (b"http://ada.localhost:8080/", b"http://5173--ada.localhost:8080/deep?down", b"HTTP://ADA.localhost:8080/"):
        assert not crosses(What.SUBREQUEST, (b"Sec-Fetch-Site", site), (b"Referer", ours)), ours
    for theirs in (
        b"http://bob.localhost:8080/",
        b"http://bob.localhost:8080/http://ada.localhost:8080/",
        b"http://localhost:8080/",
        b"http://ada.localhost:9999/",
        b"http://ada.localhost:8080@evil.example/",
        b"http://ada.localhost:8080",
        b"//ada.localhost:8080/",
        b"",
    ):
        assert crosses(What.SUBREQUEST, (b"Sec-Fetch-Site", site), (b"Referer", theirs)), theirs
    assert crosses(What.SUBREQUEST, (b"Origin", b"null"), (b"Referer", b"http://ada.localhost:8080/")), "an origin says more"


def test_a_secure_host_is_not_asked_by_an_insecure_page() -> None:
    def crosses_there(origin: bytes) -> bool:
        asks = read(Head(b"GET", b"/", b"HTTP/1.1", ((b"Host", b"ada.spaces.example"), (b"Origin", origin))))
        return is_cross_site(asks, What.SUBREQUEST, ADA, SECURE)

    assert not crosses_there(b"https://ada.spaces.example")
    assert crosses_there(b"http://ada.spaces.example")
    assert crosses_there(b"https://ada.spaces.example:8443")
