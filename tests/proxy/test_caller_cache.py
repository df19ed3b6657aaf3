"""A recognized caller is cached, and loses all connections as soon as the access ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.proxy.open_gate import LOOPBACK
from tests.support.gate_stage import CONNECTS, FETCHES, GOES_THERE, PATIENCE_S, GateStage, gate_stage
from tests.support.users import accounts_of, person
from tests.support.waiting import until
from torpor.accounts import UserChange
from torpor.bus.revocations import Revocation
from torpor.domain.access import Share
from torpor.domain.errors import Unavailable
from torpor.domain.states import Phase
from torpor.ports import Address
from torpor.proxy import caller_cache as module
from torpor.proxy.caller_cache import CallerCache
from torpor.proxy.gate import Forward, Reply
from torpor.proxy.server import ProxyServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[GateStage]:
    async with gate_stage(database_url, redis_url, tmp_path) as made:
        yield made


def visitors_of(here: GateStage) -> CallerCache:
    return here.inside.house._visitors


async def test_concurrent_lookups_of_a_caller_cause_one_query(here: GateStage) -> None:
    await here.workspace()
    token = (await here.token(here.ada)).removeprefix("Authorization: Bearer ")
    visitors = visitors_of(here)
    assert visitors.known(token) is None
    before = here.database.statements
    found = await asyncio.gather(*(visitors.ask(token) for _ in range(50)))
    # One query for the caller, one for the time of use.
    assert here.database.statements - before <= 2
    assert {one.caller.user.username for one in found if one.caller} == {"ada"}
    assert visitors.known(token) is found[0]


async def test_a_cached_caller_is_checked_again_after_half_a_minute(
    database_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KNOWN_FOR_S", 0.2)
    async with gate_stage(database_url, redis_url, tmp_path) as here:
        await here.workspace()
        token = await here.token(here.ada)
        assert isinstance(await here.ask(token), Forward)
        # Without a message about the change.
        await here.db.execute("DELETE FROM tokens")
        await until(lambda: _is_refused(here, token))


async def test_the_end_of_a_session_cuts_its_connections_at_once(here: GateStage) -> None:
    ada = await here.workspace()
    session, _ = await here.session(here.ada)
    door, token = await here.door(session, ada), await here.token(here.ada)
    by_door, by_token = await here.passed(door, *CONNECTS), await here.passed(token, *CONNECTS)
    ties = [by_door.use.connected(), by_token.use.connected()]
    assert by_door.bearer != by_token.bearer
    await here.accounts.sign_out(session)
    assert set(here.cuts) == {by_door.bearer}
    assert (await here.told(door, *GOES_THERE)).status == 303
    assert isinstance(await here.ask(token, *FETCHES), Forward)
    for tie in ties:
        tie.closed()
        tie.closed()
    assert not visitors_of(here).has_open(ada.id)


async def test_a_sign_out_in_another_process_cuts_connections(here: GateStage) -> None:
    ada = await here.workspace()
    session, _ = await here.session(here.ada)
    door = await here.door(session, ada)
    way = await here.passed(door, *CONNECTS)
    way.use.connected()
    elsewhere = accounts_of(here.database, here.bus)
    await elsewhere.sign_out(session)
    await until(lambda: _is(set(here.cuts) == {way.bearer}))


async def test_deactivating_a_user_cuts_connections_and_refuses_the_token(here: GateStage) -> None:
    root = await person(here.database, "root", is_admin=True)
    await here.workspace()
    token = await here.token(here.ada)
    way = await here.passed(token, *CONNECTS)
    way.use.requested()
    await here.accounts.change_user(root, here.ada.user.id, UserChange(is_active=False))
    assert set(here.cuts) == {way.bearer}
    assert (await here.told(token)).status == 401


@pytest.mark.parametrize("change", [UserChange(max_running=7), UserChange(is_admin=True)])
async def test_a_change_without_lost_rights_cuts_no_connection(here: GateStage, change: UserChange) -> None:
    root = await person(here.database, "root", is_admin=True)
    await here.workspace()
    token = await here.token(here.ada)
    way = await here.passed(token, *CONNECTS)
    way.use.connected()
    await here.accounts.change_user(root, here.ada.user.id, change)
    visitors = visitors_of(here)
    await visitors._ask_again()
    visitors.forget()
    assert isinstance(await here.ask(token, *FETCHES), Forward)
    assert here.cuts == []
    known = visitors.known(token.removeprefix("Authorization: Bearer "))
    assert known is not None
    assert known.caller is not None
    assert (known.caller.user.max_running, known.caller.is_admin) in ((7, False), (None, True))


async def test_a_connection_that_opens_after_the_sign_out_is_cut(here: GateStage) -> None:
    ada = await here.workspace()
    session, _ = await here.session(here.ada)
    way = await here.passed(await here.door(session, ada), *CONNECTS)
    await here.accounts.sign_out(session)
    assert here.cuts == []
    way.use.connected()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert set(here.cuts) == {way.bearer}


async def test_removing_a_share_cuts_the_connections_of_that_user(here: GateStage) -> None:
    bob = await person(here.database, "bob")
    ada, other = await here.workspace(), await here.workspace("other")
    for name in ("ada", "other"):
        await here.wishes.sharing.share(here.ada, name, "bob", Share.USE)
    await here.until_heard()
    token, own = await here.token(bob), await here.token(here.ada)
    ways = [await here.passed(token), await here.passed(token, host="other"), await here.passed(own)]
    for way in ways:
        way.use.connected()
    await here.wishes.sharing.unshare(here.ada, "ada", "bob")
    await until(lambda: _is(bool(here.cuts)))
    await asyncio.sleep(0.1)
    assert set(here.cuts) == {ways[0].bearer}, "only there, and nobody else"
    assert ada.id in here.cuts[0]
    assert other.id not in here.cuts[0]


@pytest.mark.parametrize("how", ["sign out", "unshare"])
async def test_an_event_stream_ends_with_the_access(here: GateStage, tmp_path: Path, how: str) -> None:
    """An event stream does not count as use but stays open; through a real proxy server, as with a browser."""
    bob = await person(here.database, "bob")
    ada = await here.workspace()
    await here.wishes.sharing.share(here.ada, "ada", "bob", Share.USE)
    await here.until_heard()
    session, _ = await here.session(bob)
    door = await here.door(session, ada)

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await reader.read()
        writer.close()

    house, front = here.inside.house, ProxyServer(here.gate, port=0, hosts=LOOPBACK)
    house._address_of = lambda workspace, port: Address(unix_path=str(tmp_path / "events"))
    visitors_of(here)._cut = front.cut
    server = await asyncio.start_unix_server(pour, tmp_path / "events")
    await front.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write("\r\n".join(("GET / HTTP/1.1", "Host: ada.localhost:8080", door, *FETCHES, "", "")).encode())
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(b"data: 1")
            assert not house._usage._open, "it keeps nothing awake"  # type: ignore[attr-defined]
            assert visitors_of(here).has_open(ada.id)
            if how == "sign out":
                await here.accounts.sign_out(session)
            else:
                await here.wishes.sharing.unshare(here.ada, "ada", "bob")
            with contextlib.suppress(ConnectionError):
                await reader.read()
        assert not visitors_of(here).has_open(ada.id)
        writer.close()
    finally:
        await front.stop(grace_s=0)
        server.close()


async def test_after_a_gap_in_messages_every_caller_is_checked_again(here: GateStage) -> None:
    ada = await here.workspace()
    session, _ = await here.session(here.ada)
    door = await here.door(session, ada)
    way = await here.passed(door, *CONNECTS)
    way.use.connected()
    await here.db.execute("DELETE FROM tokens WHERE kind = 'SESSION'")
    assert isinstance(here.begin(door, *FETCHES), Forward), "nobody has heard of it"
    visitors_of(here).forget()
    await until(lambda: _is(set(here.cuts) == {way.bearer}))
    assert (await here.told(door, *FETCHES)).status == 401


async def test_known_callers_stay_while_the_database_is_unreachable(here: GateStage, monkeypatch: pytest.MonkeyPatch) -> None:
    await here.workspace()
    known, unknown = await here.token(here.ada), await here.token(here.ada)
    way = await here.passed(known)
    way.use.connected()

    async def out(token: str) -> None:
        raise Unavailable("the database cannot be reached")

    monkeypatch.setattr(here.accounts, "recognise", out)
    monkeypatch.setattr(here.accounts, "recognise_again", out)
    visitors_of(here).forget()
    await asyncio.sleep(0.1)
    assert here.cuts == []
    assert isinstance(await here.ask(known), Forward)
    assert (await here.told(unknown)).status == 503


async def test_a_revocation_during_a_database_outage_is_kept(here: GateStage, monkeypatch: pytest.MonkeyPatch) -> None:
    await here.workspace()
    shown = await here.token(here.ada)
    await here.passed(shown)
    visitors, token = visitors_of(here), shown.removeprefix("Authorization: Bearer ")
    known = visitors.known(token)
    assert known is not None
    assert known.caller is not None
    visitors.forget()
    is_asked, is_out = asyncio.Event(), asyncio.Event()

    async def out(token: str) -> None:
        is_asked.set()
        await is_out.wait()
        raise Unavailable("the database cannot be reached")

    monkeypatch.setattr(here.accounts, "recognise", out)
    asking = asyncio.ensure_future(here.ask(shown))
    await is_asked.wait()
    visitors.revoked(Revocation(frozenset({known.caller.credential_id})))
    is_out.set()
    answer = await asking
    assert isinstance(answer, Reply)
    assert answer.status == 503
    assert visitors.known(token) is None
    assert known.good_until == float("-inf")


async def test_wrong_tokens_do_not_evict_known_callers(here: GateStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLDS", 10)
    await here.workspace(phase=Phase.STANDBY)
    session, _ = await here.session(here.ada)
    door = await here.door(session, await here.look(await here.wishes.find(here.ada, "ada")))
    await here.ask(door, *FETCHES)
    for number in range(50):
        assert (await here.told(f"Authorization: Bearer torpor_{number}")).status == 401
    assert isinstance(here.begin(door, *FETCHES), Reply), "known without asking: it sleeps"
    assert len(visitors_of(here)._known) <= 10


async def _is_refused(here: GateStage, token: str) -> bool:
    verdict = await here.ask(token)
    return isinstance(verdict, Reply) and verdict.status == 401


async def _is(so: bool) -> bool:
    return so
