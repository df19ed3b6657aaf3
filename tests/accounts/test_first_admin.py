"""The first administrator of an installation that has none."""

from collections.abc import AsyncIterator

import pytest

from tests.accounts.test_sessions import refusal
from tests.accounts.test_unconfined import UNCONFINED, outcomes
from tests.support.accounts_stage import PASSWORD, AccountsStage, accounts_stage, quick
from torpor.accounts import UserChange
from torpor.accounts.first_admin import FirstAdmin
from torpor.store.controller_store import ControllerStore
from torpor.store.database import Database, Role

pytestmark = pytest.mark.anyio


@pytest.fixture
async def empty(database_url: str, redis_url: str) -> AsyncIterator[AccountsStage]:
    """An installation without users."""
    async with accounts_stage(database_url, redis_url) as known:
        await known.db.execute("DELETE FROM users")
        yield known


def first(here: AccountsStage) -> FirstAdmin:
    return FirstAdmin(here.store, quick())


async def test_the_password_works_once_and_the_user_sets_another(empty: AccountsStage) -> None:
    password = await first(empty).create("eve")
    session = await empty.accounts.recognise(await empty.accounts.sign_in("eve", password))
    assert session.is_admin
    assert await refusal(empty.accounts.sign_in("eve", password)) == "bad_credentials"
    await empty.accounts.change_password(session, None, PASSWORD)
    for _ in range(2):
        await empty.sign_in("eve")
    assert [one["username"] for one in await empty.audited("user.create")][-1] == "eve"


async def test_of_two_concurrent_sign_ins_one_succeeds(empty: AccountsStage) -> None:
    password = await first(empty).create("eve")
    assert sorted(await outcomes(*(empty.accounts.sign_in("eve", password) for _ in range(2)))) == ["", "bad_credentials"]


async def test_only_a_digest_is_stored(empty: AccountsStage) -> None:
    password = await first(empty).create("eve")
    (stored,) = await empty.db.fetch("SELECT to_jsonb(users)::text AS row FROM users")
    assert password not in stored["row"]
    assert "argon2" in stored["row"]


async def test_a_first_administrator_is_refused_if_one_exists(empty: AccountsStage) -> None:
    password = await first(empty).create("eve")
    assert await refusal(first(empty).create("ada")) == "admin_exists"
    session = await empty.accounts.recognise(await empty.accounts.sign_in("eve", password))
    assert await refusal(first(empty).create("ada")) == "admin_exists", "signed in, and without a password for now"
    await empty.accounts.change_password(session, None, PASSWORD)
    for name in ("eve", "ada"):
        assert await refusal(first(empty).create(name)) == "admin_exists"
    assert [one.user.username for one in await empty.accounts.users()] == ["eve"]


async def test_an_administrator_without_a_password_gets_another_one_time_password(empty: AccountsStage) -> None:
    lost = await first(empty).create("eve")
    second = await first(empty).create("eve")
    assert await refusal(empty.accounts.sign_in("eve", lost)) == "bad_credentials"
    await empty.accounts.sign_in("eve", second)
    third = await first(empty).create("eve")
    await empty.accounts.sign_in("eve", third)


async def test_of_two_concurrent_creations_one_succeeds(empty: AccountsStage) -> None:
    assert sorted(await outcomes(*(first(empty).create(name) for name in ("eve", "ada")))) == ["", "admin_exists"]
    assert len(await empty.accounts.users()) == 1


async def test_an_existing_user_does_not_become_an_administrator(here: AccountsStage) -> None:
    await here.sign_up("ada")
    await here.db.execute("DELETE FROM users WHERE username = 'root'")
    assert await refusal(first(here).create("ada")) == "name_taken"
    assert not (await here.accounts.user("ada")).user.is_admin
    assert await refusal(first(here).create("Not A Name")) == "bad_username"


async def test_a_deactivated_administrator_does_not_count_and_stays_deactivated(here: AccountsStage) -> None:
    await here.sign_up("eve", is_admin=True)
    await here.accounts.change_user(here.admin, "eve", UserChange(is_active=False))
    await here.db.execute("DELETE FROM users WHERE username = 'root'")
    assert await refusal(first(here).create("eve")) == "name_taken"
    await first(here).create("ada")


async def test_an_unconfined_installation_refuses_a_second_user(here: AccountsStage, database_url: str) -> None:
    database = await Database.open(database_url, Role.CONTROLLER)
    controllers = ControllerStore(database, provider="fake")
    await here.db.execute("UPDATE users SET is_admin = false")
    await controllers.join("bare", "fake:of this test", expiry_s=60, confinement=UNCONFINED)
    assert await refusal(first(here).create("eve")) == "unconfined"
    assert [one.user.username for one in await here.accounts.users()] == ["root"]
    await here.db.execute("DELETE FROM users")
    await first(here).create("eve")
    await database.close()
