"""Preview a collection of archives, report the last one, and request one.

The preview uses the rules of the collection and writes no change. The leader carries a collection out.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from torpor.api import wire
from torpor.api.authentication import Asking
from torpor.domain.pack_retention import IS_ORPHAN_PACK, PackDecision, PackReason
from torpor.domain.retention import IS_ORPHAN, Action, ArchiveDecision, GcPolicy, GcWorkspace
from torpor.ports import Archives
from torpor.service.gc_plan import GcPlan, comparison_report, decisions, make_gc_plan, pack_decisions, pack_report
from torpor.service.wishes import Wishes
from torpor.store.gc import GcStatus, GcStore
from torpor.store.pack_gc import PackGcStore

ITEMS_AT_MOST = 1000


@dataclass(frozen=True, slots=True)
class GcSources:
    """What these routes read from. `store` uses the database role of the service."""

    store: GcStore
    archives: Archives
    policy: GcPolicy
    """Used until a leader has stored its own."""
    packs: PackGcStore


def gc_routes(collecting: GcSources, wishes: Wishes) -> APIRouter:
    router = APIRouter(tags=["gc"])
    previewed = _SharedGcPlan(lambda: _preview(collecting))

    @router.get("/gc")
    async def preview() -> wire.GcPreview:
        """What a collection would do now. No data is changed."""
        return await previewed()

    @router.get("/gc/report")
    async def report() -> wire.GcStanding:
        """When archives were last collected, and the result."""
        return _standing(await collecting.store.housekeeping())

    @router.post("/gc", status_code=202)
    async def request(caller: Asking) -> wire.GcRequested:
        """Ask the leader to collect archives now."""
        await wishes.audit.gc_requested(caller)
        return wire.GcRequested(requested_at=await collecting.store.request())

    return router


class _SharedGcPlan:
    """One preview for all callers who ask while it is in progress, because listing a store is slow and costs money."""

    def __init__(self, preview: Callable[[], Coroutine[Any, Any, wire.GcPreview]]) -> None:
        self._preview = preview
        self._running: asyncio.Task[wire.GcPreview] | None = None

    async def __call__(self) -> wire.GcPreview:
        if self._running is None:
            self._running = asyncio.create_task(self._preview())
            self._running.add_done_callback(self._ended)
        # Shielded: a caller who disconnects does not cancel it for the others.
        return await asyncio.shield(self._running)

    def _ended(self, task: asyncio.Task[wire.GcPreview]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # retrieved, because perhaps no caller waits for it any more


async def _preview(collecting: GcSources) -> wire.GcPreview:
    store = collecting.store
    before, standing = await store.totals(), await store.housekeeping()
    seen = await make_gc_plan(store, collecting.archives, standing.terms or collecting.policy, standing)
    kept: Counter[str] = Counter()
    orphans: list[tuple[GcWorkspace, ArchiveDecision]] = []
    async for held, decided in decisions(store, seen):
        for decision in decided:
            if IS_ORPHAN[decision.why]:
                orphans.append((held.holder, decision))
            else:
                kept[decision.why] += 1
    kept[wire.UNQUESTIONED] = max(0, before.kept + before.orphans - kept.total() - len(orphans))
    # Those that wait for the end of a reader come last.
    orphans.sort(key=lambda one: (one[1].goes_at is None, one[1].goes_at or seen.at, one[1].archive.key))
    actions = Counter(decision.action for _, decision in orphans)
    packs = await _preview_packs(collecting.packs, seen)
    return wire.GcPreview(
        would_skip=seen.why_not,
        kept={reason: count for reason, count in sorted(kept.items()) if count},
        would_mark=actions[Action.MARK],
        waiting=actions[Action.WAIT],
        would_remove=actions[Action.REMOVE],
        would_free_bytes=sum(one.archive.size_bytes or 0 for _, one in orphans if one.action is Action.REMOVE),
        items=[wire.gc_item(holder, decision) for holder, decision in orphans[:ITEMS_AT_MOST]],
        left_out=max(0, len(orphans) - ITEMS_AT_MOST),
        **comparison_report(seen.compared),
        packs=packs,
        last=_standing(standing),
    )


async def _preview_packs(store: PackGcStore, seen: GcPlan) -> wire.GcPackPreview:
    totals = await store.totals()
    kept: Counter[str] = Counter()
    orphans: list[tuple[GcWorkspace, PackDecision]] = []
    async for held, decided in pack_decisions(store, seen):
        orphans += [(held.holder, decision) for decision in decided if IS_ORPHAN_PACK[decision.why]]
        kept.update(decision.why for decision in decided if not IS_ORPHAN_PACK[decision.why])
    total = max(0, totals.kept + totals.orphans - len(orphans))
    kept[PackReason.NEEDED] += max(0, total - kept.total())  # workspaces without any pack to mark or remove
    # Those that wait for the end of an operation come last.
    orphans.sort(key=lambda one: (one[1].goes_at is None, one[1].goes_at or seen.at, one[1].pack.name))
    actions = Counter(decision.action for _, decision in orphans)
    return wire.GcPackPreview(
        kept=total,
        kept_reasons={reason: count for reason, count in sorted(kept.items()) if count},
        would_mark=actions[Action.MARK],
        waiting=actions[Action.WAIT],
        would_remove=actions[Action.REMOVE],
        would_free_bytes=sum(one.pack.size_bytes for _, one in orphans if one.action is Action.REMOVE),
        items=[wire.gc_pack_item(holder, decision) for holder, decision in orphans[:ITEMS_AT_MOST]],
        left_out=max(0, len(orphans) - ITEMS_AT_MOST),
        **pack_report(seen.compared.packs),
    )


def _standing(found: GcStatus) -> wire.GcStanding:
    return wire.GcStanding(
        requested_at=found.requested_at,
        tried_at=found.tried_at,
        ran_at=found.ran_at,
        report=wire.gc_report(found.report),
        skipped=wire.gc_report(found.skipped),
    )
