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
    PURGED = "purged"
    IN_ERROR = "in_error"
    EXPIRED = "expired"
    CAN_BE_UNDELETED = "can_be_undeleted"
    POINTED_AT = "pointed_at"
    ASKED_FOR = "asked_for"
    MADE_LAST = "made_last"
    RECENT = "recent"
    SUPERSEDED = "superseded"


# Every reason in words.
WORDS: Mapping[Why, str] = {
    Why.GOING: "its removal has begun",
    Why.UNDER_WAY: "an operation under way refers to it",
    Why.PURGED: "its workspace was purged",
    Why.IN_ERROR: "its workspace is in ERROR",
    Why.EXPIRED: "its workspace was deleted too long ago to be undeleted",
    Why.CAN_BE_UNDELETED: "its workspace is deleted and can still be undeleted",
    Why.POINTED_AT: "its workspace wakes from it",
    Why.ASKED_FOR: "a recovery asked for it",
    Why.MADE_LAST: "its workspace's last operation made it",
    Why.RECENT: "it is among the last of its workspace",
    Why.SUPERSEDED: "its workspace has enough newer ones",
}

IS_ORPHAN: Mapping[Why, bool] = {
    Why.GOING: True,
    Why.UNDER_WAY: False,
    Why.PURGED: True,
    Why.IN_ERROR: False,
    Why.EXPIRED: True,
    Why.CAN_BE_UNDELETED: False,
    Why.POINTED_AT: False,
    Why.ASKED_FOR: False,
    Why.MADE_LAST: False,
    Why.RECENT: False,
    Why.SUPERSEDED: True,
}


class Mark(StrEnum):
    """What an earlier look has written on an archive."""

    NONE = "none"
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


# What is to be done with an orphan, and with what is kept, by its mark. There is no way back from GOING.
ACTION: Mapping[bool, Mapping[Mark, Action]] = {
    True: {Mark.NONE: Action.MARK, Mark.FRESH: Action.WAIT, Mark.RIPE: Action.REMOVE, Mark.GOING: Action.REMOVE},
    False: {Mark.NONE: Action.KEEP, Mark.FRESH: Action.CLEAR, Mark.RIPE: Action.CLEAR, Mark.GOING: Action.REMOVE},
}
WRITES = frozenset({Action.CLEAR, Action.MARK, Action.REMOVE})


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is kept."""

    keep: int = 5
    """So many of its last archives a workspace keeps in any case."""
    grace: timedelta = timedelta(hours=2)
    undelete_grace: timedelta = timedelta(days=7)


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
    is_gone: bool
    """Its deletion is over: neither container nor volume is left."""
    is_purged: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """One archive of a workspace."""

    key: str
    op_id: str
    size_bytes: int
    proven_at: datetime
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


def decide(holder: Holder, archives: Sequence[Stored], retention: Retention, now: datetime) -> tuple[Decision, ...]:
    """One decision for each archive of this workspace."""
    return tuple(_decided(archive, why(archive, holder, archives, retention, now), retention, now) for archive in archives)


def why(archive: Stored, holder: Holder, archives: Sequence[Stored], retention: Retention, now: datetime) -> Why:
    """The first reason that holds."""
    if archive.removing_since is not None:
        return Why.GOING
    if holder.under_way and (archive.op_id in holder.under_way or archive.key == holder.archive_key):
        return Why.UNDER_WAY
    if holder.is_purged:
        return Why.PURGED
    if holder.is_in_error:
        return Why.IN_ERROR
    # A deletion that is not over has not made its last archive yet: until then nothing of it is given up.
    if holder.deleted_at is not None and holder.is_gone and now - holder.deleted_at > retention.undelete_grace:
        return Why.EXPIRED
    if archive.key == holder.archive_key:
        return Why.POINTED_AT if holder.deleted_at is None else Why.CAN_BE_UNDELETED
    if archive.key == holder.asked_for:
        return Why.ASKED_FOR
    if archive.op_id == holder.op_id:
        return Why.MADE_LAST
    return Why.RECENT if _newer(archive, archives) < retention.keep else Why.SUPERSEDED


def _newer(archive: Stored, archives: Sequence[Stored]) -> int:
    """How many newer ones there really are: one that the store has lost takes nobody's place."""
    return sum(
        (other.proven_at, other.key) > (archive.proven_at, archive.key) and other.is_there and other.removing_since is None
        for other in archives
    )


def _decided(archive: Stored, reason: Why, retention: Retention, now: datetime) -> Decision:
    is_orphan = IS_ORPHAN[reason]
    goes_at = (archive.orphan_since or now) + retention.grace if is_orphan else None
    return Decision(archive, reason, ACTION[is_orphan][_mark(archive, retention, now)], goes_at)


def _mark(archive: Stored, retention: Retention, now: datetime) -> Mark:
    if archive.removing_since is not None:
        return Mark.GOING
    if archive.orphan_since is None:
        return Mark.NONE
    return Mark.RIPE if now - archive.orphan_since > retention.grace else Mark.FRESH
