"""Which archives does nobody need any more, and why is each of the others kept?

An archive that nobody refers to is an orphan. It is marked first and removed only when it has been one for the whole grace
period; from the moment its removal has begun nothing may refer to it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class Why(StrEnum):
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
WORDS: Mapping[Why, str] = {
    Why.GOING: "its removal has begun",
    Why.UNDER_WAY: "an operation under way refers to it",
    Why.OUT_OF_DATE: "the store holds archives of its workspace that the database does not know",
    Why.PURGED: "its workspace was purged",
    Why.IN_ERROR: "its workspace is in ERROR",
    Why.EXPIRED: "its workspace was deleted too long ago to be undeleted",
    Why.CAN_BE_UNDELETED: "its workspace is deleted and can still be undeleted",
    Why.POINTED_AT: "its workspace wakes from it",
    Why.ASKED_FOR: "a recovery asked for it",
    Why.MADE_LAST: "its workspace's last operation made it",
    Why.LEFT_OVER: "an operation that has ended left it behind",
    Why.RECENT: "it is among the last of its workspace",
    Why.SUPERSEDED: "its workspace has enough newer ones",
}

IS_ORPHAN: Mapping[Why, bool] = {
    Why.GOING: True,
    Why.UNDER_WAY: False,
    Why.OUT_OF_DATE: False,
    Why.PURGED: True,
    Why.IN_ERROR: False,
    Why.EXPIRED: True,
    Why.CAN_BE_UNDELETED: False,
    Why.POINTED_AT: False,
    Why.ASKED_FOR: False,
    Why.MADE_LAST: False,
    Why.LEFT_OVER: True,
    Why.RECENT: False,
    Why.SUPERSEDED: True,
}


class Fate(StrEnum):
    GOES = "goes"
    KEPT = "kept"
    HELD = "held"
    """Nobody could ever go back to it, and yet it does not go just now."""


class Mark(StrEnum):
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
ACTION: Mapping[Fate, Mapping[Mark, Action]] = {
    Fate.GOES: {
        Mark.NONE: Action.MARK,
        Mark.STALE: Action.MARK,
        Mark.FRESH: Action.WAIT,
        Mark.RIPE: Action.REMOVE,
        Mark.GOING: Action.REMOVE,
    },
    Fate.KEPT: {
        Mark.NONE: Action.KEEP,
        Mark.STALE: Action.CLEAR,
        Mark.FRESH: Action.CLEAR,
        Mark.RIPE: Action.CLEAR,
        Mark.GOING: Action.REMOVE,
    },
    Fate.HELD: {
        Mark.NONE: Action.MARK,
        Mark.STALE: Action.MARK,
        Mark.FRESH: Action.WAIT,
        Mark.RIPE: Action.WAIT,
        Mark.GOING: Action.REMOVE,
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
class Terms:
    """What the collections of an installation go by."""

    retention: Retention = Retention()
    every: timedelta = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Holder:
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
class Stored:
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
class Decision:
    archive: Stored
    why: Why
    action: Action
    goes_at: datetime | None
    """Not before this, as things stand; None for what is kept."""


def are_marks_stale(last_ended_at: datetime | None, terms: Terms, now: datetime) -> bool:
    """Marks count while collections are regular. When the last one ended too long ago, or in the future, the database may have
    been restored from a backup, or the clock set: what has come to refer to an archive meanwhile is not known."""
    longest = max(MISSED_ROUNDS * terms.every, terms.retention.grace)
    return last_ended_at is None or not now - longest <= last_ended_at <= now


def decide(
    holder: Holder, archives: Sequence[Stored], retention: Retention, now: datetime, *, are_marks_stale: bool = False
) -> tuple[Decision, ...]:
    """One decision for each archive of this workspace."""

    def decided(archive: Stored) -> Decision:
        reason = why(archive, holder, archives, retention, now)
        mark = _mark(archive, retention, now, is_stale=are_marks_stale)
        fate = Fate.GOES if IS_ORPHAN[reason] else Fate.KEPT if archive.proven_at is not None else Fate.HELD
        since = archive.orphan_since if mark not in (Mark.NONE, Mark.STALE) else None
        goes_at = (since or now) + retention.grace if fate is Fate.GOES else None
        return Decision(archive, reason, ACTION[fate][mark], goes_at)

    return tuple(map(decided, archives))


def why(archive: Stored, holder: Holder, archives: Sequence[Stored], retention: Retention, now: datetime) -> Why:
    """The first reason that holds."""
    if archive.removing_since is not None:
        return Why.GOING
    if holder.under_way and (archive.op_id in holder.under_way or archive.key == holder.archive_key):
        return Why.UNDER_WAY
    if holder.is_out_of_date:
        return Why.OUT_OF_DATE
    if holder.is_purged:
        return Why.PURGED
    if holder.is_in_error:
        return Why.IN_ERROR
    if _has_expired(holder, retention, now):
        return Why.EXPIRED
    if archive.key == holder.archive_key:
        return Why.POINTED_AT if holder.deleted_at is None else Why.CAN_BE_UNDELETED
    if archive.key == holder.asked_for:
        return Why.ASKED_FOR
    if archive.op_id == holder.op_id:
        return Why.MADE_LAST
    if archive.proven_at is None:
        return Why.LEFT_OVER
    return Why.RECENT if _newer(archive, archives) < retention.keep else Why.SUPERSEDED


def _has_expired(holder: Holder, retention: Retention, now: datetime) -> bool:
    """A deletion that is not over has not made its last archive yet, and one that was taken back is none any more."""
    if holder.deleted_at is None or holder.gone_at is None:
        return False
    return now - holder.gone_at > retention.undelete_grace


def _newer(archive: Stored, archives: Sequence[Stored]) -> int:
    """How many newer ones there really are: one that the store has lost takes nobody's place."""
    others = [other for other in archives if other.is_there and other.removing_since is None]
    return sum(_age(other) > _age(archive) for other in others if other.proven_at is not None)


def _age(archive: Stored) -> tuple[datetime | None, str]:
    return archive.proven_at, archive.key


def _mark(archive: Stored, retention: Retention, now: datetime, *, is_stale: bool) -> Mark:
    if archive.removing_since is not None:
        return Mark.GOING
    if archive.orphan_since is None:
        return Mark.NONE
    if is_stale:
        return Mark.STALE
    return Mark.RIPE if now - archive.orphan_since > retention.grace else Mark.FRESH
