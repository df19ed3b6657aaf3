"""The recent use of a workspace over HTTP."""

from collections.abc import AsyncIterator

import pytest

from tests.support.live_api import LiveApi, live_api
from torpor.domain.usage import Usage

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        await made.create("demo")
        yield made


async def test_the_use_of_a_workspace_is_reported_to_users_who_see_it(here: LiveApi) -> None:
    empty = await here.call("GET", "/workspaces/demo/usage")
    assert (empty.status_code, empty.json()) == (200, {"points": [], "disk": []})
    workspace_id = (await here.call("GET", "/workspaces/demo")).json()["id"]
    for cpu_s in (1.0, 1.5):
        await here.usage.append({workspace_id: Usage(cpu_s, 4096)})
        # Two samples of the same millisecond give no point; a call takes longer than that.
        await here.call("GET", "/workspaces/demo/usage")
    await here.usage.append_disk(workspace_id, 1000)
    reported = (await here.call("GET", "/workspaces/demo/usage")).json()
    (point,) = reported["points"]
    assert point["memory_bytes"] == 4096
    assert point["cpu_cores"] > 0
    assert [one["disk_bytes"] for one in reported["disk"]] == [1000]
    assert (await here.call("GET", "/workspaces/demo/usage", by="bob")).status_code == 404


async def test_the_stored_disk_use_is_reported_when_the_series_is_lost(here: LiveApi) -> None:
    await here.db.execute(
        "UPDATE workspaces SET disk_bytes = 7, disk_generation = generation, disk_measured_at = now(), volume_present = true"
    )
    reported = (await here.call("GET", "/workspaces/demo/usage")).json()
    assert [one["disk_bytes"] for one in reported["disk"]] == [7]
