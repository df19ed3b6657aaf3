"""A code that signs one browser in, once and within minutes."""

import pytest

from tests.accounts.test_sessions import refusal
from tests.accounts.test_unconfined import outcomes
from tests.support.accounts_stage import HOME, PASSWORD, AccountsStage
from torpor.accounts import AuthMethod, UserChange, digest

pytestmark = pytest.mark.anyio


async def code_of(here: AccountsStage, username: str) -> str:
    return await here.accounts.sign_in_code((await here.accounts.user(username)).user)


async def test_a_code_starts_one_session(here: AccountsStage) -> None:
    code = await code_of(here, "root")
    token = await here.accounts.sign_in_by_code(code, came_from=HOME, user_agent="a browser")
    session = await here.accounts.recognise(token)
    assert (session.user.username, session.how) == ("root", AuthMethod.SESSION)
    assert await refusal(here.accounts.sign_in_by_code(code)) == "bad_sign_in_link"
    assert [one["detail"]["by"] for one in await here.audited("session.begin")] == ["link"]


async def test_of_two_concurrent_browsers_one_is_signed_in(here: AccountsStage) -> None:
    code = await code_of(here, "root")
    assert sorted(await outcomes(*(here.accounts.sign_in_by_code(code) for _ in range(2)))) == ["", "bad_sign_in_link"]


async def test_only_the_digest_of_a_code_is_stored_and_a_code_is_not_a_token(here: AccountsStage) -> None:
    code = await code_of(here, "root")
    (row,) = await here.db.fetch("SELECT * FROM sign_in_codes")
    assert row["digest"] == digest(code)
    assert code not in str(dict(row))
    assert await refusal(here.accounts.recognise(code)) == "unauthorized"


async def test_an_expired_code_is_refused_and_removed(here: AccountsStage) -> None:
    code = await code_of(here, "root")
    await here.db.execute("UPDATE sign_in_codes SET expires_at = clock_timestamp()")
    assert await refusal(here.accounts.sign_in_by_code(code)) == "bad_sign_in_link"
    assert await here.db.fetchval("SELECT count(*) FROM sign_in_codes") == 0
    assert await refusal(here.accounts.sign_in_by_code("torpor_made_up")) == "bad_sign_in_link"


@pytest.mark.parametrize("change", [UserChange(password=PASSWORD), UserChange(is_active=False)])
async def test_a_code_ends_with_the_sessions_of_its_user(here: AccountsStage, change: UserChange) -> None:
    await here.sign_up("ada")
    code = await code_of(here, "ada")
    await here.accounts.change_user(here.admin, "ada", change)
    assert await refusal(here.accounts.sign_in_by_code(code)) == "bad_sign_in_link"
