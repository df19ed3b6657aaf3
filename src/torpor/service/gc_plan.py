"""Plan a collection of archives: what it would mark and remove, and whether it may change anything.

The leader carries the plan out; the API shows it as a preview.
"""

import itertools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from torpor.domain.missing_homes_latch import should_latch
from torpor.domain.pack_retention import PackDecision, PackId, decide_packs
from torpor.domain.retention import ArchiveDecision, GcPolicy, Retention, are_marks_stale, decide
from torpor.loops import report_progress
from torpor.ports import Archives
from torpor.store.gc import GcStatus, GcStore, PackComparison, StoreComparison, WorkspaceArchives
from torpor.store.pack_gc import PackGcStore, WorkspacePacks

NAMED_AT_MOST = 100
"""A report names so many keys of each kind, and counts the others."""
CONFIRMED_AT_MOST = 1000
"""Of each kind of difference: so many requests take a minute."""


@dataclass(frozen=True, slots=True)
class GcPlan:
    """What a collection decides by."""

    compared: StoreComparison
    retention: Retention
    are_marks_stale: bool
    why_not: str | None
    """Why the collection must not change any archive; None: it may."""
    at: datetime

    def decide(self, held: WorkspaceArchives) -> tuple[ArchiveDecision, ...]:
        return decide(held.holder, held.archives, self.retention, held.at, are_marks_stale=self.are_marks_stale)

    def decide_packs(self, held: WorkspacePacks) -> tuple[PackDecision, ...]:
        return decide_packs(held.holder, held.packs, self.retention, held.at, are_marks_stale=self.are_marks_stale)


async def make_gc_plan(store: GcStore, archives: Archives, terms: GcPolicy, standing: GcStatus) -> GcPlan:
    """Lists the whole store. `standing`: as read just before."""
    compared = await store.compare(archives.listing(), begun_at=standing.read_at)
    compared = replace(compared, packs=await _confirm(compared.packs, archives))
    return GcPlan(
        compared,
        terms.retention,
        are_marks_stale(standing.ended_at, terms, standing.read_at),
        _why_not(compared, await store.held_back_at()),
        standing.read_at,
    )


async def decisions(store: GcStore, look: GcPlan) -> AsyncIterator[tuple[WorkspaceArchives, Sequence[ArchiveDecision]]]:
    """Each workspace that may have archives to mark or remove, with the decisions. No row is locked."""
    candidates = await store.candidates(look.retention)
    async for held in store.held(candidates, look.compared):
        yield held, look.decide(held)


async def pack_decisions(store: PackGcStore, look: GcPlan) -> AsyncIterator[tuple[WorkspacePacks, Sequence[PackDecision]]]:
    """Each workspace that may have packs to mark or remove, with the decisions. No row is locked."""
    async for held in store.held(await store.candidates(), look.compared):
        yield held, look.decide_packs(held)


async def _confirm(listed: PackComparison, archives: Archives) -> PackComparison:
    """A listing can be late: a pack that it does not have may exist, and one that it has may be gone. So the store is asked for
    each of the first packs of each kind."""

    async def sizes(packs: Iterable[PackId]) -> Mapping[PackId, int | None]:
        found: dict[PackId, int | None] = {}
        for pack in itertools.islice(packs, CONFIRMED_AT_MOST):
            found[pack] = await archives.pack_size(*pack)
            report_progress()
        return found

    there = await sizes(listed.missing)
    found = await sizes([*listed.unknown, *(pack for pack in listed.left_over if pack not in listed.parts)])
    gone = {pack for pack, size in found.items() if size is None}
    return replace(
        listed,
        missing={pack: size for pack, size in listed.missing.items() if there.get(pack) != size},
        unknown={pack: size for pack, size in listed.unknown.items() if pack not in gone},
        left_over={pack: size for pack, size in listed.left_over.items() if pack not in gone},
    )


def pack_report(compared: PackComparison) -> dict[str, Any]:
    """The differences between the table of packs and the store, as fields of a report."""
    kinds = {"unknown": compared.unknown, "left_over": compared.left_over, "missing": compared.missing}
    return _named({kind: sorted(map(str, packs)) for kind, packs in kinds.items()})


def comparison_report(compared: StoreComparison) -> dict[str, Any]:
    """The differences between the table and the store, as fields of a report."""
    kinds = {
        "unknown": compared.unknown,
        "left_over": compared.left_over,
        "missing": sorted(compared.missing),
    }
    return _named(kinds)


def _named(kinds: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    named = {kind: list(keys[:NAMED_AT_MOST]) for kind, keys in kinds.items()}
    return {**named, **{f"{kind}_count": len(keys) for kind, keys in kinds.items()}}


def _why_not(compared: StoreComparison, held_back_at: Sequence[str]) -> str | None:
    missing, expected = len(compared.missing), compared.expected
    if should_latch(expected=expected, missing=missing):
        return f"{missing} of {expected} archives are missing in the store, which is probably a fault of the store"
    packs = compared.packs
    if should_latch(expected=packs.expected, missing=len(packs.missing)):
        count = len(packs.missing)
        return f"{count} of {packs.expected} packs are missing in the store, which is probably a fault of the store"
    if held_back_at:
        return f"too many homes are missing at {' and '.join(held_back_at)}, so no archive is changed; see `torpor doctor`"
    return None
