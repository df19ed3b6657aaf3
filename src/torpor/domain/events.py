"""What is an event, and how is it told?

On the bus as JSON, on the channel of its workspace and on that of its owner; to a client as the same without what concerns only
the way there.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from torpor.domain.records import Workspace

OF_ANY_WORKSPACE = "workspace:*"
# Older than every event, so whoever asks for what came after it is told everything anew.
BEGINNING = 0


class EventKind(StrEnum):
    STATE_CHANGED = "state_changed"
    ERROR = "error"
    SLEEPING_SOON = "sleeping_soon"
    """It is stopped at `sleeps_at` unless it is used again."""
    HEARTBEAT = "heartbeat"
    """Nothing happened; the id goes on all the same, so that it does not grow old."""
    RESET = "reset"
    """What was missed is not kept any more; how everything stands follows."""


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one workspace, with its number."""

    id: int
    seq: int
    """Among the changes of one workspace it says which was later, and they have it before they have an id."""
    kind: EventKind
    at: datetime
    owner_id: str
    workspace: Workspace
    """As it was then."""
    unshared: frozenset[str] = frozenset()
    """Users it was shared with until then."""


@dataclass(frozen=True, slots=True)
class EventMessage:
    """An event as it comes from the bus or goes to clients."""

    id: int
    after: int
    """The id before it, of all events: whoever has not seen that one has missed something."""
    seq: int
    workspace_id: str
    owner_id: str
    body: Mapping[str, Any]
    """What a client gets."""
    unshared: frozenset[str] = frozenset()
    """Users who are not told any more; what they know already is no longer theirs to know."""

    @property
    def usernames(self) -> frozenset[str]:
        """Who is told, besides administrators."""
        workspace = self.body["workspace"]
        return frozenset((workspace.get("owner", ""), *workspace.get("shares", ())))


def event_body(
    kind: EventKind, event_id: int, *, at: datetime | None = None, workspace: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {"id": event_id, "event": kind, "at": at.isoformat() if at else None, "workspace": workspace}


def event_message(event: Event, workspace: Mapping[str, Any]) -> EventMessage:
    """`workspace` is the event's, as the API tells it."""
    told = event_body(event.kind, event.id, at=event.at, workspace=workspace)
    # Ids have no holes: they are given out in the transaction that stores them.
    return EventMessage(event.id, event.id - 1, event.seq, event.workspace.id, event.owner_id, told, event.unshared)


def channels(told: EventMessage) -> tuple[str, str]:
    """That of its workspace, which says everything and which the API listens to; and that of its owner, for programs beside
    Torpor that follow one person. Who may read the bus may read both: they are for those who run the installation."""
    return f"workspace:{told.workspace_id}", f"user:{told.owner_id}"


def to_message(told: EventMessage, installation: str) -> bytes:
    way = {
        "after": told.after,
        "seq": told.seq,
        "owner_id": told.owner_id,
        "unshared": sorted(told.unshared),
        "installation": installation,
    }
    return json.dumps({**told.body, **way}).encode()


def from_message(message: bytes, installation: str) -> EventMessage | None:
    """None when it is another installation's: channels know no database numbers. ValueError when it is no event."""
    try:
        read = json.loads(message)
        if read.pop("installation") != installation:
            return None
        after, seq, owner_id = read.pop("after"), read.pop("seq"), read.pop("owner_id")
        # An older leader does not say it, and knows of no sharing.
        unshared = frozenset(map(str, read.pop("unshared", ())))
        EventKind(read["event"])
        return EventMessage(int(read["id"]), int(after), int(seq), str(read["workspace"]["id"]), str(owner_id), read, unshared)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an event: {error!r}") from error
