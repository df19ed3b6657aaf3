"""Users of an installation whose controllers do not confine workspaces."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.accounts.test_sessions import refusal
from tests.support.accounts_stage import PASSWORD, AccountsStage
from torpor.accounts import UserChange
from torpor.accounts.accounts import ProviderIdentity
from torpor.domain.errors import Refused
from torpor.domain.unconfined import CONFINED, ControllerConfinement, MissingProtection
from torpor.store.controller_store import ControllerStore
from torpor.store.database import Database, Role

pytestmark = pytest.mark.anyio

ISSUER = "https://id.example.com"
WORLD = "fake:of this test"
UNCONFINED = ControllerConfinement((MissingProtection("network", "no bubblewrap", "apt-get install bubblewrap"),))
ACCEPTED = replace(UNCONFINED, is_accepted=True)


@pytest.fixture
async def controllers(database_url: str) -> AsyncIterator[ControllerStore]:
    database = await Database.open(database_url, Role.CONTROLLER)
    yield ControllerStore(database, provider="fake")
    await database.close()


async def join(controllers: ControllerStore, node_id: str, confinement: ControllerConfinement, expiry_s: float = 60) -> int:
    return await controllers.join(node_id, WORLD, expiry_s=expiry_s, confinement=confinement)


async def usernames(here: AccountsStage) -> list[str]:
    return [one.user.username for one in await here.accounts.users()]


async def outcomes(*asked: Awaitable[Any]) -> Sequence[str]:
    """The code of each refusal; empty: accepted."""
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(one, Refused) or not isinstance(one, BaseException) for one in ended), ended
    return [one.code if isinstance(one, Refused) else "" for one in ended]


@pytest.mark.parametrize("others", [(), (CONFINED,), (ACCEPTED,)])
async def test_one_unconfined_controller_is_enough_to_refuse_a_second_user(
    here: AccountsStage, controllers: ControllerStore, others: tuple[ControllerConfinement, ...]
) -> None:
    for number, other in enumerate(others):
        await join(controllers, f"other-{number}", other)
    await join(controllers, "bare", UNCONFINED)
    assert await refusal(here.accounts.create_user(here.admin, "ada", password=PASSWORD)) == "unconfined"
    assert await usernames(here) == ["root"]
    assert [one["username"] for one in await here.audited("user.create")] == ["root"], "what did not happen is not told"
    assert await refusal(here.accounts.create_user(here.admin, "root")) == "name_taken"


async def test_confined_and_accepted_controllers_allow_a_second_user(here: AccountsStage, controllers: ControllerStore) -> None:
    await join(controllers, "good", CONFINED)
    await join(controllers, "accepted", ACCEPTED)
    await here.sign_up("ada")
    assert await usernames(here) == ["ada", "root"]


async def test_an_expired_controller_does_not_count(here: AccountsStage, controllers: ControllerStore) -> None:
    life = await join(controllers, "bare", UNCONFINED)
    await here.db.execute("UPDATE controllers SET expires_at = now() - interval '1 second'")
    await here.sign_up("ada")
    assert await usernames(here) == ["ada", "root"]
    await controllers.leave(life)


async def test_the_engine_of_this_process_counts_without_a_live_controller(here: AccountsStage) -> None:
    accounts = here.another_process(confinement=UNCONFINED)
    assert await refusal(accounts.create_user(here.admin, "ada")) == "unconfined"


async def test_only_users_who_can_sign_in_count(here: AccountsStage, controllers: ControllerStore) -> None:
    await here.sign_up("ada")
    await here.accounts.change_user(here.admin, "ada", UserChange(is_active=False))
    await join(controllers, "bare", UNCONFINED)
    await here.accounts.change_user(here.admin, "ada", UserChange(max_running=3))
    assert await refusal(here.accounts.change_user(here.admin, "ada", UserChange(is_active=True))) == "unconfined"
    assert not (await here.accounts.user("ada")).user.is_active


async def test_a_sign_in_by_a_provider_creates_no_second_user(here: AccountsStage, controllers: ControllerStore) -> None:
    ada, grace = ProviderIdentity(ISSUER, "1", ("ada",)), ProviderIdentity(ISSUER, "2", ("grace",))
    await here.accounts.sign_in_with(ada)
    await here.db.execute("UPDATE users SET is_active = false WHERE username = 'root'")
    await join(controllers, "bare", UNCONFINED)
    assert await refusal(here.accounts.sign_in_with(grace)) == "unconfined"
    assert await usernames(here) == ["ada", "root"]
    (told,) = await here.audited("session.refused")
    assert (told["outcome"], told["detail"]) == ("unconfined", {"by": "oidc"})
    await here.accounts.sign_in_with(ada)


async def test_the_credentials_file_creates_no_second_user(here: AccountsStage, controllers: ControllerStore) -> None:
    await join(controllers, "bare", UNCONFINED)
    assert await refusal(here.accounts.ensure_admin("admin", PASSWORD)) == "unconfined"
    assert (await here.accounts.ensure_admin("root", PASSWORD)).username == "root"


async def test_of_many_concurrent_first_users_one_is_created(here: AccountsStage, controllers: ControllerStore) -> None:
    await here.db.execute("UPDATE users SET is_active = false")
    await join(controllers, "bare", UNCONFINED)
    by_provider = [here.accounts.sign_in_with(ProviderIdentity(ISSUER, str(one), (f"eve-{one}",))) for one in range(4)]
    by_admin = [here.accounts.create_user(here.admin, f"fay-{one}") for one in range(4)]
    assert sorted(await outcomes(*by_provider, *by_admin)) == ["", *["unconfined"] * 7]
    assert await here.db.fetchval("SELECT count(*) FROM users WHERE is_active") == 1


async def test_a_second_user_and_an_unconfined_controller_are_not_admitted_concurrently(
    here: AccountsStage, controllers: ControllerStore
) -> None:
    for number in range(10):
        name = f"ada-{number}"
        came = await outcomes(here.accounts.create_user(here.admin, name), join(controllers, name, UNCONFINED))
        assert sorted(came) == ["", "unconfined"], came
        await here.db.execute("DELETE FROM users WHERE username = $1", name)
        await here.db.execute("DELETE FROM controllers")
