"""A workspace can be deleted at any moment; the deletion ends, and only a purge removes its content."""

import asyncio
import itertools
import os
import random
from datetime import timedelta

import asyncpg
import pytest

from tests.support.control_plane import ControlPlane, control_plane
from torpor.control.gc import GarbageCollector
from torpor.domain.errors import Refused
from torpor.domain.retention import Retention
from torpor.domain.states import Phase, Wish
from torpor.ports import Home
from torpor.store.database import Database, Role
from torpor.store.gc import GcStore
from torpor.store.pack_gc import PackGcStore
from torpor.testing.fake_runtime import FakeArchives

pytestmark = pytest.mark.anyio

SEED = int(os.environ.get("CHAOS_SEED", "11"))
COUNT = 40
WISHES = (Wish.RUNNING, Wish.STANDBY, Wish.ARCHIVED)
RETENTION = Retention(keep=5, grace=timedelta(hours=1), undelete_grace=timedelta(days=7), keep_daily=0, keep_weekly=0)
TERM = 1


class Notes:
    """Every program writes to its home while it runs, also right before each effect."""

    def __init__(self, here: ControlPlane) -> None:
        self._here = here
        self._numbers = itertools.count(1)
        self.last: dict[str, bytes] = {}

    async def write(self, _verb: str, workspace_id: str) -> None:
        held = self._here.world.containers.get(workspace_id)
        if held is not None and held.ended is None:
            note = str(next(self._numbers)).encode()
            self._here.world.volumes[held.container.home].files["note"] = note
            self.last[workspace_id] = note


async def test_forty_deletions_at_random_moments_all_end(database_url: str) -> None:
    """A deleted workspace comes back with the same content; after a purge no resource is left."""
    dice = random.Random(SEED)
    async with control_plane(database_url) as here:
        notes = Notes(here)
        here.world.interfere = notes.write

        async def live_and_die(name: str, delays_s: list[float], wishes: list[Wish], purge: bool) -> None:
            await here.wishes.create(here.user, name=name)
            for delay_s, wish in zip(delays_s, wishes, strict=True):
                await asyncio.sleep(delay_s)
                await here.wishes.wish(here.user, name, wish)
            await here.wishes.delete(here.user, name, purge=purge)

        lives = {
            f"w-{number}": (
                [dice.uniform(0, 0.15) for _ in range(length)],
                [dice.choice(WISHES) for _ in range(length)],
                dice.random() < 0.5,
            )
            for number in range(COUNT)
            for length in [dice.randrange(4)]
        }
        await asyncio.gather(*(live_and_die(name, *life) for name, life in lives.items()))
        gone = {name: await here.until_phase(name, Phase.DELETED) for name in lives}
        assert here.world.containers == {}, f"CHAOS_SEED={SEED}"
        assert here.world.volumes == {}, f"CHAOS_SEED={SEED}"
        purged = {name for name, (_, _, purge) in lives.items() if purge}
        # Enough workspaces had a home, with and without a purge, for a meaningful result.
        assert min(len(notes.last.keys() & {gone[name].id for name in names}) for names in (purged, lives.keys() - purged)) > 5

        await collect(database_url, here)
        archived = {key.split("/")[0] for key in here.world.archives}
        assert not archived & {gone[name].id for name in purged}, f"CHAOS_SEED={SEED}"

        for name in purged:
            with pytest.raises(Refused, match="purged"):
                await here.wishes.undelete(here.user, name)
        for name in lives.keys() - purged:
            expected = notes.last.get(gone[name].id)
            assert await content_after_undelete(here, name) == expected, f"{name} of CHAOS_SEED={SEED}"

        for name in lives.keys() - purged:
            await here.wishes.delete(here.user, name, purge=True)
        for name in lives.keys() - purged:
            await here.until_phase(name, Phase.DELETED)
        await collect(database_url, here)
        assert (here.world.volumes, here.world.archives) == ({}, {}), f"CHAOS_SEED={SEED}"


async def content_after_undelete(here: ControlPlane, name: str) -> bytes | None:
    await here.wishes.undelete(here.user, name)
    await here.until_phase(name, Phase.ARCHIVED)
    await here.wishes.wish(here.user, name, Wish.STANDBY)
    awake = await here.until_phase(name, Phase.STANDBY)
    return here.world.volumes[Home(awake.id, awake.generation)].files.get("note")


async def collect(database_url: str, here: ControlPlane) -> None:
    """One collection marks; one removes after the grace period."""
    fate = await asyncpg.connect(database_url)
    database = await Database.open(database_url, Role.CONTROLLER)
    try:
        leads = "INSERT INTO system_locks (lock_name, holder_id, epoch) VALUES ('leader', 'test', $1) ON CONFLICT DO NOTHING"
        await fate.execute(leads, TERM)
        collector = GarbageCollector(
            GcStore(database), PackGcStore(database), FakeArchives(here.world), retention=RETENTION, every_s=3600
        )
        for _ in range(2):
            await fate.execute("UPDATE housekeeping SET gc_ended_at = now()")
            await collector.collect(TERM)
            await fate.execute("UPDATE archives SET orphan_since = orphan_since - interval '2 hours'")
    finally:
        await database.close()
        await fate.close()
