"""Decide which archives are removed, and why each of the others is kept.

An archive that no workspace needs is an orphan. It is marked first, and removed after it was an orphan for the whole grace
period. From the begin of its removal on, no row may refer to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class RetentionReason(StrEnum):
    """Why an archive is kept, or is an orphan."""

    GOING = "going"
    UNDER_WAY = "under_way"
    OUT_OF_DATE = "out_of_date"
    PURGED = "purged"
    IN_ERROR = "in_error"
    EXPIRED = "expired"
    CAN_BE_UNDELETED = "can_be_undeleted"
    POINTED_AT = "pointed_at"
    ASKED_FOR = "asked_for"
    MADE_LAST = "made_last"
    LEFT_OVER = "left_over"
    RECENT = "recent"
    SUPERSEDED = "superseded"


# Each reason in words for users.
WORDS: Mapping[RetentionReason, str] = {
    RetentionReason.GOING: "its removal has begun",
    RetentionReason.UNDER_WAY: "an operation in progress uses it",
    RetentionReason.OUT_OF_DATE: "the archive store has archives of its workspace that the database does not have",
    RetentionReason.PURGED: "its workspace was purged",
    RetentionReason.IN_ERROR: "its workspace has an error",
    RetentionReason.EXPIRED: "its workspace was deleted too long ago to be undeleted",
    RetentionReason.CAN_BE_UNDELETED: "its workspace is deleted and can still be undeleted",
    RetentionReason.POINTED_AT: "its workspace is restored from it",
    RetentionReason.ASKED_FOR: "a recovery requested it",
    RetentionReason.MADE_LAST: "the last operation of its workspace wrote it",
    RetentionReason.LEFT_OVER: "an operation that ended left it incomplete",
    RetentionReason.RECENT: "it is one of the newest archives of its workspace",
    RetentionReason.SUPERSEDED: "its workspace has enough newer archives",
}

IS_ORPHAN: Mapping[RetentionReason, bool] = {
    RetentionReason.GOING: True,
    RetentionReason.UNDER_WAY: False,
    RetentionReason.OUT_OF_DATE: False,
    RetentionReason.PURGED: True,
    RetentionReason.IN_ERROR: False,
    RetentionReason.EXPIRED: True,
    RetentionReason.CAN_BE_UNDELETED: False,
    RetentionReason.POINTED_AT: False,
    RetentionReason.ASKED_FOR: False,
    RetentionReason.MADE_LAST: False,
    RetentionReason.LEFT_OVER: True,
    RetentionReason.RECENT: False,
    RetentionReason.SUPERSEDED: True,
}


class RetentionClass(StrEnum):
    GOES = "goes"
    KEPT = "kept"
    HELD = "held"
    """It cannot be restored (it was never verified), but it is not removed yet."""


class OrphanMark(StrEnum):
    """What an earlier collection recorded about an archive."""

    NONE = "none"
    STALE = "stale"
    """It was an orphan; whether it was needed since is not known."""
    FRESH = "fresh"
    """An orphan, not yet for the whole grace period."""
    RIPE = "ripe"
    """An orphan for the whole grace period."""
    GOING = "going"


class Action(StrEnum):
    KEEP = "keep"
    CLEAR = "clear"
    """It is no longer an orphan: remove the mark."""
    MARK = "mark"
    """It is an orphan from now on."""
    WAIT = "wait"
    REMOVE = "remove"


# The action by class and mark. GOING is final: the object may be partly removed.
ACTION: Mapping[RetentionClass, Mapping[OrphanMark, Action]] = {
    RetentionClass.GOES: {
        OrphanMark.NONE: Action.MARK,
        OrphanMark.STALE: Action.MARK,
        OrphanMark.FRESH: Action.WAIT,
        OrphanMark.RIPE: Action.REMOVE,
        OrphanMark.GOING: Action.REMOVE,
    },
    RetentionClass.KEPT: {
        OrphanMark.NONE: Action.KEEP,
        OrphanMark.STALE: Action.CLEAR,
        OrphanMark.FRESH: Action.CLEAR,
        OrphanMark.RIPE: Action.CLEAR,
        OrphanMark.GOING: Action.REMOVE,
    },
    RetentionClass.HELD: {
        OrphanMark.NONE: Action.MARK,
        OrphanMark.STALE: Action.MARK,
        OrphanMark.FRESH: Action.WAIT,
        OrphanMark.RIPE: Action.WAIT,
        OrphanMark.GOING: Action.REMOVE,
    },
}
MARKS = frozenset({Action.CLEAR, Action.MARK})

MISSED_ROUNDS = 3
"""After this many intervals without a collection, marks are stale."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How many archives are kept, and for how long."""

    keep: int
    """A workspace always keeps this many of its newest archives."""
    grace: timedelta
    undelete_grace: timedelta


@dataclass(frozen=True, slots=True)
class GcPolicy:
    """The rules for the collections of an installation."""

    retention: Retention
    every: timedelta


@dataclass(frozen=True, slots=True)
class GcWorkspace:
    """The facts about a workspace that decide on its archives."""

    id: str
    name: str
    archive_key: str | None
    op_id: str | None
    """Of the operation in progress, or of the last one."""
    under_way: frozenset[str]
    """The op_ids of operations that have not ended."""
    asked_for: str | None
    """The key that a recovery requests, or that the last one requested."""
    is_in_error: bool
    deleted_at: datetime | None
    gone_at: datetime | None
    """Since when no container and no volume exists; None if one does. An undelete resets it before the next pass."""
    is_purged: bool
    is_out_of_date: bool = False
    """The store has archives that the database does not have: the row may come from a backup that is older than they are."""


@dataclass(frozen=True, slots=True)
class GcArchive:
    """One archive of a workspace."""

    key: str
    op_id: str
    size_bytes: int | None
    proven_at: datetime | None
    """None: never. An operation left it incomplete, and it cannot be restored."""
    orphan_since: datetime | None = None
    removing_since: datetime | None = None
    is_there: bool = True
    """False: it was not in the listing of the store."""


@dataclass(frozen=True, slots=True)
class ArchiveDecision:
    archive: GcArchive
    why: RetentionReason
    action: Action
    goes_at: datetime | None
    """The earliest time of its removal; None if it is kept."""


def are_marks_stale(last_ended_at: datetime | None, terms: GcPolicy, now: datetime) -> bool:
    """Marks count while collections are regular. If the last one ended too long ago, or in the future, the database may have
    been restored from a backup, or the clock was set: whether an archive was needed in between is not known."""
    longest = max(MISSED_ROUNDS * terms.every, terms.retention.grace)
    return last_ended_at is None or not now - longest <= last_ended_at <= now


def decide(
    holder: GcWorkspace, archives: Sequence[GcArchive], retention: Retention, now: datetime, *, are_marks_stale: bool = False
) -> tuple[ArchiveDecision, ...]:
    """Return one decision for each archive of this workspace."""

    def decided(archive: GcArchive) -> ArchiveDecision:
        reason = retention_reason(archive, holder, archives, retention, now)
        mark = _mark(archive, retention, now, is_stale=are_marks_stale)
        fate = (
            RetentionClass.GOES
            if IS_ORPHAN[reason]
            else RetentionClass.KEPT
            if archive.proven_at is not None
            else RetentionClass.HELD
        )
        since = archive.orphan_since if mark not in (OrphanMark.NONE, OrphanMark.STALE) else None
        goes_at = (since or now) + retention.grace if fate is RetentionClass.GOES else None
        return ArchiveDecision(archive, reason, ACTION[fate][mark], goes_at)

    return tuple(map(decided, archives))


def retention_reason(
    archive: GcArchive, holder: GcWorkspace, archives: Sequence[GcArchive], retention: Retention, now: datetime
) -> RetentionReason:
    """Return the first reason that applies."""
    if archive.removing_since is not None:
        return RetentionReason.GOING
    if holder.under_way and (archive.op_id in holder.under_way or archive.key == holder.archive_key):
        return RetentionReason.UNDER_WAY
    if holder.is_out_of_date:
        return RetentionReason.OUT_OF_DATE
    if holder.is_purged:
        return RetentionReason.PURGED
    if holder.is_in_error:
        return RetentionReason.IN_ERROR
    if _has_expired(holder, retention, now):
        return RetentionReason.EXPIRED
    if archive.key == holder.archive_key:
        return RetentionReason.POINTED_AT if holder.deleted_at is None else RetentionReason.CAN_BE_UNDELETED
    if archive.key == holder.asked_for:
        return RetentionReason.ASKED_FOR
    if archive.op_id == holder.op_id:
        return RetentionReason.MADE_LAST
    if archive.proven_at is None:
        return RetentionReason.LEFT_OVER
    return RetentionReason.RECENT if _newer(archive, archives) < retention.keep else RetentionReason.SUPERSEDED


def _has_expired(holder: GcWorkspace, retention: Retention, now: datetime) -> bool:
    """A deletion in progress has not written its last archive yet, and an undeleted workspace does not expire."""
    if holder.deleted_at is None or holder.gone_at is None:
        return False
    return now - holder.gone_at > retention.undelete_grace


def _newer(archive: GcArchive, archives: Sequence[GcArchive]) -> int:
    """Count the newer archives that exist: one that the store has lost does not count."""
    others = [other for other in archives if other.is_there and other.removing_since is None]
    return sum(_age(other) > _age(archive) for other in others if other.proven_at is not None)


def _age(archive: GcArchive) -> tuple[datetime | None, str]:
    return archive.proven_at, archive.key


def _mark(archive: GcArchive, retention: Retention, now: datetime, *, is_stale: bool) -> OrphanMark:
    if archive.removing_since is not None:
        return OrphanMark.GOING
    if archive.orphan_since is None:
        return OrphanMark.NONE
    if is_stale:
        return OrphanMark.STALE
    return OrphanMark.RIPE if now - archive.orphan_since > retention.grace else OrphanMark.FRESH
