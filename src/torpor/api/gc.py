"""What would be collected, what was, and who may ask for it?

Looking decides with the very rules of the collection and writes nothing; a collection itself is the leader's.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from torpor.api import wire
from torpor.api.authentication import Asking
from torpor.domain.retention import IS_ORPHAN, Action, ArchiveDecision, GcPolicy, GcWorkspace, Retention
from torpor.ports import Archives
from torpor.service.gc_plan import comparison_report, decisions, make_gc_plan
from torpor.service.wishes import Wishes
from torpor.store.gc import GcStatus, GcStore

ITEMS_AT_MOST = 1000


@dataclass(frozen=True, slots=True)
class GcSources:
    """What the calls about collection ask; `store` reads as the service."""

    store: GcStore
    archives: Archives
    retention: Retention
    """For as long as no leader has said which one it goes by."""


def gc_routes(collecting: GcSources, wishes: Wishes) -> APIRouter:
    router = APIRouter(tags=["gc"])
    previewed = _SharedGcPlan(lambda: _preview(collecting))

    @router.get("/gc")
    async def preview() -> wire.GcPreview:
        """What a collection would do now. Nothing is written."""
        return await previewed()

    @router.get("/gc/report")
    async def report() -> wire.GcStanding:
        """When archives were collected last, and what came of it."""
        return _standing(await collecting.store.housekeeping())

    @router.post("/gc", status_code=202)
    async def request(caller: Asking) -> wire.GcRequested:
        """Ask the leader for a collection now."""
        await wishes.collection_requested(caller)
        return wire.GcRequested(requested_at=await collecting.store.request())

    return router


class _SharedGcPlan:
    """One look for all who ask while it is under way: listing a store takes long, and costs."""

    def __init__(self, look: Callable[[], Coroutine[Any, Any, wire.GcPreview]]) -> None:
        self._look = look
        self._under_way: asyncio.Task[wire.GcPreview] | None = None

    async def __call__(self) -> wire.GcPreview:
        if self._under_way is None:
            self._under_way = asyncio.create_task(self._look())
            self._under_way.add_done_callback(self._over)
        # Who goes away takes it from nobody.
        return await asyncio.shield(self._under_way)

    def _over(self, task: asyncio.Task[wire.GcPreview]) -> None:
        self._under_way = None
        if not task.cancelled():
            task.exception()  # looked at, though perhaps nobody waits for it any more


async def _preview(collecting: GcSources) -> wire.GcPreview:
    store = collecting.store
    before, standing = await store.totals(), await store.housekeeping()
    seen = await make_gc_plan(store, collecting.archives, standing.terms or GcPolicy(collecting.retention), standing)
    kept: Counter[str] = Counter()
    orphans: list[tuple[GcWorkspace, ArchiveDecision]] = []
    async for held, decided in decisions(store, seen):
        for decision in decided:
            if IS_ORPHAN[decision.why]:
                orphans.append((held.holder, decision))
            else:
                kept[decision.why] += 1
    kept[wire.UNQUESTIONED] = max(0, before.kept + before.orphans - kept.total() - len(orphans))
    orphans.sort(key=lambda one: (one[1].goes_at, one[1].archive.key))
    actions = Counter(decision.action for _, decision in orphans)
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
        last=_standing(standing),
    )


def _standing(found: GcStatus) -> wire.GcStanding:
    return wire.GcStanding(
        requested_at=found.requested_at,
        tried_at=found.tried_at,
        ran_at=found.ran_at,
        report=wire.gc_report(found.report),
        skipped=wire.gc_report(found.skipped),
    )
