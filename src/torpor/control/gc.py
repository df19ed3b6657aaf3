"""Collect archives that no workspace needs. A duty of the leader.

List the store, mark the orphans, remove those whose grace period has passed. Before an archive is removed, the roots of those
that stay are read from the store: if one of them cannot be read, no archive of this workspace is removed. A workspace is locked
for a moment while its archives are marked or given up; objects are removed without locks. The next collection continues an
interrupted one, and one bad archive or workspace does not stop the others.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from torpor import metrics
from torpor.control.gc_tally import GcTally, words_of
from torpor.control.pack_gc import PackCollector
from torpor.control.root_check import RootCheck
from torpor.domain.backoff import backoff_s
from torpor.domain.errors import Deposed, Unavailable
from torpor.domain.records import ArchiveKey
from torpor.domain.retention import MARKS, Action, ArchiveDecision, GcPolicy, Retention, RetentionReason
from torpor.ports import Archives
from torpor.service.gc_plan import GcPlan, decisions, make_gc_plan
from torpor.store.gc import ArchiveTotals, GcStore, batches
from torpor.store.pack_gc import PackGcStore

log = structlog.get_logger()

ASKED_EVERY_S = 5.0
"""How often requests of operators for a collection are checked."""
RETRY_S = 60.0
"""The pause after a skipped or interrupted collection; it doubles up to the interval, because the listing of a large store is
expensive."""
HANDFUL = 32
"""How many archives are given up at once, right before their removal."""
REMOVALS_AT_ONCE = 2
STEP_S = 600.0
"""How long one step may take: a page of the store's listing, or the removal of a large archive."""


@dataclass(frozen=True, slots=True)
class _RipeArchive:
    """An archive whose grace period has passed, in a workspace whose roots were verified."""

    key: str
    workspace_id: str
    besides: frozenset[str]
    """All archives of this workspace that go now."""
    proven: frozenset[str]
    """The archives of this workspace whose roots are readable."""

    def is_verified(self, decided: Sequence[ArchiveDecision]) -> bool:
        """All archives that stay are among those whose roots are readable."""
        return all(
            one.archive.key in self.proven or (one.action is Action.REMOVE and one.archive.key in self.besides)
            for one in decided
            if one.archive.has_root and one.archive.removing_since is None
        )


class GarbageCollector:
    """A duty of the leader (`control.duties.Duty`)."""

    name = "gc"

    def __init__(self, store: GcStore, packs: PackGcStore, archives: Archives, *, retention: Retention, every_s: float) -> None:
        self._store = store
        self._packs = packs
        self._archives = archives
        self._pack_collector = PackCollector(packs, archives)
        self._roots = RootCheck(packs, archives)
        self._terms = GcPolicy(retention, timedelta(seconds=every_s))
        self._every_s = every_s
        self._skipped = 0
        self._oldest_proof: float | None = None
        """When the archive with the oldest verification was verified, on the monotonic clock."""
        self.interval_s = min(every_s, ASKED_EVERY_S)
        self.turn_s = STEP_S
        self.wake = asyncio.Event()

    async def do(self, term: int) -> None:
        retry_s = backoff_s(max(1, self._skipped), base_s=RETRY_S, cap_s=self._every_s, dice=0.0)
        if await self._store.is_due(every_s=self._every_s, retry_s=retry_s):
            await self.collect(term)
        elif self._oldest_proof is None:
            self._tell_age((await self._store.totals()).oldest_proof_s)  # cheap: there is no archive, or this leader is new
        self._tell_age_now()

    def _tell_age(self, oldest_proof_s: float | None) -> None:
        self._oldest_proof = None if oldest_proof_s is None else time.monotonic() - oldest_proof_s
        self._tell_age_now()

    def _tell_age_now(self) -> None:
        age_s = math.nan if self._oldest_proof is None else time.monotonic() - self._oldest_proof
        metrics.archive_verified_age_seconds.set(age_s)

    def rest(self) -> None:
        """Another process leads and sets the metric."""
        self._oldest_proof = None
        metrics.archive_verified_age_seconds.set(math.nan)

    async def collect(self, term: int) -> None:
        """Do one collection. Unavailable: the rest is skipped, and archives that could not be checked are kept."""
        tally = GcTally(await self._store.begin(term, self._terms))
        self._skipped += 1
        try:
            await self._store.forget_deleted(term, deleted_for_s=self._terms.retention.undelete_grace.total_seconds())
            totals = await self._collect(term, tally)
            report = tally.report(totals, await self._packs.totals())
            await self._store.end(term, tally.begun_at, report)
        except Deposed:
            raise
        except Exception as error:
            with contextlib.suppress(Unavailable):
                await self._store.skip(term, tally.report(skipped=words_of(error)))
            raise
        self._skipped = 0
        self._tell_age(totals.oldest_proof_s)
        log.info(
            "archives_collected",
            **_counts(report),
            failed=len(tally.failed),
            packs_removed=tally.removed_packs,
            unreadable_roots=len(tally.unreadable_roots),
        )

    async def _collect(self, term: int, tally: GcTally) -> ArchiveTotals:
        await self._require_our_store()
        seen = await make_gc_plan(self._store, self._archives, self._terms, await self._store.housekeeping())
        tally.compared = seen.compared
        if seen.why_not is not None:
            raise Unavailable(seen.why_not)
        await self._take_in(term, seen, tally)
        # First the archives that an earlier collection gave up, also of workspaces with an error: they may be partly removed.
        await self._remove_going(term, tally)
        ripe = await self._mark(term, seen, tally)
        for some in batches(await self._verified(term, ripe, tally), HANDFUL):
            await self._remove(term, await self._give_up(term, seen, some, tally), tally)
        await self._pack_collector.collect(term, seen, tally)
        return await self._store.totals()

    async def _require_our_store(self) -> None:
        identity = await self._archives.world()
        known = await self._store.remember_store(identity)
        if identity != known:
            raise Unavailable(f"the archive store is {identity}; this database belongs to {known}")

    async def _take_in(self, term: int, seen: GcPlan, tally: GcTally) -> None:
        of_workspace: dict[str, list[str]] = {}
        for key in seen.compared.left_over:
            of_workspace.setdefault(ArchiveKey.parse(key).workspace_id, []).append(key)
        for workspace_id, keys in of_workspace.items():
            with tally.alone(workspace_id):
                async with self._store.holding(term, [workspace_id], seen.compared) as holding:
                    await holding.take_in(keys)

    async def _mark(self, term: int, seen: GcPlan, tally: GcTally) -> Sequence[ArchiveKey]:
        """Mark orphans; return the archives whose grace period has passed."""
        ripe: list[ArchiveKey] = []
        async for held, decided in decisions(self._store, seen):
            with tally.alone(held.holder.id):
                # Decided first without a lock: most workspaces need no write.
                if not MARKS.isdisjoint(one.action for one in decided):
                    await self._mark_one(term, seen, held.holder.id)
                ripe += [ArchiveKey.parse(one.archive.key) for one in decided if _is_ripe(one)]
        return ripe

    async def _mark_one(self, term: int, seen: GcPlan, workspace_id: str) -> None:
        async with self._store.holding(term, [workspace_id], seen.compared) as holding:
            for held in await holding.held():
                await holding.write([one for one in seen.decide(held) if one.action in MARKS])

    async def _verified(self, term: int, ripe: Sequence[ArchiveKey], tally: GcTally) -> Sequence["_RipeArchive"]:
        """Those of them whose workspaces have only archives with readable roots, besides these."""
        of_workspace: dict[str, set[str]] = {}
        for key in ripe:
            of_workspace.setdefault(key.workspace_id, set()).add(str(key))
        verified: list[_RipeArchive] = []
        for workspace_id, keys in of_workspace.items():
            with tally.alone(workspace_id):
                besides = frozenset(keys)
                proven = await self._roots.verified(term, workspace_id, tally, besides=besides)
                if proven is not None:
                    verified += [_RipeArchive(key, workspace_id, besides, proven) for key in sorted(keys)]
        return verified

    async def _give_up(self, term: int, seen: GcPlan, ripe: Sequence["_RipeArchive"], tally: GcTally) -> Sequence[str]:
        try:
            return await self._given_up(term, seen, ripe)
        except (Deposed, Unavailable):
            raise
        except Exception:  # one of them failed: try each alone
            given_up: list[str] = []
            for one in ripe:
                with tally.alone(one.key):
                    given_up += await self._given_up(term, seen, [one])
            return given_up

    async def _given_up(self, term: int, seen: GcPlan, ripe: Sequence["_RipeArchive"]) -> Sequence[str]:
        """The point of no return: decide again with the workspaces locked. A workspace with an error by now keeps its
        archives, and so does one with an archive that was written meanwhile: its root was not verified."""
        keys = {one.key for one in ripe}
        of_workspace = {one.workspace_id: one for one in ripe}
        removed: list[ArchiveDecision] = []
        async with self._store.holding(term, of_workspace.keys(), seen.compared) as holding:
            for held in await holding.held():
                decided = seen.decide(held)
                if of_workspace[held.holder.id].is_verified(decided):
                    removed += [one for one in decided if one.action is Action.REMOVE and one.archive.key in keys]
            await holding.write(removed)
        return [one.archive.key for one in removed]

    async def _remove_going(self, term: int, tally: GcTally) -> None:
        last = ""
        while keys := await self._store.going(term, after=last):
            last = keys[-1]
            await self._remove(term, keys, tally)

    async def _remove(self, term: int, keys: Sequence[str], tally: GcTally) -> None:
        """An archive that cannot be removed is left for the next collection; an unavailable store ends this one."""
        turn = asyncio.Semaphore(REMOVALS_AT_ONCE)
        gone: list[str] = []
        outs: list[Unavailable] = []

        async def remove(key: str) -> None:
            async with turn:
                try:
                    with tally.alone(key):
                        if not outs:
                            await self._archives.remove(ArchiveKey.parse(key))
                            gone.append(key)
                except Unavailable as out:
                    outs.append(out)

        async with asyncio.TaskGroup() as group:
            for key in keys:
                group.create_task(remove(key))
        sizes = await self._store.forget(term, gone)
        tally.removed += len(sizes)
        tally.freed_bytes += sum(sizes)
        metrics.gc_removed_total.inc(len(sizes))
        if outs:
            raise outs[0]


def _is_ripe(decision: ArchiveDecision) -> bool:
    return decision.action is Action.REMOVE and decision.why is not RetentionReason.GOING


def _counts(report: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in report.items() if not isinstance(value, list | dict)}
