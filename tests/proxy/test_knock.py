"""The table of knocks is total, and each request has the right kind."""

import uuid
from itertools import product

import pytest

from tests.support.builders import ID, workspace
from torpor.accounts import AuthMethod, Caller
from torpor.domain.access import EVERY_SCOPE, Scope
from torpor.domain.hostnames import Hosts, WorkspaceHost
from torpor.proxy.knock import (
    KNOCK,
    CallerAccess,
    KnockAnswer,
    KnockHeaders,
    RequestKind,
    caller_access,
    cookies,
    is_cross_site,
    read_knock_headers,
    request_kind,
)
from torpor.proxy.readiness import Readiness
from torpor.proxy.request_head import RequestHead
from torpor.store.user_store import User

HOSTS = Hosts("http://localhost:8080", "localhost")
SECURE = Hosts("https://torpor.example", "spaces.example")
HOST = (b"Host", b"ada.localhost:8080")
WAKES = {KnockAnswer.WAKE_AND_SHOW, KnockAnswer.WAKE_AND_HOLD}


def asking(*headers: tuple[bytes, bytes]) -> KnockHeaders:
    return read_knock_headers(RequestHead(b"GET", b"/", b"HTTP/1.1", (HOST, *headers)))


def kind(*headers: tuple[bytes, bytes], method: bytes = b"GET", is_upgrade: bool = False) -> RequestKind:
    return request_kind(asking(*headers), method, is_upgrade=is_upgrade)


def caller(
    username: str = "ada",
    *,
    is_admin: bool = False,
    how: AuthMethod = AuthMethod.TOKEN,
    scopes: frozenset[Scope] = EVERY_SCOPE,
    workspace_id: str | None = None,
) -> Caller:
    user = User(str(uuid.uuid4()), username, is_admin)
    return Caller(user, how, str(uuid.uuid4()), scopes, "test", workspace_id=workspace_id)


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("is_who", "kind", "stands"), list(product(CallerAccess, RequestKind, Readiness)))
def test_the_whole_table(is_who: CallerAccess, kind: RequestKind, stands: Readiness) -> None:
    said = KNOCK[is_who][kind][stands]
    assert (said is KnockAnswer.FORWARD) == (is_who is CallerAccess.MAY_USE and stands is Readiness.READY)
    assert (said is KnockAnswer.SIGN_IN) == (is_who is CallerAccess.NOBODY and kind is RequestKind.NAVIGATION)
    if is_who is not CallerAccess.MAY_USE:
        assert len(set(KNOCK[is_who][kind].values())) == 1, "whoever may not come in learns nothing"
    if said in WAKES:
        assert kind in (RequestKind.NAVIGATION, RequestKind.PROGRAM), "a page's own sockets and requests never wake"
        assert stands is Readiness.ASLEEP, "what wakes already is not woken again, and what is in trouble not at all"
    if said in (KnockAnswer.HOLD, KnockAnswer.WAKE_AND_HOLD):
        assert kind in (RequestKind.PROGRAM, RequestKind.UPGRADE), "a person is shown something"
        assert stands in (Readiness.WAKING, Readiness.ASLEEP)
    if said in (KnockAnswer.SHOW, KnockAnswer.WAKE_AND_SHOW):
        assert kind in (RequestKind.NAVIGATION, RequestKind.PROGRAM)


@pytest.mark.parametrize("kind", [RequestKind.NAVIGATION, RequestKind.PROGRAM])
def test_a_caller_who_may_use_a_stopped_workspace_wakes_it(kind: RequestKind) -> None:
    assert KNOCK[CallerAccess.MAY_USE][kind][Readiness.ASLEEP] in WAKES


# ── access ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_access_of_a_caller_follows_from_owner_and_shares() -> None:
    shared = workspace(shares={"bob": "use", "eve": "manage"})
    assert caller_access(None, shared) is CallerAccess.NOBODY
    assert caller_access(caller("ada"), shared) is CallerAccess.MAY_USE
    assert caller_access(caller("bob"), shared) is CallerAccess.MAY_USE
    assert caller_access(caller("eve"), shared) is CallerAccess.MAY_USE
    assert caller_access(caller("mallory"), shared) is CallerAccess.STRANGER
    assert caller_access(caller("mallory", is_admin=True), shared) is CallerAccess.MAY_USE
    not_as_admin = caller("mallory", is_admin=True, scopes=EVERY_SCOPE - {Scope.ADMIN})
    assert caller_access(not_as_admin, shared) is CallerAccess.STRANGER, "an administrator's token that was not made for that"
    assert caller_access(caller("ada"), None) is CallerAccess.STRANGER


def test_a_token_needs_the_scope_use() -> None:
    assert caller_access(caller(scopes=frozenset({Scope.READ, Scope.MANAGE})), workspace()) is CallerAccess.NOT_FOR_THIS
    assert caller_access(caller(scopes=frozenset({Scope.USE})), workspace()) is CallerAccess.MAY_USE


def test_a_workspace_cookie_is_valid_for_one_workspace() -> None:
    assert caller_access(caller(how=AuthMethod.DOOR, workspace_id=ID), workspace()) is CallerAccess.MAY_USE
    assert caller_access(caller(how=AuthMethod.DOOR, workspace_id=str(uuid.uuid4())), workspace()) is CallerAccess.NOBODY
    assert caller_access(caller(how=AuthMethod.DOOR, workspace_id=ID), None) is CallerAccess.NOBODY


# ── kinds of requests ─────────────────────────────────────────────────────────────────────────────────────────────────

NAVIGATES = ((b"Sec-Fetch-Mode", b"navigate"), (b"Sec-Fetch-Dest", b"document"), (b"Accept", b"text/html,*/*"))


def test_fetch_metadata_determines_the_kind_of_request() -> None:
    assert kind(*NAVIGATES) is RequestKind.NAVIGATION
    assert kind(*NAVIGATES, method=b"HEAD") is RequestKind.NAVIGATION
    assert kind(*NAVIGATES, method=b"POST") is RequestKind.SUBREQUEST
    assert (
        kind((b"Sec-Fetch-Mode", b"navigate"), (b"Sec-Fetch-Dest", b"iframe"), (b"Accept", b"text/html"))
        is RequestKind.SUBREQUEST
    )
    assert (
        kind((b"Sec-Fetch-Mode", b"cors"), (b"Sec-Fetch-Dest", b"empty"), (b"Accept", b"text/html")) is RequestKind.SUBREQUEST
    )
    assert kind((b"Sec-Fetch-Mode", b"no-cors"), (b"Sec-Fetch-Dest", b"image")) is RequestKind.SUBREQUEST


def test_a_prefetch_is_not_a_navigation() -> None:
    assert kind(*NAVIGATES, (b"Sec-Purpose", b"prefetch;prerender")) is RequestKind.SUBREQUEST
    assert kind(*NAVIGATES, (b"Purpose", b"prefetch")) is RequestKind.SUBREQUEST


def test_without_fetch_metadata_the_accept_header_determines_the_kind() -> None:
    assert kind((b"Accept", b"text/html")) is RequestKind.NAVIGATION
    assert kind((b"Accept", b"*/*")) is RequestKind.SUBREQUEST
    assert kind((b"Accept", b"text/html"), (b"Origin", b"http://ada.localhost:8080")) is RequestKind.SUBREQUEST
    assert kind() is RequestKind.SUBREQUEST


def test_a_token_makes_a_request_one_of_a_program() -> None:
    assert kind(is_upgrade=True) is RequestKind.UPGRADE
    for shown in ((b"Authorization", b"Bearer torpor_x"), (b"authorization", b"bearer  torpor_x "), (b"X-Torpor-Token", b"x")):
        assert kind(shown) is RequestKind.PROGRAM
        assert kind(shown, is_upgrade=True) is RequestKind.PROGRAM
    for not_ours in (b"Bearer other", b"Basic torpor_x", b"Bearer torpor_x y"):
        assert kind((b"Authorization", not_ours)) is RequestKind.SUBREQUEST, "that is between the page and its workspace"


def test_tokens_and_cookies_are_read_from_the_head() -> None:
    assert asking((b"Authorization", b"Bearer torpor_x")).token == "torpor_x"
    assert asking((b"Authorization", b"Bearer torpor_x"), (b"X-Torpor-Token", b"torpor_y")).token == "torpor_y"
    head = RequestHead(
        b"GET", b"/", b"HTTP/1.1", (HOST, (b"Cookie", b"a=1; torpor_doors=2"), (b"Cookie", b" torpor_door=3;torpor_door=4"))
    )
    assert cookies(head, b"torpor_door") == ("3", "4"), "another host may have set the first for the whole domain"
    assert cookies(head, b"torpor_session") == ()
    many = b"; ".join(b"torpor_door=%d" % (number // 2) for number in range(1000))
    shown = cookies(RequestHead(b"GET", b"/", b"HTTP/1.1", (HOST, (b"Cookie", many))), b"torpor_door")
    assert shown == ("0", "1", "2", "3", "4"), "each may cost a question"


# ── origins ───────────────────────────────────────────────────────────────────────────────────────────────────────────

ADA = WorkspaceHost("ada")


def crosses(kind: RequestKind, *headers: tuple[bytes, bytes], hosts: Hosts = HOSTS) -> bool:
    return is_cross_site(asking(*headers), kind, ADA, hosts)


def test_links_and_programs_are_accepted_from_any_origin() -> None:
    for one in (RequestKind.NAVIGATION, RequestKind.PROGRAM):
        assert not crosses(one, (b"Origin", b"http://evil.example"), (b"Sec-Fetch-Site", b"cross-site"))


@pytest.mark.parametrize("kind", [RequestKind.SUBREQUEST, RequestKind.UPGRADE])
def test_ports_of_one_workspace_may_request_each_other_and_no_other_origin(kind: RequestKind) -> None:
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


def test_without_an_origin_the_fetch_site_decides() -> None:
    for site, is_refused in ((b"same-origin", False), (b"none", False), (b"same-site", True), (b"cross-site", True)):
        assert crosses(RequestKind.SUBREQUEST, (b"Sec-Fetch-Site", site)) is is_refused
    assert not crosses(RequestKind.SUBREQUEST), "an old browser, or no browser at all"
    assert not crosses(RequestKind.UPGRADE), "a browser always says where a socket comes from"


@pytest.mark.parametrize("site", [b"same-site", b"cross-site"])
def test_without_an_origin_a_referer_of_the_same_workspace_is_accepted(site: bytes) -> None:
    for ours in (b"http://ada.localhost:8080/", b"http://5173--ada.localhost:8080/deep?down", b"HTTP://ADA.localhost:8080/"):
        assert not crosses(RequestKind.SUBREQUEST, (b"Sec-Fetch-Site", site), (b"Referer", ours)), ours
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
        assert crosses(RequestKind.SUBREQUEST, (b"Sec-Fetch-Site", site), (b"Referer", theirs)), theirs
    assert crosses(RequestKind.SUBREQUEST, (b"Origin", b"null"), (b"Referer", b"http://ada.localhost:8080/")), (
        "an origin says more"
    )


def test_a_request_from_an_http_page_to_an_https_host_is_refused() -> None:
    def crosses_there(origin: bytes) -> bool:
        asks = read_knock_headers(
            RequestHead(b"GET", b"/", b"HTTP/1.1", ((b"Host", b"ada.spaces.example"), (b"Origin", origin)))
        )
        return is_cross_site(asks, RequestKind.SUBREQUEST, ADA, SECURE)

    assert not crosses_there(b"https://ada.spaces.example")
    assert crosses_there(b"http://ada.spaces.example")
    assert crosses_there(b"https://ada.spaces.example:8443")
