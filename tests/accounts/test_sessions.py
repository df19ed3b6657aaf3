"""Sessions: a right password starts one, and all access stops at once when it ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.support.accounts_stage import ELSEWHERE, HOME, PASSWORD, AccountsStage, quick
from tests.support.valkey import until_listened
from tests.support.waiting import until
from torpor.accounts import Accounts, AuthMethod, Caller, UserChange, digest
from torpor.accounts.accounts import SESSIONS_AT_MOST, ProviderIdentity
from torpor.bus.login_throttle import OF_ONE_ADDRESS, OF_ONE_NAME, Throttle
from torpor.bus.revocations import Revocations
from torpor.domain.access import EVERY_SCOPE
from torpor.domain.errors import Refused, Unavailable
from torpor.testing.defaults import DEFAULTS

pytestmark = pytest.mark.anyio
PATIENCE_S = 20


async def refusal(asked: object) -> str:
    with pytest.raises(Refused) as refused:
        await asked  # type: ignore[misc]
    return refused.value.code


async def test_a_session_has_every_scope_of_its_user(here: AccountsStage) -> None:
    user_id = await here.sign_up("ada")
    caller = await here.accounts.recognise(await here.sign_in("ada"), came_from=HOME)
    assert (caller.user.id, caller.user.username, caller.how, caller.came_from) == (user_id, "ada", AuthMethod.SESSION, HOME)
    assert caller.scopes == EVERY_SCOPE
    assert caller.expires_at is not None
    (session,) = await here.accounts.sessions(caller)
    assert (session.id, session.made_from, session.user_agent) == (caller.credential_id, HOME, "a browser")


async def test_spaces_and_case_of_a_username_do_not_matter(here: AccountsStage) -> None:
    await here.sign_up("ada")
    assert (await here.accounts.recognise(await here.accounts.sign_in(" Ada ", PASSWORD))).user.username == "ada"


@pytest.mark.parametrize(("username", "password"), [("ada", "wrong"), ("ada", ""), ("eve", PASSWORD), ("", PASSWORD)])
async def test_a_wrong_name_and_a_wrong_password_have_the_same_error(here: AccountsStage, username: str, password: str) -> None:
    await here.sign_up("ada")
    with pytest.raises(Refused) as refused:
        await here.accounts.sign_in(username, password, came_from=HOME)
    assert (refused.value.code, refused.value.message) == ("bad_credentials", "username or password is wrong")


async def test_a_user_without_a_password_cannot_sign_in_with_one(here: AccountsStage) -> None:
    await here.accounts.create_user(here.admin, "robot")
    assert await refusal(here.accounts.sign_in("robot", "")) == "bad_credentials"


async def test_the_database_stores_no_secret(here: AccountsStage) -> None:
    """A reader of the whole database cannot act as a user."""
    await here.sign_up("ada")
    token = await here.sign_in("ada")
    caller = await here.accounts.recognise(token)
    _, secret = await here.accounts.make_token(caller, "robot", EVERY_SCOPE, None)
    code = await here.accounts.door_code(caller, await here.workspace("demo", "ada"), digest("a nonce"))
    tables = [row["tablename"] for row in await here.db.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
    rows = [str(row) for table in tables for row in await here.db.fetch(f'SELECT "{table}"::text FROM "{table}"')]
    everything = "\n".join(rows)
    assert digest(token).hex() in everything
    assert digest(secret).hex() in everything
    assert digest(code).hex() in everything
    for told in (token, secret, code, "a nonce", PASSWORD):
        assert told not in everything
        assert told.encode().hex() not in everything
    assert "$argon2id$" in everything


async def test_a_session_expires(here: AccountsStage) -> None:
    await here.sign_up("ada")
    token = await here.sign_in("ada")
    caller = await here.accounts.recognise(token)
    await here.db.execute("UPDATE tokens SET expires_at = now() WHERE digest = $1", digest(token))
    assert await refusal(here.accounts.recognise(token)) == "unauthorized"
    assert await refusal(here.accounts.recognise_again(caller)) == "unauthorized"
    assert await here.accounts.sessions(caller) == []
    # Expired sessions are deleted.
    await here.sign_in("ada")
    assert await here.db.fetchval("SELECT count(*) FROM tokens WHERE digest = $1", digest(token)) == 0


async def test_the_session_ttl_is_configurable(here: AccountsStage) -> None:
    await here.sign_up("ada")
    accounts = here.another_process(session_ttl_s=3600)
    await accounts.recognise(await accounts.sign_in("ada", PASSWORD))
    lives_s = await here.db.fetchval("SELECT extract(epoch FROM expires_at - created_at) FROM tokens WHERE kind = 'SESSION'")
    assert lives_s == 3600


async def test_the_oldest_session_ends_above_the_limit(here: AccountsStage) -> None:
    await here.sign_up("ada")
    first = await here.sign_in("ada")
    latest = [await here.sign_in("ada") for _ in range(SESSIONS_AT_MOST)][-1]
    assert await refusal(here.accounts.recognise(first)) == "unauthorized"
    assert len(await here.accounts.sessions(await here.accounts.recognise(latest))) == SESSIONS_AT_MOST


async def test_a_password_is_hashed_again_when_the_parameters_have_changed(here: AccountsStage) -> None:
    await here.sign_up("ada")
    before = await here.db.fetchval("SELECT password FROM users WHERE username = 'ada'")
    stricter = Accounts(
        here.store, Revocations(here.bus), Throttle(here.bus), session_ttl_s=DEFAULTS.session_ttl, passwords=quick(time_cost=2)
    )
    await stricter.sign_in("ada", PASSWORD)
    after = await here.db.fetchval("SELECT password FROM users WHERE username = 'ada'")
    assert ("t=1" in before, "t=2" in after) == (True, True)
    await here.sign_in("ada")


# ── guesses ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def guess(here: AccountsStage, username: str, came_from: str) -> str:
    return await refusal(here.accounts.sign_in(username, "wrong", came_from=came_from))


async def test_too_many_wrong_passwords_are_refused_with_retry_after(here: AccountsStage) -> None:
    await here.sign_up("ada")
    assert [await guess(here, "ada", ELSEWHERE) for _ in range(OF_ONE_NAME)] == ["bad_credentials"] * OF_ONE_NAME
    with pytest.raises(Refused) as refused:
        await here.sign_in("ada", came_from=ELSEWHERE)
    assert refused.value.code == "too_many_sign_ins"
    assert isinstance(wait_s := refused.value.context["retry_after_s"], int)
    assert 0 < wait_s <= 900


async def test_wrong_passwords_do_not_lock_out_another_address(here: AccountsStage) -> None:
    await here.sign_up("ada")
    for number in range(3 * OF_ONE_NAME):
        await guess(here, "ada", f"198.51.100.{number % 3}")
    assert await guess(here, "ada", "198.51.100.0") == "too_many_sign_ins"
    assert (await here.accounts.recognise(await here.sign_in("ada", came_from=HOME))).user.username == "ada"


async def test_one_address_has_a_limit_over_all_usernames(here: AccountsStage) -> None:
    await here.sign_up("ada")
    said = [await guess(here, f"user{number}", ELSEWHERE) for number in range(OF_ONE_ADDRESS + 1)]
    assert said == ["bad_credentials"] * OF_ONE_ADDRESS + ["too_many_sign_ins"]
    assert await refusal(here.sign_in("ada", came_from=ELSEWHERE)) == "too_many_sign_ins"
    await here.sign_in("ada", came_from=HOME)


async def test_a_correct_password_resets_the_count(here: AccountsStage) -> None:
    await here.sign_up("ada")
    for _ in range(3):
        for _ in range(OF_ONE_NAME - 1):
            assert await guess(here, "ada", HOME) == "bad_credentials"
        await here.sign_in("ada")


async def test_wrong_old_passwords_count_as_failed_sign_ins(here: AccountsStage) -> None:
    await here.sign_up("ada")
    caller = await here.session("ada")
    for _ in range(OF_ONE_NAME):
        assert await refusal(here.accounts.change_password(caller, "wrong", "another password")) == "wrong_password"
    assert await refusal(here.accounts.change_password(caller, PASSWORD, "another password")) == "too_many_sign_ins"


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def another_process(here: AccountsStage) -> AsyncIterator[Accounts]:
    """Another process, which gets revocations only through Valkey."""
    there = here.another_process()
    listening = asyncio.create_task(there.run())
    await until_listened(here.bus)
    try:
        yield there
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


@contextlib.asynccontextmanager
async def watched(there: Accounts, *callers: Caller) -> AsyncIterator[list[asyncio.Task[None]]]:
    watching = [asyncio.create_task(there.until_ended(caller)) for caller in callers]

    def all_listen() -> bool:
        """Each has checked once, and only waits for news from then on."""
        listening = [one for one in there._watching._watched if one.news._waiters]
        return len(listening) == len(callers) or any(one.done() for one in watching)

    await until(all_listen)
    assert not any(one.done() for one in watching)
    try:
        yield watching
    finally:
        for one in watching:
            one.cancel()
        await asyncio.gather(*watching, return_exceptions=True)


async def ended(*watching: asyncio.Task[None]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*watching)


async def test_a_session_ends_in_all_processes_and_no_other_session_ends(here: AccountsStage) -> None:
    await here.sign_up("ada")
    first, second = await here.session("ada"), await here.session("ada")
    async with another_process(here) as there, watched(there, first, second) as (one, other):
        await here.accounts.sign_out(first)
        await ended(one)
        assert not other.done()
        await here.accounts.end_session(second, second.credential_id)
        await ended(other)
    assert await refusal(here.accounts.recognise_again(first)) == "unauthorized"


async def test_a_deactivated_user_is_signed_out_everywhere(here: AccountsStage) -> None:
    await here.sign_up("ada")
    session = await here.session("ada")
    _, secret = await here.accounts.make_token(session, "robot", EVERY_SCOPE, None)
    token = await here.accounts.recognise(secret)
    async with another_process(here) as there, watched(there, session, token, here.admin) as (one, two, admin):
        await here.accounts.change_user(here.admin, "ada", UserChange(is_active=False))
        await ended(one, two)
        assert not admin.done()
    assert await refusal(here.accounts.recognise(secret)) == "unauthorized"
    assert await refusal(here.sign_in("ada")) == "bad_credentials"
    # When the user is active again, the API tokens work again; browsers must sign in.
    await here.accounts.change_user(here.admin, "ada", UserChange(is_active=True))
    assert (await here.accounts.recognise(secret)).user.username == "ada"
    assert await refusal(here.accounts.recognise_again(session)) == "unauthorized"


async def test_losing_the_admin_role_ends_open_connections_of_a_session(here: AccountsStage) -> None:
    await here.sign_up("ada", is_admin=True)
    session = await here.session("ada")
    async with another_process(here) as there, watched(there, session) as (one,):
        await here.accounts.change_user(here.admin, "ada", UserChange(is_admin=False))
        await ended(one)
    assert not (await here.accounts.recognise_again(session)).user.is_admin


@pytest.mark.parametrize("change", [UserChange(max_running=7), UserChange(is_admin=True)])
async def test_a_change_without_lost_rights_ends_no_connection(here: AccountsStage, change: UserChange) -> None:
    await here.sign_up("ada")
    session = await here.session("ada")
    async with another_process(here) as there, watched(there, session) as (one,):
        there._watching._recheck_s = 0.01
        there._watching._missed()
        await here.accounts.change_user(here.admin, "ada", change)
        there._watching._missed()
        await asyncio.sleep(0.2)
        assert not one.done()
        await here.accounts.sign_out(session)
        await ended(one)


async def test_a_new_password_ends_every_other_session(here: AccountsStage) -> None:
    await here.sign_up("ada")
    mine, other = await here.session("ada"), await here.session("ada")
    async with another_process(here) as there, watched(there, mine, other) as (one, two):
        await here.accounts.change_password(mine, PASSWORD, "another password")
        await ended(two)
        assert not one.done()
    assert await refusal(here.sign_in("ada")) == "bad_credentials"
    await here.accounts.sign_in("ada", "another password")


async def test_a_lost_revocation_message_is_found_by_the_next_check(here: AccountsStage) -> None:
    await here.sign_up("ada")
    session = await here.session("ada")
    deaf = here.another_process()
    deaf._watching._recheck_s = 0.05
    async with watched(deaf, session) as (one,):
        await here.accounts.sign_out(session)
        await ended(one)


async def test_after_a_gap_in_messages_every_caller_is_checked_again(here: AccountsStage) -> None:
    await here.sign_up("ada")
    session = await here.session("ada")
    async with another_process(here) as there, watched(there, session) as (one,):
        # The row is deleted without a message: the process only learns that messages may be lost.
        await here.db.execute("DELETE FROM tokens WHERE id = $1::text::uuid", session.credential_id)
        await here.bus.ask(("CLIENT", "KILL", "TYPE", "pubsub"))
        await ended(one)


async def test_a_sign_in_with_a_password_that_changes_meanwhile_is_refused(here: AccountsStage) -> None:
    await here.sign_up("ada")

    class Slow:
        """While the right password is being checked, an administrator sets another one."""

        def __init__(self) -> None:
            self.real = quick()

        async def check(self, password: str, stored: str | None, *, came_from: str = "") -> object:
            checked = await self.real.check(password, stored, came_from=came_from)
            await here.accounts.change_user(here.admin, "ada", UserChange(password="another password"))
            return checked

    slow = Accounts(here.store, Revocations(here.bus), Throttle(here.bus), session_ttl_s=DEFAULTS.session_ttl, passwords=Slow())  # type: ignore[arg-type]
    assert await refusal(slow.sign_in("ada", PASSWORD)) == "bad_credentials"
    assert await here.db.fetchval("SELECT count(*) FROM tokens WHERE kind = 'SESSION'") == 0


FULL_DISK = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend the file' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER full_disk BEFORE DELETE ON door_codes FOR EACH STATEMENT EXECUTE FUNCTION full_disk();
"""


async def test_signing_in_works_though_expired_rows_cannot_be_deleted(here: AccountsStage) -> None:
    await here.sign_up("ada")
    await here.db.execute(FULL_DISK)
    with pytest.raises(Unavailable):
        await here.store.delete_expired()
    assert (await here.accounts.recognise(await here.sign_in("ada"))).user.username == "ada"
    token = await here.accounts.sign_in_with(ProviderIdentity("https://id.example.com", "1", ("bob",)))
    assert (await here.accounts.recognise(token)).user.username == "bob"


async def test_a_throttled_sign_in_is_audited_once(here: AccountsStage) -> None:
    await here.sign_up("ada")
    for _ in range(OF_ONE_NAME + 5):
        await guess(here, "ada", ELSEWHERE)
    refused = [one["outcome"] for one in await here.audited("session.refused")]
    assert refused == ["bad_credentials"] * OF_ONE_NAME + ["too_many_sign_ins"]


async def test_accepted_and_refused_sign_ins_are_audited(here: AccountsStage) -> None:
    user_id = await here.sign_up("ada")
    caller = await here.session("ada")
    await guess(here, "ada", ELSEWHERE)
    await guess(here, "eve", ELSEWHERE)
    await here.accounts.sign_out(caller)
    (began,) = await here.audited("session.begin")
    assert (began["username"], str(began["user_id"]), began["how"], began["came_from"]) == ("ada", user_id, "SESSION", HOME)
    refused = await here.audited("session.refused")
    assert [(one["username"], one["how"], one["came_from"], one["outcome"]) for one in refused] == [
        ("ada", "NOBODY", ELSEWHERE, "bad_credentials"),
        ("eve", "NOBODY", ELSEWHERE, "bad_credentials"),
    ]
    (ended_,) = await here.audited("session.end")
    assert ended_["detail"]["id"] == caller.credential_id
