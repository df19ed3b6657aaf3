"""The gate: access, wakes, the pages for all others, and the number of database queries."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from tests.support.gate_stage import CONNECTS, FETCHES, GOES_THERE, PORT, SOMEWHERE, GateStage, gate_stage, head, header
from tests.support.users import person
from tests.support.waiting import until
from torpor.domain.access import Scope, Share
from torpor.domain.disk import Disk, require_space
from torpor.domain.limits import RunningLimits
from torpor.domain.states import Phase, Wish, WishOrigin
from torpor.proxy import workspace_gate as module
from torpor.proxy.gate import Forward, Reply
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.request_head import RequestHead, parse

pytestmark = pytest.mark.anyio

STOPPING = "operation = 'STOPPING', stage = 'CALL', op_id = id, op_started_at = now(), deadline_at = now()"


@pytest.fixture
async def here(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[GateStage]:
    async with gate_stage(database_url, redis_url, tmp_path) as made:
        yield made


# ── hosts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_requests_for_the_platform_host_go_to_the_platform(here: GateStage) -> None:
    way = await here.passed(target="/api/v1/me", host="")
    assert (way.address.unix_path, way.to_workspace, way.bearer) == ("/platform", False, None)
    assert (await here.told(*CONNECTS[:4], "Origin: http://evil.example", host="")).status == 403


async def test_a_foreign_host_name_is_421(here: GateStage) -> None:
    answer = here.gate.judge(_head("Host: evil.example"), SOMEWHERE)
    assert isinstance(answer, Reply)
    assert (answer.status, answer.outcome) == (421, RequestOutcome.MISDIRECTED)


def _head(*lines: str) -> RequestHead:
    return parse("\r\n".join(("GET / HTTP/1.1", *lines, "", "")).encode())


# ── without a credential ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_request_without_credentials_does_not_reveal_whether_a_workspace_exists(here: GateStage) -> None:
    await here.workspace()
    for headers, status in ((GOES_THERE, 303), (FETCHES, 401), (CONNECTS, 401), ((), 401)):
        there, nowhere = await here.told(*headers), await here.told(*headers, host="nobody")
        assert there.status == nowhere.status == status
        assert there.body.replace(b"ada", b"nobody") == nowhere.body
    assert here.hints == []


async def test_a_navigation_is_redirected_to_sign_in_and_returns(here: GateStage) -> None:
    ada = await here.workspace()
    session, _ = await here.session(here.ada)
    sent = await here.told(*GOES_THERE, target="/notes?a=1&b=%2F")
    where = urlsplit(header(sent, "Location"))
    asked = parse_qs(where.query)
    assert f"{where.scheme}://{where.netloc}{where.path}" == f"http://localhost:{PORT}/door"
    assert (asked["workspace"], asked["back"]) == (["ada"], ["/notes?a=1&b=%2F"])
    kept = header(sent, "Set-Cookie")
    nonce = kept.partition("=")[2].partition(";")[0]
    assert "; Path=/; HttpOnly; SameSite=Lax" in kept, "it must come along with the next knock, wherever that is"
    assert asked["nonce"] == [hashlib.sha256(nonce.encode()).hexdigest()]

    again = await here.told(*GOES_THERE, f"Cookie: torpor_knock={nonce}")
    assert nonce in header(again, "Set-Cookie"), "two tabs that knock at once are both let in"

    code = await here.accounts.door_code(session, ada.id, bytes.fromhex(asked["nonce"][0]))
    target = f"/.torpor/enter?code={code}&back=%2Fnotes%3Fa%3D1"
    stolen = await here.told(*GOES_THERE, target=target)
    assert stolen.status == 403, "without the nonce that this browser was given the code is worth nothing"
    entered = await here.told(*GOES_THERE, f"Cookie: torpor_knock={nonce}", target=target)
    assert (entered.status, header(entered, "Location")) == (303, "/notes?a=1")
    cookies = [value.decode() for name, value in entered.headers if name == b"Set-Cookie"]
    assert cookies[0].startswith("torpor_door=torpor_")
    assert "; Path=/; HttpOnly; SameSite=Lax; Max-Age=" in cookies[0]
    assert "Domain" not in cookies[0]
    door = f"Cookie: {cookies[0].partition(';')[0]}"
    way = await here.passed(*GOES_THERE, door)
    assert way.address.unix_path == f"/run/{ada.id}"

    used = await here.told(*GOES_THERE, f"Cookie: torpor_knock={nonce}", target=target)
    assert used.status == 403, "it is good once"


async def test_browser_data_of_the_former_workspace_is_cleared(here: GateStage) -> None:
    ada = await here.workspace()
    session, _ = await here.session(here.ada)
    nonce = "n" * 43

    async def enters(*kept: str) -> tuple[str | None, list[str]]:
        code = await here.accounts.door_code(session, ada.id, hashlib.sha256(nonce.encode()).digest())
        brings = "; ".join((f"torpor_knock={nonce}", *kept))
        entered = await here.told(*GOES_THERE, f"Cookie: {brings}", target=f"/.torpor/enter?code={code}")
        assert entered.status == 303
        cleared = [value.decode() for name, value in entered.headers if name == b"Clear-Site-Data"]
        cookies = [value.decode() for name, value in entered.headers if name == b"Set-Cookie"]
        assert cookies[2].startswith(f"torpor_workspace={ada.id}; Path=/; HttpOnly; SameSite=Lax; Max-Age=")
        return (cleared[0] if cleared else None), cookies[3:]

    clears, same = '"cache", "storage"', f"torpor_workspace={ada.id}"
    ended = ["theirs=; Path=/; Max-Age=0"]
    assert await enters("theirs=1") == (clears, ended), "nothing is known about what was here before"
    assert await enters("torpor_workspace=00000000-0000-0000-0000-000000000000", "theirs=1") == (clears, ended)
    assert await enters(same, "theirs=1") == (None, [])
    assert await enters(same, "torpor_workspace=00000000-0000-0000-0000-000000000000") == (clears, [])
    assert await enters("torpor_door=x", 'a"b=1', "=1") == (clears, []), "ours are kept, and what is no name is not said"


@pytest.mark.parametrize("back", ["//evil.example/", "/\\evil.example", "https://evil.example", "/a\x7f", ""])
async def test_a_return_path_to_another_origin_is_ignored(here: GateStage, back: str) -> None:
    ada = await here.workspace()
    session, _ = await here.session(here.ada)
    nonce = "n" * 43
    code = await here.accounts.door_code(session, ada.id, hashlib.sha256(nonce.encode()).digest())
    entered = await here.told(
        *GOES_THERE, f"Cookie: torpor_knock={nonce}", target=f"/.torpor/enter?code={code}&back={quote(back, safe='')}"
    )
    assert (entered.status, header(entered, "Location")) == (303, "/")


async def test_a_wrong_code_reveals_nothing_and_causes_few_queries(here: GateStage) -> None:
    await here.workspace()
    await here.until_heard()
    code, knocked = f"torpor_{'c' * 43}", f"Cookie: torpor_knock={'n' * 43}"
    for headers, guess in (((knocked,), code), ((knocked,), "guess"), ((), code)):
        target = f"/.torpor/enter?code={guess}"
        there = await here.told(*GOES_THERE, *headers, target=target)
        nowhere = await here.told(*GOES_THERE, *headers, target=target, host="nobody")
        assert there.status == nowhere.status == 403
        assert there == nowhere
    before = here.database.statements
    for number in range(50):
        for headers, guess in ((("Cookie: torpor_knock=guess",), code), ((knocked,), f"torpor_{number}")):
            await here.told(*GOES_THERE, *headers, target=f"/.torpor/enter?code={guess}", host=f"guess-{number}")
    polls = 1  # for lost events
    assert here.database.statements - before <= polls


async def test_invalid_parameters_of_own_paths_are_not_found(here: GateStage) -> None:
    session = f"Cookie: torpor_session={(await here.session(here.ada))[1]}"
    many = "&".join(f"a{number}=1" for number in range(11))
    for target, host in (
        (f"/.torpor/enter?{many}", "ada"),
        (f"/.torpor/standing?{many}", "ada"),
        (f"/.torpor/room?workspace=ada&{many}", ""),
        (f"/.torpor/room?workspace=ada&port={'1' * 5000}", ""),
        ("/.torpor/room?workspace=ada&port=65536", ""),
    ):
        assert (await here.told(*GOES_THERE, session, target=target, host=host)).status == 404


async def test_each_port_has_its_own_host(here: GateStage) -> None:
    ada = await here.workspace()
    token = await here.token(here.ada)
    assert (await here.passed(token)).address.preamble == b""
    assert (await here.passed(token, host="5173--ada")).address.preamble == b"5173\n"
    sent = await here.told(*GOES_THERE, host="5173--ada")
    assert parse_qs(urlsplit(header(sent, "Location")).query)["port"] == ["5173"]
    await here.becomes(ada, Phase.RUNNING)
    assert (await here.told(token, host="70000--ada")).status == 404


async def test_a_secure_installation_has_cookies_that_no_other_host_can_set(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    secure: dict[str, Any] = {"public_url": "https://torpor.example", "domain": "spaces.example"}
    async with gate_stage(database_url, redis_url, tmp_path, **secure) as here:
        ada = await here.workspace()
        session, _ = await here.session(here.ada)
        door = await here.door(session, ada)
        there = "Host: ada.spaces.example"
        gate = here.gate
        way = await _awaited(
            gate.judge(_head(there, *GOES_THERE, door.replace("torpor_door", "__Host-torpor_door")), SOMEWHERE)
        )
        assert isinstance(way, Forward)
        sent = await _awaited(gate.judge(_head(there, *GOES_THERE, door), SOMEWHERE))
        assert isinstance(sent, Reply)
        assert header(sent, "Location").startswith("https://torpor.example/door?")
        kept = header(sent, "Set-Cookie")
        assert kept.startswith("__Host-torpor_knock=")
        assert "; Path=/; " in kept, "without it browsers refuse the prefix"
        assert kept.endswith("; Secure")
        nonce = parse_qs(urlsplit(header(sent, "Location")).query)["nonce"][0]
        code = await here.accounts.door_code(session, ada.id, bytes.fromhex(nonce))
        brings = f"Cookie: torpor_knock={'n' * 43}; {kept.partition(';')[0]}"
        back = head(*GOES_THERE, brings, target=f"/.torpor/enter?code={code}", host="ada.spaces.example")
        entered = await _awaited(gate.judge(back, SOMEWHERE))
        assert entered.status == 303
        cookies = [value for name, value in entered.headers if name == b"Set-Cookie"]
        assert cookies[0].startswith(b"__Host-torpor_door=torpor_")
        assert cookies[2].startswith(b"__Host-torpor_workspace=")


async def _awaited(judged: Any) -> Any:
    return judged if isinstance(judged, Forward | Reply) else await judged


# ── known callers ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_workspace_without_access_is_not_found(here: GateStage) -> None:
    await here.workspace()
    bob = await person(here.database, "bob")
    token = await here.token(bob)
    there, nowhere = await here.told(token), await here.told(token, host="nobody")
    assert there.status == nowhere.status == 404
    assert there.body.replace(b"ada", b"nobody") == nowhere.body
    assert (await here.told(token, *GOES_THERE)).status == 404

    root = await person(here.database, "root", is_admin=True)
    assert isinstance(await here.ask(await here.token(root)), Forward)
    await here.wishes.sharing.share(here.ada, "ada", "bob", Share.USE)
    await here.until_heard()
    assert isinstance(await here.ask(token), Forward)


async def test_a_token_must_be_valid_and_have_the_scope(here: GateStage) -> None:
    await here.workspace()
    assert (await here.told("Authorization: Bearer torpor_nonsense")).status == 401
    assert (await here.told(f"X-Torpor-Token: {'x' * 5000}")).status == 401
    reads = await here.told(await here.token(here.ada, scopes=frozenset({Scope.READ})))
    assert (reads.status, reads.outcome) == (403, RequestOutcome.FORBIDDEN)
    uses = await here.token(here.ada, scopes=frozenset({Scope.USE}))
    assert isinstance(await here.ask(uses.replace("Authorization: Bearer", "X-Torpor-Token:")), Forward)


async def test_a_session_cookie_opens_no_workspace_and_a_workspace_cookie_only_its_own(here: GateStage) -> None:
    ada, other = await here.workspace(), await here.workspace("other")
    session, token = await here.session(here.ada)
    door = await here.door(session, ada)
    assert isinstance(await here.ask(*GOES_THERE, door), Forward)
    assert (await here.told(*GOES_THERE, door, host=other.name)).status == 303
    assert (await here.told(*FETCHES, door, host=other.name)).status == 401
    for shown in (f"Cookie: torpor_door={token}", f"Cookie: torpor_session={token}"):
        assert (await here.told(*FETCHES, shown)).status == 401
    assert (await here.told(f"Authorization: Bearer {token}")).status == 401
    as_token = door.replace("Cookie: torpor_door=", "X-Torpor-Token: ")
    assert (await here.told(as_token)).status == 401, "what a page might steal of a door is no token either"


async def test_a_cookie_is_refused_for_requests_from_another_workspace(here: GateStage) -> None:
    ada = await here.workspace()
    session, _ = await here.session(here.ada)
    door = await here.door(session, ada)
    theirs = f"Origin: http://evil.localhost:{PORT}"
    for headers in ((theirs,), ("Sec-Fetch-Site: same-site",), (*CONNECTS[:4], theirs)):
        refused = await here.told(door, *headers)
        assert (refused.status, refused.outcome) == (403, RequestOutcome.CROSS_SITE)
    assert (await here.told(door, theirs, method="POST")).status == 403
    assert isinstance(await here.ask(door, f"Origin: http://3000--ada.localhost:{PORT}", "Sec-Fetch-Site: same-site"), Forward)
    frame = ("Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe", "Accept: text/html")
    assert isinstance(await here.ask(door, *frame, f"Referer: http://3000--ada.localhost:{PORT}/"), Forward), "its own preview"
    for referer in ((), (f"Referer: http://evil.localhost:{PORT}/",)):
        assert (await here.told(door, *frame, *referer)).status == 403, "whoever came before, this one is asked"
    assert isinstance(await here.ask(door, *GOES_THERE[:2], "Accept: text/html", "Sec-Fetch-Site: cross-site"), Forward), (
        "a link"
    )
    asks = await here.told(door, *FETCHES[:2], "Accept: text/html", "Sec-Fetch-Site: cross-site")
    assert asks.status == 403, "where a link may lead, nothing may be asked for"


async def test_a_known_caller_and_route_cause_no_queries(here: GateStage) -> None:
    ada = await here.workspace()
    session, _ = await here.session(here.ada)
    door, token = await here.door(session, ada), await here.token(here.ada)
    await here.until_heard()
    for credential in (door, token):
        await here.ask(credential, *FETCHES)
    before = here.database.statements
    for _ in range(100):
        for headers in ((token,), (token, *FETCHES), (door, *FETCHES), (door, *GOES_THERE), (door, *CONNECTS)):
            assert isinstance(here.begin(*headers), Forward), "at once, without waiting"
    polls = 1  # for lost events
    assert here.database.statements - before <= polls


async def test_only_a_digest_of_long_headers_is_cached(here: GateStage, monkeypatch: pytest.MonkeyPatch) -> None:
    await here.workspace()
    token, house = await here.token(here.ada), here.inside.house
    long = f"Accept: {'x' * 60_000}"
    way = await here.passed(token, long)
    assert here.begin(token, long) is way, "it is known again all the same"
    assert (await here.passed(token, f"{long}y")).sorry is way.sorry, "what they have in common is there once"
    assert max(len(repr(shown)) for shown in house._ways) < 1000
    assert (await here.passed(token, f"{long},text/html")).sorry.body.startswith(b"<!doctype html>")

    monkeypatch.setattr(module, "SORRIES_KNOWN", 5)
    for port in range(3000, 3020):
        assert isinstance(await here.ask(token, host=f"{port}--ada"), Forward)
    assert len(house._sorries) <= 5
    assert len({id(made.way.sorry) for made in house._ways.values()}) <= 5


async def test_a_valid_workspace_cookie_counts_among_invalid_ones(here: GateStage) -> None:
    ada, other = await here.workspace(), await here.workspace("other")
    session, _ = await here.session(here.ada)
    door, of_other = await here.door(session, ada), await here.door(session, other)
    shown = f"Cookie: torpor_door=torpor_guess; {of_other.removeprefix('Cookie: ')}; {door.removeprefix('Cookie: ')}"
    for headers in (GOES_THERE, FETCHES, CONNECTS):
        assert (await here.passed(shown, *headers)).address.unix_path == f"/run/{ada.id}"
    assert (await here.told(shown, *FETCHES, target="/.torpor/standing")).status == 200
    assert isinstance(here.begin(shown, *FETCHES), Forward), "from then on at once"
    neither = f"Cookie: torpor_door=torpor_guess; {of_other.removeprefix('Cookie: ')}"
    assert (await here.told(neither, *FETCHES)).status == 401


# ── waking ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("phase", [Phase.STANDBY, Phase.ARCHIVED])
async def test_only_some_kinds_of_requests_wake_a_workspace(here: GateStage, phase: Phase) -> None:
    ada = await here.workspace(phase=phase)
    session, _ = await here.session(here.ada)
    door = await here.door(session, ada)
    for headers in (FETCHES, CONNECTS, (*GOES_THERE, "Sec-Purpose: prefetch")):
        refused = await here.told(door, *headers)
        assert (refused.status, refused.outcome) == (503, RequestOutcome.ASLEEP)
    assert (await here.told(door, "Sec-Fetch-Site: same-origin", method="POST")).status == 503
    assert (await here.look(ada)).desired_state is Wish(phase.value), "an open tab must not undo a stop"
    assert here.hints == []

    shown = await here.told(door, *GOES_THERE)
    assert (shown.status, shown.outcome) == (503, RequestOutcome.WAKING)
    assert b"ada is starting" in shown.body
    woken = await here.look(ada)
    assert (woken.desired_state, woken.wish_origin) == (Wish.RUNNING, WishOrigin.WAKE)
    assert here.hints == [ada.id]
    assert (await here.told(door, *FETCHES)).status == 503

    told = await here.db.fetchrow("SELECT username, how, came_from, workspace FROM audit WHERE action = 'workspace.wake'")
    assert tuple(told) == ("ada", "DOOR", SOMEWHERE, "ada")


async def test_a_request_of_a_program_waits_until_the_workspace_is_ready(here: GateStage) -> None:
    ada = await here.workspace(phase=Phase.STANDBY)
    session, _ = await here.session(here.ada)
    token, door = await here.token(here.ada), await here.door(session, ada)
    held = asyncio.ensure_future(here.ask(token))
    await until(lambda: _wishes(here, ada, Wish.RUNNING))
    socket = asyncio.ensure_future(here.ask(door, *CONNECTS))
    await asyncio.sleep(0.1)
    assert not held.done()
    assert not socket.done(), "a page's socket may wait for what wakes anyway"
    await here.becomes(ada, Phase.RUNNING)
    for one in (held, socket):
        way = await one
        assert isinstance(way, Forward)
        assert way.address.unix_path == f"/run/{ada.id}"


async def test_a_thousand_requests_cause_one_wake(here: GateStage) -> None:
    ada = await here.workspace(phase=Phase.STANDBY)
    session, _ = await here.session(here.ada)
    tokens = [await here.token(here.ada) for _ in range(10)]
    door = await here.door(session, ada)
    for known in (*tokens, door):
        await here.ask(known, *FETCHES, host="nobody")
    await here.ask(door, *FETCHES)
    before = here.database.statements
    held = [asyncio.ensure_future(here.ask(tokens[number % 10])) for number in range(1000)]
    shown = [asyncio.ensure_future(here.ask(door, *GOES_THERE)) for _ in range(100)]
    await until(lambda: _wishes(here, ada, Wish.RUNNING))
    for one in shown:
        answer = await one
        assert isinstance(answer, Reply)
        assert answer.outcome is RequestOutcome.WAKING
    await here.becomes(ada, Phase.RUNNING)
    ways = await asyncio.gather(*held)
    assert all(isinstance(way, Forward) for way in ways)
    assert (await here.look(ada)).wish_version == ada.wish_version + 1
    assert here.hints == [ada.id]
    # The wake itself, the row after each event, and the polls: the number of queries does not grow with the requests.
    assert here.database.statements - before < 100


async def _wishes(here: GateStage, workspace: Any, wish: Wish) -> bool:
    return (await here.look(workspace)).desired_state is wish


async def test_a_waiting_request_ends_with_503_after_wake_patience(database_url: str, redis_url: str, tmp_path: Path) -> None:
    async with gate_stage(database_url, redis_url, tmp_path, wake_patience=0.3) as here:
        await here.workspace(phase=Phase.STANDBY)
        refused = await here.told(await here.token(here.ada))
        assert (refused.status, refused.outcome, header(refused, "Retry-After")) == (503, RequestOutcome.WAKING, "2")


async def test_a_waiting_request_gets_the_error_of_the_workspace(here: GateStage) -> None:
    ada = await here.workspace(phase=Phase.STANDBY)
    token = await here.token(here.ada)
    held = asyncio.ensure_future(here.ask(token))
    await until(lambda: _wishes(here, ada, Wish.RUNNING))
    error = {
        "reason": "Timeout", "message": "it never came up", "is_terminal": True, "operation": "STARTING", "error_count": 1,
        "occurred_at": "2026-01-01T00:00:00+00:00", "wish_version": 1, "context": {},
    }  # fmt: skip
    await here.set(ada, f"phase = 'ERROR', error_info = '{json.dumps(error)}'")
    answer = await held
    assert isinstance(answer, Reply)
    assert answer.status == 503
    assert b"it never came up" in answer.body
    assert b"torpor explain ada" in answer.body
    again = await here.told(token, "Accept: text/html")
    assert b"/workspaces/ada" in again.body
    assert (await here.look(ada)).error is not None, "to knock clears no error"


async def test_a_waiting_request_that_lost_access_is_refused(here: GateStage) -> None:
    bob = await person(here.database, "bob")
    ada = await here.workspace(phase=Phase.STANDBY)
    await here.wishes.sharing.share(here.ada, "ada", "bob", Share.USE)
    await here.until_heard()
    held = asyncio.ensure_future(here.ask(await here.token(bob)))
    await until(lambda: _wishes(here, ada, Wish.RUNNING))
    await here.wishes.sharing.unshare(here.ada, "ada", "bob")
    await here.becomes(ada, Phase.RUNNING)
    answer = await held
    assert isinstance(answer, Reply)
    assert answer.status == 404


async def test_a_disconnected_client_does_not_cancel_the_wake_for_others(here: GateStage) -> None:
    ada = await here.workspace(phase=Phase.STANDBY)
    first, second = await here.token(here.ada), await here.token(here.ada)
    gone = asyncio.ensure_future(here.ask(first))
    await asyncio.sleep(0.01)
    stays = asyncio.ensure_future(here.ask(second))
    await asyncio.sleep(0)
    gone.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await gone
    await until(lambda: _wishes(here, ada, Wish.RUNNING))
    await here.becomes(ada, Phase.RUNNING)
    assert isinstance(await stays, Forward)


async def test_a_deleted_workspace_is_410_with_a_hint_to_undelete(here: GateStage) -> None:
    await here.workspace(phase=Phase.STANDBY)
    token = await here.token(here.ada)
    await here.wishes.delete(here.ada, "ada")
    await here.until_heard()
    gone = await here.told(token)
    assert gone.status == 410
    assert b"torpor undelete ada" in gone.body
    second = await here.workspace()
    await here.until_heard()
    assert (await here.passed(token)).address.unix_path == f"/run/{second.id}", "the living bearer of the name"


# ── while it is being stopped ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("under_way", ["", f", {STOPPING.replace('CALL', 'BEFORE_SLEEP')}"], ids=["at rest", "before_sleep"])
async def test_a_request_during_an_automatic_stop_keeps_the_workspace_running(here: GateStage, under_way: str) -> None:
    ada = await here.workspace()
    token = await here.token(here.ada)
    await here.set(ada, f"desired_state = 'STANDBY', wish_origin = 'IDLE'{under_way}")
    await here.until_heard()
    ways = await asyncio.gather(*(here.ask(token) for _ in range(20)))
    assert all(isinstance(way, Forward) for way in ways)
    awake = await here.look(ada)
    assert (awake.desired_state, awake.wish_origin) == (Wish.RUNNING, WishOrigin.WAKE)
    assert awake.wish_version == ada.wish_version + 1, "whoever was about to stop it finds another wish"
    assert here.hints == [ada.id]


@pytest.mark.parametrize(
    "change",
    [
        f"desired_state = 'STANDBY', wish_origin = 'IDLE', {STOPPING}",
        "desired_state = 'STANDBY', wish_origin = 'PERSON'",
        "desired_state = 'ARCHIVED', wish_origin = 'IDLE'",
    ],
)
async def test_a_request_of_a_page_does_not_change_another_requested_state(here: GateStage, change: str) -> None:
    ada = await here.workspace()
    session, _ = await here.session(here.ada)
    door = await here.door(session, ada)
    await here.set(ada, change)
    await here.until_heard()
    before = await here.look(ada)
    await here.ask(door, *FETCHES)
    assert await here.look(ada) == before
    assert here.hints == []


# ── responses of the gate ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_page_can_follow_the_status(here: GateStage) -> None:
    ada = await here.workspace(phase=Phase.ARCHIVED)
    session, _ = await here.session(here.ada)
    door = await here.door(session, ada)

    async def standing(after: str = "") -> Any:
        told = await here.told(door, *FETCHES, target=f"/.torpor/standing?after={after}")
        assert told.status == 200
        return json.loads(told.body)

    asleep = await standing()
    assert (asleep["ready"], asleep["can_wake"], asleep["phase"]) == (False, True, "ARCHIVED")
    following = asyncio.ensure_future(standing(asleep["after"]))
    await asyncio.sleep(0.1)
    assert not following.done()
    assert (await here.look(ada)).desired_state is Wish.ARCHIVED, "to look wakes nobody"
    shown = await here.told(door, *GOES_THERE)
    assert b'data-after="' in shown.body
    assert (await following)["title"] == "ada is starting"

    restoring = (
        "operation = 'RESTORING', stage = 'CALL', op_id = id, op_started_at = now(), deadline_at = now(), progress_total = 100"
    )
    await here.set(ada, f"{restoring}, progress_done = 43")
    await here.until_heard()
    told = await standing(asleep["after"])
    assert (told["operation"], told["progress"], told["steps"][0]["words"]) == ("RESTORING", 43, "Restoring the home")
    following = asyncio.ensure_future(standing(told["after"]))
    await here.becomes(ada, Phase.RUNNING, ", operation = 'NONE', stage = 'REST', op_started_at = NULL, deadline_at = NULL")
    async with asyncio.timeout(10):
        while not (told := await following)["ready"]:
            following = asyncio.ensure_future(standing(told["after"]))


async def test_a_page_is_warned_of_a_stop_and_polling_is_not_use(here: GateStage) -> None:
    ada = await here.workspace()
    await here.set(ada, "last_access_at = '-infinity', phase_changed_at = '-infinity', wished_at = '-infinity'")
    await here.until_heard()
    session, _ = await here.session(here.ada)
    door = await here.door(session, ada)

    async def standing(after: str = "") -> Any:
        return json.loads((await here.told(door, *FETCHES, target=f"/.torpor/standing?after={after}")).body)

    before = await standing()
    assert (before["ready"], before["sleeps_at"]) == (True, None)
    following = asyncio.ensure_future(standing(before["after"]))
    await here.set(ada, "sleeps_at = now() + interval '1 minute'")
    async with asyncio.timeout(10):
        warned = await following
    now = await here.look(ada)
    assert now.sleeps_at is not None
    assert warned["sleeps_at"] == now.sleeps_at.isoformat()
    assert now.last_access_at == (await here.look(ada)).last_access_at


async def test_paths_of_the_gate_are_never_forwarded(here: GateStage) -> None:
    ada = await here.workspace()
    session, _ = await here.session(here.ada)
    door = await here.door(session, ada)
    assert (await here.told(door, *FETCHES, target="/.torpor/anything")).status == 404
    assert (await here.told(*FETCHES, target="/.torpor/standing")).status == 401
    logo = await here.told(*FETCHES, target="/.torpor/logo.svg")
    assert (logo.status, header(logo, "Content-Type")) == (200, "image/svg+xml")
    bob = await person(here.database, "bob")
    assert (await here.told(await here.token(bob), target="/.torpor/standing")).status == 404


# ── without disk space ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_without_disk_space_a_wake_is_refused_and_keeps_the_requested_state(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    async def full(needed_bytes: int) -> None:
        require_space(Disk("/homes", 1 << 20), 1 << 30, needed_bytes)

    async with gate_stage(database_url, redis_url, tmp_path, space=full) as here:
        ada = await here.workspace(phase=Phase.STANDBY)
        session, _ = await here.session(here.ada)
        door = await here.door(session, ada)
        refused = await here.told(door, *GOES_THERE, target="/notes")
        assert (refused.status, refused.outcome) == (503, RequestOutcome.DISK_LOW)
        assert b"/homes) has about 1.0 MiB free" in refused.body
        assert (await here.told(await here.token(here.ada))).status == 503
        assert (await here.look(ada)).desired_state is Wish.STANDBY


# ── over the limit ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_above_the_limit_a_browser_is_sent_to_stop_another_workspace(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    async with gate_stage(database_url, redis_url, tmp_path, limits=RunningLimits(per_user=1, overall=9)) as here:
        running, ada = await here.workspace("busy"), await here.workspace(phase=Phase.STANDBY)
        session, cookie = await here.session(here.ada)
        door = await here.door(session, ada)
        refused = await here.told(door, *GOES_THERE, target="/notes")
        assert (refused.status, refused.outcome) == (503, RequestOutcome.OVER_LIMIT)
        assert b"busy" not in refused.body, "what runs in a workspace may read its host's pages"
        assert (await here.told(await here.token(here.ada))).status == 503
        assert (await here.look(ada)).desired_state is Wish.STANDBY, "a refused wake leaves the wish"

        room = "/.torpor/room?workspace=ada&back=%2Fnotes"
        assert room.replace("&", "&amp;") in refused.body.decode()
        signed_in = f"Cookie: torpor_session={cookie}"
        assert "next=" in header(await here.told(*GOES_THERE, target=room, host=""), "Location")
        listed = await here.told(*GOES_THERE, signed_in, target=room, host="")
        assert listed.status == 200
        assert b"<span>busy</span>" in listed.body
        stop = "/.torpor/room/stop?workspace=ada&back=%2Fnotes&stop=busy"
        assert stop.replace("&", "&amp;") in listed.body.decode()
        for origin in ("Accept: text/html", f"Origin: http://ada.localhost:{PORT}", "Origin: null"):
            assert (await here.told(signed_in, origin, target=stop, method="POST", host="")).status == 403
        assert (await here.look(running)).desired_state is Wish.RUNNING

        own = f"Origin: http://localhost:{PORT}"
        stopping = asyncio.ensure_future(here.told(signed_in, own, target=stop, method="POST", host=""))
        await until(lambda: _wishes(here, running, Wish.STANDBY))
        assert not stopping.done(), "there is room only once nothing of it runs any more"
        await here.becomes(running, Phase.STANDBY)
        assert header(await stopping, "Location") == f"http://ada.localhost:{PORT}/notes"
        assert (await here.told(door, *GOES_THERE)).outcome is RequestOutcome.WAKING


async def test_only_the_owner_is_offered_workspaces_to_stop(database_url: str, redis_url: str, tmp_path: Path) -> None:
    async with gate_stage(database_url, redis_url, tmp_path, limits=RunningLimits(per_user=1, overall=9)) as here:
        bob = await person(here.database, "bob")
        await here.workspace("busy")
        await here.workspace("bobs", by=bob)
        await here.workspace(phase=Phase.STANDBY)
        await here.wishes.sharing.share(here.ada, "ada", "bob", Share.USE)
        await here.until_heard()
        _, cookie = await here.session(bob)
        listed = await here.told(*GOES_THERE, f"Cookie: torpor_session={cookie}", target="/.torpor/room?workspace=ada", host="")
        assert b"busy" not in listed.body
        assert b"<form" not in listed.body
        assert b"Ask ada to stop one" in listed.body
