"""The size of a workspace is stored, shown and refused over HTTP, with warnings about what is not enforced."""

from collections.abc import AsyncIterator

import pytest

from tests.support.live_api import LiveApi, live_api
from torpor.domain.unconfined import ControllerConfinement
from torpor.store.controller_store import ControllerStore
from torpor.store.database import Database, Role

pytestmark = pytest.mark.anyio

BODY = {"name": "demo", "desired_state": "STANDBY"}
NOTHING = {"cpu": None, "memory_mb": None, "disk_mb": None}


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        yield made


async def test_a_size_is_stored_and_shown(here: LiveApi) -> None:
    size = {"cpu": 0.5, "memory_mb": 512, "disk_mb": 20_480}
    made = await here.call("POST", "/workspaces", {**BODY, "size": size})
    assert (made.status_code, made.json()["size"]) == (201, size)
    assert (await here.call("GET", "/workspaces/demo")).json()["size"] == size
    other = await here.call("POST", "/workspaces", {**BODY, "name": "other", "size": {"memory_mb": 64}})
    assert other.json()["size"] == {**NOTHING, "memory_mb": 64}
    plain = await here.call("POST", "/workspaces", {**BODY, "name": "plain"})
    assert (plain.json()["size"], plain.json()["warnings"]) == (NOTHING, [])


@pytest.mark.parametrize(
    ("size", "code"),
    [
        ({"cpu": 0}, "bad_size"),
        ({"cpu": 5000}, "bad_size"),
        ({"memory_mb": 2049}, "bad_size"),
        ({"memory_mb": 1}, "bad_size"),
        ({"disk_mb": -1}, "bad_size"),
        ({"memory_mb": 2**40}, "bad_size"),
        ({"cpu": "2"}, "bad_request"),
        ({"cpu": True}, "bad_request"),
        ({"ram": 7}, "bad_request"),
    ],
)
async def test_what_is_no_size_is_refused(here: LiveApi, size: object, code: str) -> None:
    refused = await here.call("POST", "/workspaces", {**BODY, "size": size})
    assert (refused.status_code, refused.json()["code"]) == (422, code)


async def test_what_a_controller_does_not_enforce_is_a_warning(here: LiveApi, database_url: str) -> None:
    database = await Database.open(database_url, Role.CONTROLLER)
    lax = ControllerConfinement(cpu_warning="only a weight", disk_warning="not enforced")
    await ControllerStore(database, provider="fake").join("lax", "world", expiry_s=60, confinement=lax)
    for name, size, warnings in (
        ("a", {"cpu": 1}, ["only a weight"]),
        ("b", {"disk_mb": 1}, ["not enforced"]),
        ("c", {"memory_mb": 64}, []),
    ):
        made = await here.call("POST", "/workspaces", {**BODY, "name": name, "size": size})
        assert made.json()["warnings"] == warnings
    await database.close()
