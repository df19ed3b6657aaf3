"""What would a collection do, as things stand, and may it do anything at all?

Asked by the leader, who then does it, and by whoever wants to see it beforehand.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from torpor.domain.missing_homes_latch import should_latch
from torpor.domain.retention import ArchiveDecision, GcPolicy, Retention, are_marks_stale, decide
from torpor.ports import Archives
from torpor.store.gc import GcStatus, GcStore, StoreComparison, WorkspaceArchives

NAMED_AT_MOST = 100
"""So many keys of a kind are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class GcPlan:
    """What a collection goes by."""

    compared: StoreComparison
    retention: Retention
    are_marks_stale: bool
    why_not: str | None
    """Why nothing may be touched; None: it may."""

    def decide(self, held: WorkspaceArchives) -> tuple[ArchiveDecision, ...]:
        return decide(held.holder, held.archives, self.retention, held.at, are_marks_stale=self.are_marks_stale)


async def make_gc_plan(store: GcStore, archives: Archives, terms: GcPolicy, standing: GcStatus) -> GcPlan:
    """The whole store is listed for it. `standing`: as read just before."""
    compared = await store.compare(archives.keys(), begun_at=standing.read_at)
    return GcPlan(
        compared,
        terms.retention,
        are_marks_stale(standing.ended_at, terms, standing.read_at),
        _why_not(compared, await store.held_back_at()),
    )


async def decisions(store: GcStore, look: GcPlan) -> AsyncIterator[tuple[WorkspaceArchives, Sequence[ArchiveDecision]]]:
    """Each workspace that may have something to be marked or given up, and what would be done; nobody is held up."""
    candidates = await store.candidates(look.retention)
    async for held in store.held(candidates, look.compared):
        yield held, look.decide(held)


def comparison_report(compared: StoreComparison) -> dict[str, Any]:
    """What the table and the store do not agree on, in a report's words."""
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
        return f"{missing} of {expected} archives are missing in the store, which looks like a fault of the store"
    if held_back_at:
        return f"so many homes are missing at {' and '.join(held_back_at)} that nothing is touched; see `torpor doctor`"
    return None
