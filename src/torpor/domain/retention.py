"""Decide which archives are removed, and why each of the others is kept.

An archive that no workspace needs is an orphan. It is marked first, and removed after it was an orphan for the whole grace
period. From the begin of its removal on, no row may refer to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum


class RetentionReason(StrEnum):
    """Why an archive is kept, or is an orphan."""

    GOING = "going"
    UNDER_WAY = "under_way"
    TO_COPY = "to_copy"
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
    DAILY = "daily"
    WEEKLY = "weekly"
    SUPERSEDED = "superseded"


# Each reason in words for users.
WORDS: Mapping[RetentionReason, str] = {
    RetentionReason.GOING: "its removal has begun",
    RetentionReason.UNDER_WAY: "an operation in progress uses it",
    RetentionReason.TO_COPY: "a fork is being copied from it",
    RetentionReason.OUT_OF_DATE: "the archive store has archives of its workspace that the database does not have",
    RetentionReason.PURGED: "its workspace was purged",
    RetentionReason.IN_ERROR: "its workspace has an error",
    RetentionReason.EXPIRED: "its workspace was deleted too long ago to be undeleted",
    RetentionReason.CAN_BE_UNDELETED: "its workspace is deleted and can still be undeleted",
    RetentionReason.POINTED_AT: "its workspace is restored from it",
    RetentionReason.ASKED_FOR: "a recovery or a restore requested it",
    RetentionReason.MADE_LAST: "the last operation of its workspace wrote it",
    RetentionReason.LEFT_OVER: "an operation that ended left it incomplete",
    RetentionReason.RECENT: "it is one of the newest archives of its workspace",
    RetentionReason.DAILY: "it is the last archive of its day",
    RetentionReason.WEEKLY: "it is the last archive of its week",
    RetentionReason.SUPERSEDED: "its workspace has enough newer archives",
}

IS_ORPHAN: Mapping[RetentionReason, bool] = {
    RetentionReason.GOING: True,
    RetentionReason.UNDER_WAY: False,
    RetentionReason.TO_COPY: False,
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
    RetentionReason.DAILY: False,
    RetentionReason.WEEKLY: False,
    RetentionReason.SUPERSEDED: True,
}


class RetentionClass(StrEnum):
    GOES = "goes"
    KEPT = "kept"
    HELD = "held"
    """It cannot be restored (it was never verified), but it is not removed yet."""
    PAUSED = "paused"
    """It is not needed, but an operation is in progress or a program reads: nothing is marked or removed meanwhile."""


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
    # A stale mark is renewed, because the next collection would take it for a regular one.
    RetentionClass.PAUSED: {
        OrphanMark.NONE: Action.KEEP,
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
    keep_daily: int
    """For so many days, today included, it keeps the last archive of each day (of UTC)."""
    keep_weekly: int
    """For so many weeks, this one included, it keeps the last archive of each week."""


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
    to_restore: str | None = None
    """The key that is to replace the home."""
    to_copy: frozenset[str] = frozenset()
    """The keys that forks of this workspace are being copied from."""
    is_out_of_date: bool = False
    """The store has archives that the database does not have: the row may come from a backup that is older than they are."""
    is_read: bool = False
    """Its archives are being read: a proof, a copy or an export is in progress."""


@dataclass(frozen=True, slots=True)
class GcArchive:
    """One archive of a workspace."""

    key: str
    op_id: str
    size_bytes: int | None
    """What its removal frees. None: it has packs, which are removed later; or it was never verified."""
    proven_at: datetime | None
    """None: never. An operation left it incomplete, and it cannot be restored."""
    orphan_since: datetime | None = None
    removing_since: datetime | None = None
    is_there: bool = True
    """False: it was not in the listing of the store, or its root or one of its packs is damaged."""
    has_root: bool = False
    """It is of format 2: its root names packs that other archives may share."""


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
        mark = orphan_mark(archive.orphan_since, archive.removing_since, retention, now, is_stale=are_marks_stale)
        fate = retention_class(is_orphan=IS_ORPHAN[reason], is_paused=holder.is_read, is_proven=archive.proven_at is not None)
        return ArchiveDecision(
            archive, reason, ACTION[fate][mark], removal_time(fate, mark, archive.orphan_since, retention, now)
        )

    return tuple(map(decided, archives))


def retention_class(*, is_orphan: bool, is_paused: bool, is_proven: bool) -> RetentionClass:
    if is_orphan:
        return RetentionClass.PAUSED if is_paused else RetentionClass.GOES
    return RetentionClass.KEPT if is_proven else RetentionClass.HELD


def removal_time(
    fate: RetentionClass, mark: OrphanMark, orphan_since: datetime | None, retention: Retention, now: datetime
) -> datetime | None:
    """The earliest time of a removal; None if it is kept or if the removal waits."""
    since = orphan_since if mark not in (OrphanMark.NONE, OrphanMark.STALE) else None
    return (since or now) + retention.grace if fate is RetentionClass.GOES else None


def retention_reason(
    archive: GcArchive, holder: GcWorkspace, archives: Sequence[GcArchive], retention: Retention, now: datetime
) -> RetentionReason:
    """Return the first reason that applies."""
    if archive.removing_since is not None:
        return RetentionReason.GOING
    if holder.under_way and (archive.op_id in holder.under_way or archive.key == holder.archive_key):
        return RetentionReason.UNDER_WAY
    if archive.key in holder.to_copy:
        return RetentionReason.TO_COPY
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
    if archive.key in (holder.asked_for, holder.to_restore):
        return RetentionReason.ASKED_FOR
    if archive.op_id == holder.op_id:
        return RetentionReason.MADE_LAST
    if archive.proven_at is None:
        return RetentionReason.LEFT_OVER
    if _newer(archive, archives) < retention.keep:
        return RetentionReason.RECENT
    return _periodic_reason(archive, archives, retention, now) or RetentionReason.SUPERSEDED


def _periodic_reason(
    archive: GcArchive, archives: Sequence[GcArchive], retention: Retention, now: datetime
) -> RetentionReason | None:
    """Whether it is the last archive of a day or week that is kept. Once a day or week is over, its last archive stays the
    same, so the archives that are kept grow old instead of being replaced."""
    for reason, period, count in (
        (RetentionReason.DAILY, _day, retention.keep_daily),
        (RetentionReason.WEEKLY, _week, retention.keep_weekly),
    ):
        assert archive.proven_at is not None, "an archive that was never proven is left over"
        mine = period(archive.proven_at)
        same = [other for other in archives if other.proven_at is not None and period(other.proven_at) == mine]
        if mine > period(now) - count and _newer(archive, same) == 0:
            return reason
    return None


def _day(at: datetime) -> int:
    return at.astimezone(UTC).toordinal()


def _week(at: datetime) -> int:
    """Weeks begin on Monday, as the first day of the calendar did."""
    return (_day(at) - 1) // 7


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


def orphan_mark(
    orphan_since: datetime | None, removing_since: datetime | None, retention: Retention, now: datetime, *, is_stale: bool
) -> OrphanMark:
    if removing_since is not None:
        return OrphanMark.GOING
    if orphan_since is None:
        return OrphanMark.NONE
    if is_stale:
        return OrphanMark.STALE
    return OrphanMark.RIPE if now - orphan_since > retention.grace else OrphanMark.FRESH
