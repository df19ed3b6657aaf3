"""The API of an installation whose controllers do not confine workspaces."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import httpx2
import pytest

from tests.api.browsers import Platform, platform
from tests.api.test_oidc import agree, begin
from tests.api.test_sessions import problem
from tests.support.accounts_stage import PASSWORD
from tests.support.openid_providers import provider_at, real_provider
from torpor.domain.unconfined import CONFINED, ControllerConfinement, MissingProtection
from torpor.store.controller_store import ControllerStore
from torpor.store.database import Database, Role

pytestmark = pytest.mark.anyio

REMEDY = "apt-get install bubblewrap"
WARNING = "Every local process can connect to the port."
UNCONFINED = ControllerConfinement(
    (
        MissingProtection("files and processes", "bubblewrap is not installed", REMEDY),
        MissingProtection("network", "needs bubblewrap", "make bubblewrap work"),
    ),
    port_warning=WARNING,
)


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with real_provider({"sub": "1815", "preferred_username": "cleo"}) as running:
        yield running


@pytest.fixture
async def controllers(database_url: str) -> AsyncIterator[ControllerStore]:
    database = await Database.open(database_url, Role.CONTROLLER)
    yield ControllerStore(database, provider="fake")
    await database.close()


@pytest.fixture
async def here(database_url: str, redis_url: str, issuer: str) -> AsyncIterator[Platform]:
    """Only root can sign in."""
    async with platform(database_url, redis_url, provider=provider_at(issuer)) as running:
        await running.people.db.execute("UPDATE users SET is_active = false WHERE username <> 'root'")
        yield running


async def join(controllers: ControllerStore, node_id: str, confinement: ControllerConfinement) -> int:
    return await controllers.join(node_id, "fake:of this test", expiry_s=60, confinement=confinement)


async def create(root: httpx2.AsyncClient, name: str) -> httpx2.Response:
    return await root.post("/api/v1/users", json={"username": name, "password": PASSWORD})


async def test_a_second_user_is_refused_with_the_reason(here: Platform, controllers: ControllerStore) -> None:
    root = await here.browser("root")
    await join(controllers, "good", CONFINED)
    life = await join(controllers, "bare", UNCONFINED)
    refused = await create(root, "cleo")
    assert problem(refused) == (409, "unconfined")
    assert refused.json()["missing"] == ["files and processes", "network"]
    said = refused.json()["detail"]
    assert all(part in said for part in ("user 'cleo' was not created", "bubblewrap is not installed", REMEDY, "--unconfined"))
    assert (await root.get("/api/v1/users/cleo")).status_code == 404
    assert problem(await root.patch("/api/v1/users/ada", json={"is_active": True})) == (409, "unconfined")
    await controllers.leave(life)
    assert (await create(root, "cleo")).status_code == 201


async def test_several_users_are_allowed_if_every_controller_accepts_it(here: Platform, controllers: ControllerStore) -> None:
    root = await here.browser("root")
    await join(controllers, "one", replace(UNCONFINED, is_accepted=True))
    assert (await create(root, "cleo")).status_code == 201
    assert (await root.patch("/api/v1/users/ada", json={"is_active": True})).status_code == 200


async def test_a_sign_in_that_would_create_a_user_is_refused_without_details(
    here: Platform, controllers: ControllerStore
) -> None:
    life = await join(controllers, "bare", UNCONFINED)
    browser = here.stranger()
    answer = await browser.get(await agree(await begin(browser), "1815"))
    assert answer.status_code == 409
    assert "this installation is for one user" in answer.text
    assert "bubblewrap" not in answer.text
    assert "session=" not in answer.headers.get("set-cookie", "")
    await controllers.leave(life)
    again = here.stranger()
    assert (await again.get(await agree(await begin(again), "1815"))).status_code == 303
    assert (await again.get("/api/v1/me")).json()["username"] == "cleo"


async def test_only_administrators_see_the_missing_confinement(here: Platform, controllers: ControllerStore) -> None:
    root = await here.browser("root")
    assert (await root.get("/api/v1/confinement")).json() == {"items": []}
    await join(controllers, "bare", UNCONFINED)
    await join(controllers, "good", CONFINED)
    bare, good = (await root.get("/api/v1/confinement")).json()["items"]
    assert [(one["what"], one["remedy"]) for one in bare["missing"]] == [
        ("files and processes", REMEDY),
        ("network", "make bubblewrap work"),
    ]
    assert (bare["node_id"], bare["is_accepted"], "for one user" in bare["summary"]) == ("bare", False, True)
    assert (good["missing"], good["summary"]) == ([], "")
    await here.people.db.execute("UPDATE users SET is_active = true")
    ada = await here.browser("ada")
    assert problem(await ada.get("/api/v1/confinement")) == (403, "forbidden")


async def test_the_open_port_of_a_program_is_a_warning_of_template_and_workspace(
    here: Platform, controllers: ControllerStore
) -> None:
    root = await here.browser("root")

    async def told() -> dict[str, list[str]]:
        return {one["name"]: one["warnings"] for one in (await root.get("/api/v1/templates")).json()["items"]}

    assert set(map(tuple, (await told()).values())) == {()}
    await join(controllers, "bare", UNCONFINED)
    assert await told() == {"terminal": [], "code-server": [], "jupyterlab": [], "command": [WARNING]}
    wanted = {"template": "command", "command": ["serve"], "desired_state": "STANDBY"}
    site = await root.post("/api/v1/workspaces", json={"name": "site", **wanted})
    assert (site.status_code, site.json()["warnings"]) == (201, [WARNING])
    plain = await root.post("/api/v1/workspaces", json={"name": "plain", "desired_state": "STANDBY"})
    assert (plain.status_code, plain.json()["warnings"]) == (201, [])
