"""Every loop of the control plane continues after any cut, stop and restart of PostgreSQL and Valkey.

Seeded: `CHAOS_SEED=... CHAOS_CUTS=... make test-deep ARGS=tests/e2e/test_loops.py` repeats the faults of a run. Each loop
must turn between rounds of cuts, and afterwards each is checked by its effect, in every process and in every leader.
"""

import asyncio
import contextlib
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from tests.e2e.effects import Effects
from tests.e2e.faults import LONG_PARTITION, LONG_STOP, STOP, Faults
from tests.e2e.turns import ANSWERS_WITHIN_S, Watch, url
from tests.support.cluster import cluster, echo
from tests.support.relayed_nodes import RelayedNodes

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere, pytest.mark.anyio]

TURNS_WITHIN_S = 90.0
LONGEST_PAUSE_S = 0.3
LEASE_S = 2

HASTE = {
    "ttl_interval": "0.5",
    "connection_lease": str(LEASE_S),
    # The defaults, not the cluster's: a membership of 10 s expires at the moment when waiting for a connection ends.
    "coordinator_heartbeat": "2",
    "coordinator_expiry": "10",
    "reconciler_interval": "4",
    "reconciler_active_interval": "1",
    "gc_interval": "2",
    "gc_grace": "2",
    "gc_keep": "1",
    "events_heartbeat": "2",
    "drain_grace": "1",
}
# A membership of 3 s expires while PostgreSQL is stopped for 15 s, so that a short test covers what takes 30 s by default.
MORE_HASTE = {**HASTE, "coordinator_heartbeat": "0.5", "coordinator_expiry": "3"}
# In every period of this many rounds, these have a fixed fault.
FIXED = {1: LONG_STOP, 4: LONG_PARTITION}
FIXED_EVERY = 7


@pytest.mark.long
async def test_every_loop_runs_after_forty_cut_connections(tmp_path: Path) -> None:
    await every_loop_turns(tmp_path, Plan(controllers=1, cuts=40, cuts_a_round=40, fixed={0: STOP}, settings=MORE_HASTE))


@pytest.mark.deep
@pytest.mark.parametrize("controllers", [1, 3])
async def test_every_loop_runs_after_hundreds_of_cut_connections(tmp_path: Path, controllers: int) -> None:
    cuts = int(os.environ.get("CHAOS_CUTS", "500"))
    await every_loop_turns(tmp_path, Plan(controllers, cuts, cuts_a_round=25, fixed=FIXED, settings=HASTE, with_census=True))


@dataclass(frozen=True)
class Plan:
    controllers: int
    cuts: int
    cuts_a_round: int
    fixed: Mapping[int, str]
    """The fault of some rounds; the others draw theirs."""
    settings: Mapping[str, str]
    with_census: bool = False
    """It takes a minute."""


async def every_loop_turns(folder: Path, plan: Plan) -> None:
    seed = int(os.environ.get("CHAOS_SEED", time.time_ns() % 1_000_000))
    repeat = f"repeat with CHAOS_SEED={seed} CHAOS_CUTS={plan.cuts} and {plan.controllers} controllers"
    print(f"\n{repeat}", flush=True)
    async with installation(folder, plan) as here:
        try:
            await here.watch.until_all_turn(times=1, within_s=TURNS_WITHIN_S)
            await here.endure(seed, plan)
            await here.require_no_restart()
            await here.effects.in_every_process_and_leader(with_census=plan.with_census)
        except BaseException as error:
            error.add_note(f"{repeat}; after cut {here.cuts}, {here.faults.last}")
            error.add_note(await here.reports())
            raise
        finally:
            here.print_figures()


@dataclass
class Installation:
    places: RelayedNodes
    watch: Watch
    faults: Faults
    effects: Effects
    client: httpx2.AsyncClient
    cuts: int = 0
    recovered_s: list[float] = field(default_factory=list)
    """From the end of the last fault of a round until every loop had turned twice."""
    restarts: Counter[str] = field(default_factory=Counter)

    async def endure(self, seed: int, plan: Plan) -> None:
        """Rounds of cuts with one stop, restart or partition; after each all faults end, and every loop turns."""
        for number, first in enumerate(range(0, plan.cuts, plan.cuts_a_round)):
            of_round = range(first, min(first + plan.cuts_a_round, plan.cuts))
            dice = random.Random(f"{seed}/round {number}")
            fixed = plan.fixed.get(number % FIXED_EVERY)
            # A fixed fault comes first: it hits loops that work, not loops that wait for a new connection.
            disturbed_at = dice.choice(of_round) if fixed is None else first
            for cut in of_round:
                if cut == disturbed_at:
                    await self.faults.disturb(dice, fixed)
                dice_of_cut = random.Random(f"{seed}/{cut}")
                await self.faults.cut(dice_of_cut)
                self.cuts += 1
                await asyncio.sleep(dice_of_cut.uniform(0, LONGEST_PAUSE_S))
            await self.faults.over()
            self.recovered_s.append(await self.watch.until_all_turn(times=2, within_s=TURNS_WITHIN_S))
            print(f"{self.cuts:4} cuts, every loop turned twice after {self.recovered_s[-1]:.1f} s", flush=True)

    async def require_no_restart(self) -> None:
        """Every loop continues by itself: no process ended, and no watchdog had to restart a loop."""
        for place in self.places.all:
            metrics = (await self.client.get(f"{url(place)}/metrics")).text
            for loop, count in re.findall(r'^torpor_loop_restarts_total{loop="(.+)"} (\S+)', metrics, re.MULTILINE):
                self.restarts[loop] += int(float(count))
        exits = {place.name: place.exits for place in self.places.all if place.exits}
        assert not exits, f"processes ended by themselves, with these exit codes: {exits}"
        assert not +self.restarts, f"watchdogs restarted loops: {dict(+self.restarts)}"

    async def reports(self) -> str:
        """The status report of each process: not checked, but shown when a check fails."""
        parts = []
        for place in self.places.all:
            try:
                ready = (await self.client.get(f"{url(place)}/health/ready")).text
            except httpx2.HTTPError as error:
                ready = repr(error)
            parts.append(f"── {place.name}: exits {place.exits}, /health/ready {ready}\n{place.node.said()}")
        return "\n".join(parts)

    def print_figures(self) -> None:
        for kind, count in self.faults.counts.most_common():
            print(f"{count:6}  {kind}")
        for loop, longest_s in self.watch.turns.longest_s.items():
            print(f"{longest_s:6.1f} s  longest time without a turn of: {loop}")
        if self.recovered_s:
            ordered = sorted(self.recovered_s)
            print(f"{ordered[len(ordered) // 2]:6.1f} s  until every loop had turned twice after a round (median)")
            print(f"{ordered[-1]:6.1f} s  the longest of {len(ordered)}")
        for effect, seconds in self.effects.took_s.items():
            print(f"{seconds:6.1f} s  {effect}")
        print(f"restarts of loops by their watchdogs: {dict(+self.restarts) or 'none'}")
        for place in self.places.all:
            print(
                f"{place.name}: ended by itself {len(place.exits)} times {place.exits}, {place.failed_starts} failed starts, "
                f"{self.watch.lost[place.name]} connections in use were closed, "
                f"{self.watch.slept[place.name]} times a workspace in use was put to sleep",
                flush=True,
            )


@contextlib.asynccontextmanager
async def installation(folder: Path, plan: Plan) -> AsyncIterator[Installation]:
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with (
        cluster(folder) as here,
        echo() as address,
        httpx2.AsyncClient(timeout=ANSWERS_WITHIN_S, limits=limits) as client,
    ):
        await here.fate.set(address=address)
        places = RelayedNodes(here)
        async with places.opened(plan.controllers, plan.settings):
            faults, watch = Faults(places), Watch(places, client)
            try:
                async with watch.running():
                    yield Installation(places, watch, faults, Effects(watch, client), client)
            finally:
                await faults.end()
