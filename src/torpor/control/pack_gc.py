"""Collect packs that no archive needs: a part of each garbage collection, after the archives.

Mark the orphans, and remove those whose grace period has passed. Before a pack of a workspace is removed, the roots of all its
archives are read from the store: if one of them differs from the database, no pack of this workspace is removed. The workspace
is locked for a moment while packs are marked or given up, never during a call to the store. The next collection continues an
interrupted one.
"""

import asyncio
from collections.abc import Mapping, Sequence

from torpor import metrics
from torpor.control.gc_tally import GcTally
from torpor.control.root_check import RootCheck
from torpor.domain.errors import Unavailable
from torpor.domain.pack_retention import PackDecision, PackId, PackReason
from torpor.domain.retention import MARKS, Action
from torpor.ports import Archives
from torpor.service.gc_plan import GcPlan, pack_decisions
from torpor.store.gc import NO_PACK
from torpor.store.pack_gc import PackGcStore

HANDFUL = 32
"""How many packs are given up at once, right before their removal."""
REMOVALS_AT_ONCE = 4


class PackCollector:
    def __init__(self, store: PackGcStore, archives: Archives) -> None:
        self._store = store
        self._archives = archives
        self._roots = RootCheck(store, archives)

    async def collect(self, term: int, seen: GcPlan, tally: GcTally) -> None:
        await self._store.forget_leases(term)
        await self._take_in(term, seen, tally)
        # First the packs that an earlier collection gave up.
        await self._remove_going(term, tally)
        for workspace_id, names in (await self._mark(term, seen, tally)).items():
            with tally.alone(workspace_id):
                await self._remove_ripe(term, seen, workspace_id, names, tally)

    async def _take_in(self, term: int, seen: GcPlan, tally: GcTally) -> None:
        of_workspace: dict[str, dict[PackId, int]] = {}
        for pack, size_bytes in seen.compared.packs.left_over.items():
            of_workspace.setdefault(pack.workspace_id, {})[pack] = size_bytes
        for workspace_id, packs in of_workspace.items():
            with tally.alone(workspace_id):
                async with self._store.holding(term, workspace_id, seen.compared) as locked:
                    if locked is not None:
                        await locked.take_in(packs)

    async def _mark(self, term: int, seen: GcPlan, tally: GcTally) -> Mapping[str, Sequence[str]]:
        """Mark orphans; return the packs of each workspace whose grace period has passed."""
        ripe: dict[str, Sequence[str]] = {}
        async for held, decided in pack_decisions(self._store, seen):
            workspace_id = held.holder.id
            with tally.alone(workspace_id):
                # Decided first without a lock: most workspaces need no write.
                if not MARKS.isdisjoint(one.action for one in decided):
                    async with self._store.holding(term, workspace_id, seen.compared) as locked:
                        if locked is not None:
                            await locked.write([one for one in seen.decide_packs(await locked.held()) if one.action in MARKS])
                if names := [one.pack.name for one in decided if _is_ripe(one)]:
                    ripe[workspace_id] = names
        return ripe

    async def _remove_ripe(self, term: int, seen: GcPlan, workspace_id: str, names: Sequence[str], tally: GcTally) -> None:
        verified = await self._roots.verified(term, workspace_id, tally)
        if verified is None:
            return
        for start in range(0, len(names), HANDFUL):
            given_up = await self._give_up(term, seen, workspace_id, frozenset(names[start : start + HANDFUL]), verified)
            await self._remove(term, given_up, tally)

    async def _give_up(
        self, term: int, seen: GcPlan, workspace_id: str, names: frozenset[str], verified: frozenset[str]
    ) -> Sequence[PackId]:
        """The point of no return: decide again with the workspace locked. An archive that was written meanwhile was not
        verified, so its workspace waits for the next collection."""
        async with self._store.holding(term, workspace_id, seen.compared) as locked:
            if locked is None or not await locked.root_keys() <= verified:
                return []
            decided = seen.decide_packs(await locked.held())
            removed = [one for one in decided if one.action is Action.REMOVE and one.pack.name in names]
            await locked.write(removed)
        return [PackId(workspace_id, one.pack.name) for one in removed]

    async def _remove_going(self, term: int, tally: GcTally) -> None:
        last = NO_PACK
        while packs := await self._store.going(term, after=last):
            last = packs[-1]
            await self._remove(term, packs, tally)

    async def _remove(self, term: int, packs: Sequence[PackId], tally: GcTally) -> None:
        """A pack that cannot be removed is left for the next collection; an unavailable store ends this one."""
        turn = asyncio.Semaphore(REMOVALS_AT_ONCE)
        gone: list[PackId] = []
        outs: list[Unavailable] = []

        async def remove(pack: PackId) -> None:
            async with turn:
                try:
                    with tally.alone(str(pack)):
                        if not outs:
                            await self._archives.remove_pack(*pack)
                            gone.append(pack)
                except Unavailable as out:
                    outs.append(out)

        async with asyncio.TaskGroup() as group:
            for pack in packs:
                group.create_task(remove(pack))
        sizes = await self._store.forget(term, gone)
        tally.removed_packs += len(sizes)
        tally.freed_bytes += sum(sizes)
        metrics.gc_packs_removed_total.inc(len(sizes))
        if outs:
            raise outs[0]


def _is_ripe(decision: PackDecision) -> bool:
    return decision.action is Action.REMOVE and decision.why is not PackReason.GOING
