"""Decide which packs are removed, and why each of the others is kept.

The archives of a workspace share packs. A pack that no archive names is an orphan. Like an archive, it is marked first, and
removed after the grace period. While an operation of its workspace is in progress, or its archives are read, it is not marked
or removed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from torpor.domain.retention import (
    ACTION,
    Action,
    GcWorkspace,
    Retention,
    orphan_mark,
    removal_time,
    retention_class,
)


class PackReason(StrEnum):
    """Why a pack is kept, or is an orphan."""

    GOING = "going"
    NEEDED = "needed"
    OUT_OF_DATE = "out_of_date"
    IN_ERROR = "in_error"
    LEFT_OVER = "left_over"
    UNNEEDED = "unneeded"


# Each reason in words for users.
PACK_WORDS: Mapping[PackReason, str] = {
    PackReason.GOING: "its removal has begun",
    PackReason.NEEDED: "an archive needs it",
    PackReason.OUT_OF_DATE: "the archive store has archives or packs of its workspace that the database does not have",
    PackReason.IN_ERROR: "its workspace has an error",
    PackReason.LEFT_OVER: "an operation that ended left it, and no archive needs it",
    PackReason.UNNEEDED: "no archive needs it any more",
}

IS_ORPHAN_PACK: Mapping[PackReason, bool] = {
    PackReason.GOING: True,
    PackReason.NEEDED: False,
    PackReason.OUT_OF_DATE: False,
    PackReason.IN_ERROR: False,
    PackReason.LEFT_OVER: True,
    PackReason.UNNEEDED: True,
}


class PackId(NamedTuple):
    workspace_id: str
    name: str

    def __str__(self) -> str:
        return f"{self.workspace_id}/packs/{self.name}"


@dataclass(frozen=True, slots=True)
class GcPack:
    """One pack of a workspace."""

    name: str
    size_bytes: int
    proven_at: datetime | None
    """None: never. An operation that did not come to its end wrote it."""
    is_named: bool
    """An archive names it, also one that is an orphan or is being removed."""
    orphan_since: datetime | None = None
    removing_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class PackDecision:
    pack: GcPack
    why: PackReason
    action: Action
    goes_at: datetime | None
    """The earliest time of its removal; None if it is kept, or waits for the end of an operation."""


def decide_packs(
    holder: GcWorkspace, packs: Sequence[GcPack], retention: Retention, now: datetime, *, are_marks_stale: bool = False
) -> tuple[PackDecision, ...]:
    """Return one decision for each of these packs of this workspace."""

    def decided(pack: GcPack) -> PackDecision:
        reason = pack_reason(pack, holder)
        mark = orphan_mark(pack.orphan_since, pack.removing_since, retention, now, is_stale=are_marks_stale)
        is_paused = bool(holder.under_way) or holder.is_read
        fate = retention_class(is_orphan=IS_ORPHAN_PACK[reason], is_paused=is_paused, is_proven=pack.proven_at is not None)
        return PackDecision(pack, reason, ACTION[fate][mark], removal_time(fate, mark, pack.orphan_since, retention, now))

    return tuple(map(decided, packs))


def pack_reason(pack: GcPack, holder: GcWorkspace) -> PackReason:
    """Return the first reason that applies."""
    if pack.removing_since is not None:
        return PackReason.GOING
    if pack.is_named:
        return PackReason.NEEDED
    if holder.is_out_of_date:
        return PackReason.OUT_OF_DATE
    if holder.is_in_error and not holder.is_purged:
        return PackReason.IN_ERROR
    return PackReason.LEFT_OVER if pack.proven_at is None else PackReason.UNNEEDED
