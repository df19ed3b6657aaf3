"""The loop brings a workspace to its requested state and keeps it there."""

import pytest

from tests.support.control_plane import control_plane
from torpor.domain.states import Phase, Wish

pytestmark = pytest.mark.anyio


async def test_a_workspace_runs_is_archived_and_runs_again(database_url: str) -> None:
    async with control_plane(database_url) as here:
        created = await here.wishes.create(here.user, name="demo")
        running = await here.until_phase("demo", Phase.RUNNING)
        assert (running.generation, running.revision) == (1, 1)
        home = next(iter(here.world.volumes.values()))
        home.files["note"] = b"hello"

        await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
        archived = await here.until_phase("demo", Phase.ARCHIVED)
        assert archived.archive is not None
        assert (archived.archive.generation, archived.archive.revision) == (1, 1)
        assert not here.world.volumes
        assert not here.world.containers

        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        awake = await here.until_phase("demo", Phase.RUNNING)
        assert (awake.generation, awake.revision) == (2, 2)
        assert [volume.files for volume in here.world.volumes.values()] == [{"note": b"hello"}]

        history = (await here.wishes.history(here.user, created.id)).items
        assert [attempt.kind for attempt in reversed(history)] == [
            "PROVISIONING",
            "STARTING",
            "STOPPING",
            "ARCHIVING",
            "RESTORING",
            "STARTING",
        ]
        assert {attempt.outcome for attempt in history} == {"DONE"}
