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


async def test_a_code_signs_its_user_in_at_one_workspace(here: AccountsStage, knock: Knock) -> None:
    token, caller = await here.accounts.redeem(knock.code, NONCE, knock.workspace_id, came_from=HOME, user_agent="a browser")
    assert await here.accounts.recognise(token, came_from=HOME) == caller
    assert (caller.how, caller.user, caller.workspace_id) == (AuthMethod.DOOR, knock.session.user, knock.workspace_id)
    assert (caller.expires_at, caller.came_from) == (knock.session.expires_at, HOME)
    # The workspace cookie is not a session of its own.
    assert [one.id for one in await here.accounts.sessions(caller)] == [knock.session.credential_id]


async def test_a_code_works_once(here: AccountsStage, knock: Knock) -> None:
    await here.accounts.redeem(knock.code, NONCE, knock.workspace_id)
    assert await refusal(here.accounts.redeem(knock.code, NONCE, knock.workspace_id)) == "bad_door_code"


async def test_a_code_expires_within_30_seconds(here: AccountsStage, knock: Knock) -> None:
    left_s = await here.db.fetchval("SELECT extract(epoch FROM expires_at - clock_timestamp()) FROM door_codes")
    assert 0 < left_s <= 30
    await here.db.execute("UPDATE door_codes SET expires_at = clock_timestamp()")
    assert await refusal(here.accounts.redeem(knock.code, NONCE, knock.workspace_id)) == "bad_door_code"


async def test_a_code_from_another_browser_is_refused_and_used_up(here: AccountsStage, knock: Knock) -> None:
    assert await refusal(here.accounts.redeem(knock.code, "another nonce", knock.workspace_id)) == "bad_door_code"
    assert await refusal(here.accounts.redeem(knock.code, NONCE, knock.workspace_id)) == "bad_door_code"


async def test_a_code_works_for_one_workspace(here: AccountsStage, knock: Knock) -> None:
    other = await here.workspace("other", "ada")
    assert await refusal(here.accounts.redeem(knock.code, NONCE, other)) == "bad_door_code"


async def test_an_invalid_code_is_refused(here: AccountsStage, knock: Knock) -> None:
    assert await refusal(here.accounts.redeem("torpor_guess", NONCE, knock.workspace_id)) == "bad_door_code"
    assert await refusal(here.accounts.redeem(knock.code, NONCE, "no-id")) == "bad_door_code"


async def test_a_code_ends_with_its_session(here: AccountsStage, knock: Knock) -> None:
    await here.accounts.sign_out(knock.session)
    assert await refusal(here.accounts.redeem(knock.code, NONCE, knock.workspace_id)) == "bad_door_code"
    assert await refusal(here.accounts.door_code(knock.session, knock.workspace_id, digest(NONCE))) == "unauthorized"


async def test_the_end_of_a_session_revokes_its_workspace_sign_ins(here: AccountsStage, knock: Knock) -> None:
    token, door = await here.accounts.redeem(knock.code, NONCE, knock.workspace_id)
    told: set[str] = set()
    here.accounts._revocations._listeners.append(lambda revoked: told.update(revoked.credential_ids))
    await here.accounts.sign_out(knock.session)
    assert await refusal(here.accounts.recognise(token)) == "unauthorized"
    assert told == {knock.session.credential_id, door.credential_id}


async def test_only_a_session_gets_a_code(here: AccountsStage, knock: Knock) -> None:
    _, door = await here.accounts.redeem(knock.code, NONCE, knock.workspace_id)
    for caller in (here.admin, door):
        assert await refusal(here.accounts.door_code(caller, knock.workspace_id, digest(NONCE))) == "unauthorized"


async def test_the_oldest_workspace_sign_in_ends_above_the_limit(here: AccountsStage, knock: Knock) -> None:
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


async def test_the_oldest_unused_code_is_removed_above_the_limit(here: AccountsStage, knock: Knock) -> None:
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
async def test_a_session_end_waits_for_a_sign_in_and_revokes_it(here: AccountsStage, knock: Knock) -> None:
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
async def test_a_code_is_refused_while_its_session_ends(here: AccountsStage, knock: Knock) -> None:
    async with here.store.writing() as ending:
        await ending._lock_credentials(knock.session.user.id)
        opening = asyncio.create_task(refusal(here.accounts.redeem(knock.code, NONCE, knock.workspace_id)))
        await until_waiting(here)
        assert await ending.end(knock.session.user.id, knock.session.credential_id, AuthMethod.SESSION) is not None
    assert await opening == "bad_door_code"
    assert await here.db.fetchval("SELECT count(*) FROM tokens WHERE kind <> 'TOKEN'") == 0


@pytest.mark.usefixtures("orderly")
async def test_concurrent_session_ends_and_sign_ins_leave_no_credential(here: AccountsStage, knock: Knock) -> None:
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


async def test_signing_out_is_retried_after_a_deadlock(here: AccountsStage, knock: Knock) -> None:
    """Two transactions deadlock; the one that the database cancels is run again."""
    async with here.db.transaction():
        await here.db.execute("DELETE FROM door_codes")
        ending = asyncio.create_task(here.accounts.sign_out(knock.session))
        await until(lambda: here.db.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        await here.db.execute("SELECT FROM tokens WHERE id = $1::text::uuid FOR UPDATE", knock.session.credential_id)
    await ending
    assert await refusal(here.accounts.recognise_again(knock.session)) == "unauthorized"
