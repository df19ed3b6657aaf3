"""A workspace may be deleted at any moment; the deletion ends, and only what was purged is gone."""

import asyncio
import os
import random

import pytest

from tests.control.plant import plant
from torpor.domain.states import Phase, Wish

pytestmark = pytest.mark.anyio

SEED = int(os.environ.get("CHAOS_SEED", "11"))
COUNT = 40
WISHES = (Wish.RUNNING, Wish.STANDBY, Wish.ARCHIVED)


async def test_forty_deletions_at_random_moments_all_end(database_url: str) -> None:
    dice = random.Random(SEED)
    async with plant(database_url) as here:

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
        # A home that existed has a last archive, unless its owner purged it.
        lost = [name for name, seen in gone.items() if not lives[name][2] and seen.generation > 0 and seen.archive is None]
        assert lost == [], f"CHAOS_SEED={SEED}"
