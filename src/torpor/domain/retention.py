"""Which archives does nobody need any more, and why is each of the others kept?

An archive that nobody refers to is an orphan. It is marked first and removed only when it has been one for the whole grace
period; from the moment its removal has begun nothing may refer to it again.
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


# Every reason in words.
WORDS: Mapping[RetentionReason, str] = {
    RetentionReason.GOING: "its removal has begun",
    RetentionReason.UNDER_WAY: "an operation under way refers to it",
    RetentionReason.OUT_OF_DATE: "the store holds archives of its workspace that the database does not know",
    RetentionReason.PURGED: "its workspace was purged",
    RetentionReason.IN_ERROR: "its workspace is in ERROR",
    RetentionReason.EXPIRED: "its workspace was deleted too long ago to be undeleted",
    RetentionReason.CAN_BE_UNDELETED: "its workspace is deleted and can still be undeleted",
    RetentionReason.POINTED_AT: "its workspace wakes from it",
    RetentionReason.ASKED_FOR: "a recovery asked for it",
    RetentionReason.MADE_LAST: "its workspace's last operation made it",
    RetentionReason.LEFT_OVER: "an operation that has ended left it behind",
    RetentionReason.RECENT: "it is among the last of its workspace",
    RetentionReason.SUPERSEDED: "its workspace has enough newer ones",
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
    """Nobody could ever go back to it, and yet it does not go just now."""


class OrphanMark(StrEnum):
    """What an earlier look has written on an archive."""

    NONE = "none"
    STALE = "stale"
    """An orphan once; what came since is not known."""
    FRESH = "fresh"
    """An orphan, not yet for the whole grace period."""
    RIPE = "ripe"
    """An orphan for the whole grace period."""
    GOING = "going"


class Action(StrEnum):
    KEEP = "keep"
    CLEAR = "clear"
    """It was an orphan, and is none any more."""
    MARK = "mark"
    """An orphan from now on."""
    WAIT = "wait"
    REMOVE = "remove"


# What is to be done with it, by its fate and its mark. There is no way back from GOING: its object may be half gone.
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
"""After so many intervals without a collection nobody knows what marks are worth."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is kept."""

    keep: int = 5
    """So many of its last archives a workspace keeps in any case."""
    grace: timedelta = timedelta(hours=2)
    undelete_grace: timedelta = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class GcPolicy:
    """What the collections of an installation go by."""

    retention: Retention = Retention()
    every: timedelta = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class GcWorkspace:
    """A workspace, as far as its archives are concerned."""

    id: str
    name: str
    archive_key: str | None
    op_id: str | None
    """Of what is under way, or was last."""
    under_way: frozenset[str]
    """The op_ids of operations that have not ended."""
    asked_for: str | None
    """The key that a recovery asks for, or last asked for."""
    is_in_error: bool
    deleted_at: datetime | None
    gone_at: datetime | None
    """When neither container nor volume was left any more, if that is so now; an undelete comes before the next look."""
    is_purged: bool
    is_out_of_date: bool = False
    """The store holds archives of it that nobody can explain: the row may be from a backup, and older than they are."""


@dataclass(frozen=True, slots=True)
class GcArchive:
    """One archive of a workspace."""

    key: str
    op_id: str
    size_bytes: int | None
    proven_at: datetime | None
    """None: never. An operation left it behind, and nobody can go back to it."""
    orphan_since: datetime | None = None
    removing_since: datetime | None = None
    is_there: bool = True
    """False: the store's listing did not show it."""


@dataclass(frozen=True, slots=True)
class ArchiveDecision:
    archive: GcArchive
    why: RetentionReason
    action: Action
    goes_at: datetime | None
    """Not before this, as things stand; None for what is kept."""


def are_marks_stale(last_ended_at: datetime | None, terms: GcPolicy, now: datetime) -> bool:
    """Marks count while collections are regular. When the last one ended too long ago, or in the future, the database may have
    been restored from a backup, or the clock set: what has come to refer to an archive meanwhile is not known."""
    longest = max(MISSED_ROUNDS * terms.every, terms.retention.grace)
    return last_ended_at is None or not now - longest <= last_ended_at <= now


def decide(
    holder: GcWorkspace, archives: Sequence[GcArchive], retention: Retention, now: datetime, *, are_marks_stale: bool = False
) -> tuple[ArchiveDecision, ...]:
    """One decision for each archive of this workspace."""

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
    """The first reason that holds."""
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
    """A deletion that is not over has not made its last archive yet, and one that was taken back is none any more."""
    if holder.deleted_at is None or holder.gone_at is None:
        return False
    return now - holder.gone_at > retention.undelete_grace


def _newer(archive: GcArchive, archives: Sequence[GcArchive]) -> int:
    """How many newer ones there really are: one that the store has lost takes nobody's place."""
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
