"""How are archives collected that nobody refers to?

List the store, mark the orphans, remove those whose grace period has passed. Each workspace is held for a moment while its
archives are marked; objects are removed with nobody held up. A collection that was cut off anywhere is continued by the next.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog

from torpor import metrics
from torpor.domain.errors import Failed, Unavailable
from torpor.domain.records import ArchiveKey
from torpor.domain.retention import WRITES, Decision, Retention, decide
from torpor.ports import Archives
from torpor.store.collecting import CollectingStore, Compared, Held

log = structlog.get_logger()

ASKED_EVERY_S = 5.0
"""How soon a collection begins that an operator asked for."""
RETRY_S = 60.0
"""After one that was skipped or cut off: listing a large store is not for every few seconds."""
REMOVALS_AT_ONCE = 2
NAMED_AT_MOST = 100
"""So many keys a report names; the others it counts."""


@dataclass(slots=True)
class _Tally:
    """What came of one collection, so far."""

    begun_at: datetime
    compared: Compared = field(default_factory=lambda: Compared((), frozenset()))
    removed: int = 0
    freed_bytes: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    def report(self, *, kept: int | None, orphans: int | None, skipped: str | None) -> dict[str, Any]:
        missing = sorted(self.compared.missing)
        return {
            "started_at": self.begun_at.isoformat(),
            "skipped": skipped,
            "kept": kept,
            "orphans": orphans,
            "removed": self.removed,
            "freed_bytes": self.freed_bytes,
            "failed": dict(list(self.failed.items())[:NAMED_AT_MOST]),
            "unknown": list(self.compared.unknown[:NAMED_AT_MOST]),
            "unknown_count": len(self.compared.unknown),
            "missing": missing[:NAMED_AT_MOST],
            "missing_count": len(missing),
        }


class Collector:
    """A duty of the leader (`control.duties.Duty`)."""

    name = "gc"

    def __init__(self, store: CollectingStore, archives: Archives, *, retention: Retention, every_s: float) -> None:
        self._store = store
        self._archives = archives
        self._retention = retention
        self._every_s = every_s
        self.interval_s = min(every_s, ASKED_EVERY_S)
        self.wake = asyncio.Event()

    async def do(self, term: int) -> None:
        if await self._store.is_due(every_s=self._every_s, retry_s=min(RETRY_S, self._every_s)):
            await self.collect(term)

    async def collect(self, term: int) -> None:
        """One collection. Unavailable: it is skipped from there on, and nothing was touched that could not be looked at."""
        tally = _Tally(await self._store.begin(term))
        try:
            await self._collect(term, tally)
        except Unavailable as out:
            with contextlib.suppress(Unavailable):
                await self._store.skip(term, tally.report(kept=None, orphans=None, skipped=out.message))
            raise

    async def _collect(self, term: int, tally: _Tally) -> None:
        tally.compared = await self._store.compare(self._archives.keys(), begun_at=tally.begun_at)
        await self._mark(term, tally.compared.missing)
        await self._remove(term, tally)
        totals = await self._store.totals()
        report = tally.report(kept=totals.kept, orphans=totals.orphans, skipped=None)
        await self._store.end(term, tally.begun_at, report)
        metrics.archive_verified_age_seconds.set(totals.oldest_proof_s or 0)
        log.info(
            "archives_collected",
            **{name: value for name, value in report.items() if not isinstance(value, list | dict)},
            failed=len(tally.failed),
        )

    async def _mark(self, term: int, missing: frozenset[str]) -> None:
        candidates = await self._store.candidates(self._retention)
        async for held in self._store.held(candidates, missing=missing):
            # Looked at first without holding anybody up: most have nothing to be written.
            if not WRITES.isdisjoint(decision.action for decision in self._decided(held)):
                await self._mark_one(term, held.holder.id, missing)

    async def _mark_one(self, term: int, workspace_id: str, missing: frozenset[str]) -> None:
        async with self._store.holding(term, workspace_id, missing=missing) as holding:
            if holding is not None:
                await holding.write(self._decided(holding.held))

    def _decided(self, held: Held) -> Sequence[Decision]:
        return decide(held.holder, held.archives, self._retention, held.at)

    async def _remove(self, term: int, tally: _Tally) -> None:
        last = ""
        while keys := await self._store.going(term, after=last):
            last = keys[-1]
            out = await self._remove_some(term, keys, tally)
            if out is not None:
                raise out

    async def _remove_some(self, term: int, keys: Sequence[str], tally: _Tally) -> Unavailable | None:
        """One that cannot be removed is left for the next collection and holds up no other; a silent store ends this one."""
        turn = asyncio.Semaphore(REMOVALS_AT_ONCE)
        gone: list[str] = []
        outs: list[Unavailable] = []

        async def remove(key: str) -> None:
            async with turn:
                try:
                    if not outs:
                        await self._archives.remove(ArchiveKey.parse(key))
                        gone.append(key)
                except Failed as failed:
                    tally.failed[key] = failed.message
                except Unavailable as out:
                    outs.append(out)

        async with asyncio.TaskGroup() as group:
            for key in keys:
                group.create_task(remove(key))
        sizes = await self._store.forget(term, gone)
        tally.removed += len(sizes)
        tally.freed_bytes += sum(sizes)
        metrics.gc_removed_total.inc(len(sizes))
        return outs[0] if outs else None
