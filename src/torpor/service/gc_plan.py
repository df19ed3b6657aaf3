"""Plan a collection of archives: what it would mark and remove, and whether it may change anything.

The leader carries the plan out; the API shows it as a preview.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from torpor.domain.missing_homes_latch import should_latch
from torpor.domain.retention import ArchiveDecision, GcPolicy, Retention, are_marks_stale, decide
from torpor.ports import Archives
from torpor.store.gc import GcStatus, GcStore, StoreComparison, WorkspaceArchives

NAMED_AT_MOST = 100
"""A report names so many keys of each kind, and counts the others."""


@dataclass(frozen=True, slots=True)
class GcPlan:
    """What a collection decides by."""

    compared: StoreComparison
    retention: Retention
    are_marks_stale: bool
    why_not: str | None
    """Why the collection must not change any archive; None: it may."""

    def decide(self, held: WorkspaceArchives) -> tuple[ArchiveDecision, ...]:
        return decide(held.holder, held.archives, self.retention, held.at, are_marks_stale=self.are_marks_stale)


async def make_gc_plan(store: GcStore, archives: Archives, terms: GcPolicy, standing: GcStatus) -> GcPlan:
    """Lists the whole store. `standing`: as read just before."""
    compared = await store.compare(archives.keys(), begun_at=standing.read_at)
    return GcPlan(
        compared,
        terms.retention,
        are_marks_stale(standing.ended_at, terms, standing.read_at),
        _why_not(compared, await store.held_back_at()),
    )


async def decisions(store: GcStore, look: GcPlan) -> AsyncIterator[tuple[WorkspaceArchives, Sequence[ArchiveDecision]]]:
    """Each workspace that may have archives to mark or remove, with the decisions. No row is locked."""
    candidates = await store.candidates(look.retention)
    async for held in store.held(candidates, look.compared):
        yield held, look.decide(held)


def comparison_report(compared: StoreComparison) -> dict[str, Any]:
    """The differences between the table and the store, as fields of a report."""
    kinds = {
        "unknown": compared.unknown,
        "left_over": compared.left_over,
        "missing": sorted(compared.missing),
    }
    named = {kind: list(keys[:NAMED_AT_MOST]) for kind, keys in kinds.items()}
    return {**named, **{f"{kind}_count": len(keys) for kind, keys in kinds.items()}}


def _why_not(compared: StoreComparison, held_back_at: Sequence[str]) -> str | None:
    missing, expected = len(compared.missing), compared.expected
    if should_latch(expected=expected, missing=missing):
        return f"{missing} of {expected} archives are missing in the store, which is probably a fault of the store"
    if held_back_at:
        return f"too many homes are missing at {' and '.join(held_back_at)}, so no archive is changed; see `torpor doctor`"
    return None
