"""Sign-in at a workspace's own host: a code works once, soon, and only for the browser of the session."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from tests.accounts.test_sessions import refusal
from tests.support.accounts_stage import HOME, AccountsStage
from tests.support.waiting import until
from torpor.accounts import AuthMethod, Caller, digest
from torpor.accounts.accounts import DOOR_CODES_AT_MOST, DOORS_AT_MOST
from torpor.domain.errors import Refused

pytestmark = pytest.mark.anyio
NONCE = "what only this browser holds"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@dataclass(frozen=True)
class Knock:
    session: Caller
    workspace_id: str
    code: str


@pytest.fixture
async def knock(here: AccountsStage) -> Knock:
    await here.sign_up("ada")
    session = await here.session("ada")
    workspace_id = await here.workspace("demo", "ada")
    return Knock(session, workspace_id, await here.accounts.door_code(session, workspace_id, digest(NONCE)))


async def test_a_door_is_its_user_at_one_workspace(here: AccountsStage, knock: Knock) -> None:
    token, caller = await here.accounts.redeem(knock.code, NONCE, knock.workspace_id, came_from=HOME, user_agent="a browser")
    assert await here.accounts.recognise(token, came_from=HOME) == caller
    assert (caller.how, caller.user, caller.workspace_id) == (AuthMethod.DOOR, knock.session.user, knock.workspace_id)
    assert (caller.expires_at, caller.came_from) == (knock.session.expires_at, HOME)
    # The workspace cookie is not a session of its own.
    assert [one.id for one in await here.accounts.sessions(caller)] == [knock.session.credential_id]


async def test_a_code_is_good_once(here: AccountsStage, knock: Knock) -> None:
    await here.accounts.redeem(knock.code, NONCE, knock.workspace_id)
    assert await refusal(here.accounts.redeem(knock.code, NONCE, knock.workspace_id)) == "bad_door_code"


async def test_a_code_is_good_for_seconds(here: AccountsStage, knock: Knock) -> None:
    left_s = await here.db.fetchval("SELECT extract(epoch FROM expires_at - clock_timestamp()) FROM door_codes")
    assert 0 < left_s <= 30
    await here.db.execute("UPDATE door_codes SET expires_at = clock_timestamp()")
    assert await refusal(here.accounts.redeem(knock.code, NONCE, knock.workspace_id)) == "bad_door_code"


async def test_a_code_is_good_for_the_browser_that_asked_alone_and_used_up_by_any_other(
    here: AccountsStage, knock: Knock
) -> None:
    assert await refusal(here.accounts.redeem(knock.code, "another nonce", knock.workspace_id)) == "bad_door_code"
    assert await refusal(here.accounts.redeem(knock.code, NONCE, knock.workspace_id)) == "bad_door_code"


async def test_a_code_is_good_for_one_workspace(here: AccountsStage, knock: Knock) -> None:
    other = await here.workspace("other", "ada")
    assert await refusal(here.accounts.redeem(knock.code, NONCE, other)) == "bad_door_code"


async def test_what_was_never_given_out_is_no_code(here: AccountsStage, knock: Knock) -> None:
    assert await refusal(here.accounts.redeem("torpor_guess", NONCE, knock.workspace_id)) == "bad_door_code"
    assert await refusal(here.accounts.redeem(knock.code, NONCE, "no-id")) == "bad_door_code"


async def test_a_code_ends_with_its_session(here: AccountsStage, knock: Knock) -> None:
    await here.accounts.sign_out(knock.session)
    assert await refusal(here.accounts.redeem(knock.code, NONCE, knock.workspace_id)) == "bad_door_code"
    assert await refusal(here.accounts.door_code(knock.session, knock.workspace_id, digest(NONCE))) == "unauthorized"


async def test_a_door_ends_with_its_session_and_is_named_with_it(here: AccountsStage, knock: Knock) -> None:
    token, door = await here.accounts.redeem(knock.code, NONCE, knock.workspace_id)
    told: set[str] = set()
    here.accounts._revocations._listeners.append(lambda revoked: told.update(revoked.credential_ids))
    await here.accounts.sign_out(knock.session)
    assert await refusal(here.accounts.recognise(token)) == "unauthorized"
    assert told == {knock.session.credential_id, door.credential_id}


async def test_only_a_session_opens_doors(here: AccountsStage, knock: Knock) -> None:
    _, door = await here.accounts.redeem(knock.code, NONCE, knock.workspace_id)
    for caller in (here.admin, door):
        assert await refusal(here.accounts.door_code(caller, knock.workspace_id, digest(NONCE))) == "unauthorized"


async def test_a_browser_is_not_let_in_without_end(here: AccountsStage, knock: Knock) -> None:
    doors = [await here.accounts.redeem(knock.code, NONCE, knock.workspace_id)]
    told: set[str] = set()
    here.accounts._revocations._listeners.append(lambda revoked: told.update(revoked.credential_ids))
    for _ in range(DOORS_AT_MOST):
        code = await here.accounts.door_code(knock.session, knock.workspace_id, digest(NONCE))
        doors.append(await here.accounts.redeem(code, NONCE, knock.workspace_id))
    (first, caller), *rest = doors
    assert await refusal(here.accounts.recognise(first)) == "unauthorized"
    assert told == {caller.credential_id}
    for token, _ in rest:
        await here.accounts.recognise(token)


async def test_codes_that_nobody_comes_with_make_room(here: AccountsStage, knock: Knock) -> None:
    for _ in range(DOOR_CODES_AT_MOST):
        last = await here.accounts.door_code(knock.session, knock.workspace_id, digest(NONCE))
    assert await here.db.fetchval("SELECT count(*) FROM door_codes") == DOOR_CODES_AT_MOST
    assert await refusal(here.accounts.redeem(knock.code, NONCE, knock.workspace_id)) == "bad_door_code"
    await here.accounts.redeem(last, NONCE, knock.workspace_id)


# ── concurrent calls ──────────────────────────────────────────────────────────────────────────────────────────────────


async def until_waiting(here: AccountsStage) -> None:
    """A transaction waits for a row that another one has locked."""
    await until(lambda: here.db.fetchval(WAITING))


@pytest.fixture
def orderly() -> Iterator[None]:
    """The test causes no deadlock: each transaction waits for one that can go on."""
    with capture_logs() as said:
        yield
    assert [one for one in said if one["event"] == "deadlock"] == []


@pytest.mark.usefixtures("orderly")
async def test_a_session_that_ends_while_a_door_is_being_opened_takes_the_door_with_it(
    here: AccountsStage, knock: Knock
) -> None:
    async with here.store.writing() as opening:
        asked = await opening.take_door_code(digest(knock.code))
        assert asked is not None
        ending = asyncio.create_task(here.accounts.sign_out(knock.session))
        await until_waiting(here)
        assert await opening.create_door(digest("torpor_door"), asked, made_from=HOME, user_agent="a browser")
    await ending
    assert await refusal(here.accounts.recognise("torpor_door")) == "unauthorized"
    assert await refusal(here.accounts.recognise_again(knock.session)) == "unauthorized"


@pytest.mark.usefixtures("orderly")
async def test_a_door_that_is_opened_while_its_session_ends_stays_shut(here: AccountsStage, knock: Knock) -> None:
    async with here.store.writing() as ending:
        await ending._lock_credentials(knock.session.user.id)
        opening = asyncio.create_task(refusal(here.accounts.redeem(knock.code, NONCE, knock.workspace_id)))
        await until_waiting(here)
        assert await ending.end(knock.session.user.id, knock.session.credential_id, AuthMethod.SESSION) is not None
    assert await opening == "bad_door_code"
    assert await here.db.fetchval("SELECT count(*) FROM tokens WHERE kind <> 'TOKEN'") == 0


@pytest.mark.usefixtures("orderly")
async def test_many_sessions_end_beside_many_doors(here: AccountsStage, knock: Knock) -> None:
    """No call fails with `try again`, and no credential is left."""

    async def come_in(session: Caller, code: str) -> None:
        with contextlib.suppress(Refused):
            await here.accounts.redeem(code, NONCE, knock.workspace_id)
            await here.accounts.door_code(session, knock.workspace_id, digest(NONCE))

    async def come_and_go() -> None:
        session = await here.session("ada")
        codes = [await here.accounts.door_code(session, knock.workspace_id, digest(NONCE)) for _ in range(4)]
        await asyncio.gather(*(come_in(session, code) for code in codes), here.accounts.sign_out(session))

    for _ in range(5):
        await asyncio.gather(*(come_and_go() for _ in range(3)))
    left = await here.db.fetch("SELECT id FROM tokens WHERE kind IN ('SESSION', 'DOOR')")
    assert [str(row["id"]) for row in left] == [knock.session.credential_id]


async def test_who_signs_out_does_so_whatever_else_is_in_the_way(here: AccountsStage, knock: Knock) -> None:
    """Two transactions deadlock; the one that the database cancels is run again."""
    async with here.db.transaction():
        await here.db.execute("DELETE FROM door_codes")
        ending = asyncio.create_task(here.accounts.sign_out(knock.session))
        await until(lambda: here.db.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        await here.db.execute("SELECT FROM tokens WHERE id = $1::text::uuid FOR UPDATE", knock.session.credential_id)
    await ending
    assert await refusal(here.accounts.recognise_again(knock.session)) == "unauthorized"
