"""What would be collected, what was, and who may ask for it?

Looking decides with the very rules of the collection and writes nothing; a collection itself is the leader's.
"""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from torpor.api import wire
from torpor.api.door import SignedIn
from torpor.domain.errors import Refused
from torpor.domain.retention import IS_ORPHAN, Action, Decision, Holder, Retention, Why, decide
from torpor.ports import Archives
from torpor.store.collecting import CollectingStore
from torpor.store.for_service import User

ITEMS_AT_MOST = 1000
NAMED_AT_MOST = 100


@dataclass(frozen=True, slots=True)
class Collecting:
    """What the calls about collection ask; `store` reads as the service."""

    store: CollectingStore
    archives: Archives
    retention: Retention


def gc_routes(collecting: Collecting) -> APIRouter:
    router = APIRouter(tags=["gc"])

    @router.get("/gc")
    async def preview(user: SignedIn) -> wire.GcPreview:
        """What a collection would do now. Nothing is written."""
        _require_admin(user)
        return await _preview(collecting)

    @router.get("/gc/report")
    async def report(user: SignedIn) -> wire.GcStanding:
        """When archives were collected last, and what came of it."""
        _require_admin(user)
        return await _standing(collecting)

    @router.post("/gc", status_code=202)
    async def request(user: SignedIn) -> wire.GcRequested:
        """Ask the leader for a collection now."""
        _require_admin(user)
        return wire.GcRequested(requested_at=await collecting.store.request())

    return router


def _require_admin(user: User) -> None:
    if not user.is_admin:
        raise Refused("forbidden", "only an administrator may collect archives")


async def _preview(collecting: Collecting) -> wire.GcPreview:
    store, before = collecting.store, await collecting.store.totals()
    compared = await store.compare(collecting.archives.keys(), begun_at=before.at)
    kept: Counter[str] = Counter()
    orphans: list[tuple[Holder, Decision]] = []
    async for holder, decision in _decisions(collecting, compared.missing):
        if IS_ORPHAN[decision.why]:
            orphans.append((holder, decision))
        else:
            kept[decision.why] += 1
    # Who is no candidate has no more than may be kept in any case.
    kept[Why.RECENT] += max(0, before.kept + before.orphans - kept.total() - len(orphans))
    orphans.sort(key=lambda one: (one[1].goes_at, one[1].archive.key))
    actions = Counter(decision.action for _, decision in orphans)
    return wire.GcPreview(
        kept={reason: count for reason, count in sorted(kept.items()) if count},
        would_mark=actions[Action.MARK],
        waiting=actions[Action.WAIT],
        would_remove=actions[Action.REMOVE],
        would_free_bytes=sum(one.archive.size_bytes for _, one in orphans if one.action is Action.REMOVE),
        items=[wire.gc_item(holder, decision) for holder, decision in orphans[:ITEMS_AT_MOST]],
        left_out=max(0, len(orphans) - ITEMS_AT_MOST),
        unknown=list(compared.unknown[:NAMED_AT_MOST]),
        unknown_count=len(compared.unknown),
        missing=sorted(compared.missing)[:NAMED_AT_MOST],
        missing_count=len(compared.missing),
        last=await _standing(collecting),
    )


async def _decisions(collecting: Collecting, missing: frozenset[str]) -> AsyncIterator[tuple[Holder, Decision]]:
    candidates = await collecting.store.candidates(collecting.retention)
    async for held in collecting.store.held(candidates, missing=missing):
        for decision in decide(held.holder, held.archives, collecting.retention, held.at):
            yield held.holder, decision


async def _standing(collecting: Collecting) -> wire.GcStanding:
    found = await collecting.store.housekeeping()
    report: Any = found.report
    return wire.GcStanding(
        requested_at=found.requested_at,
        tried_at=found.tried_at,
        ran_at=found.ran_at,
        report=wire.GcReport(**report) if report is not None else None,
    )
