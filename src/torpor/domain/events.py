"""Define events, and their messages on the bus and to clients.

On the bus an event is JSON, on the channel of its workspace and on the channel of its owner. A client gets the same without the
fields for delivery.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from torpor.domain.records import Workspace

OF_ANY_WORKSPACE = "workspace:*"
# Older than every event: a client that asks for everything after it gets the full state.
BEGINNING = 0


class EventKind(StrEnum):
    STATE_CHANGED = "state_changed"
    ERROR = "error"
    SLEEPING_SOON = "sleeping_soon"
    """It is stopped at `sleeps_at` unless it is used again."""
    HEARTBEAT = "heartbeat"
    """No change; it carries the current id, so that the client's id does not become too old."""
    RESET = "reset"
    """The missed events are no longer stored; the full state follows."""


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one workspace, with its number."""

    id: int
    seq: int
    """Orders the changes of one workspace; assigned before the id."""
    kind: EventKind
    at: datetime
    owner_id: str
    workspace: Workspace
    """As it was then."""
    unshared: frozenset[str] = frozenset()
    """Users whose share this change removed."""


@dataclass(frozen=True, slots=True)
class EventMessage:
    """An event as it comes from the bus or goes to clients."""

    id: int
    after: int
    """The id of the event before it: a client that has not received that one has missed events."""
    seq: int
    workspace_id: str
    owner_id: str
    body: Mapping[str, Any]
    """What a client gets."""
    unshared: frozenset[str] = frozenset()
    """Users who lost access; their clients drop the workspace."""

    @property
    def usernames(self) -> frozenset[str]:
        """The users who get it, besides administrators."""
        workspace = self.body["workspace"]
        return frozenset((workspace.get("owner", ""), *workspace.get("shares", ())))


def event_body(
    kind: EventKind, event_id: int, *, at: datetime | None = None, workspace: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {"id": event_id, "event": kind, "at": at.isoformat() if at else None, "workspace": workspace}


def event_message(event: Event, workspace: Mapping[str, Any]) -> EventMessage:
    """`workspace`: the workspace of the event, as the API serialises it."""
    told = event_body(event.kind, event.id, at=event.at, workspace=workspace)
    # Ids have no gaps: the transaction that stores an event assigns its id.
    return EventMessage(event.id, event.id - 1, event.seq, event.workspace.id, event.owner_id, told, event.unshared)


def channels(told: EventMessage) -> tuple[str, str]:
    """The channel of its workspace, which the API subscribes to, and the channel of its owner, for other programs that follow
    one user. Clients of the bus can read both, so only operators have access to the bus."""
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
    """Return None for an event of another installation: the databases of Redis share all channels. Raise ValueError if it is
    not an event."""
    try:
        read = json.loads(message)
        if read.pop("installation") != installation:
            return None
        after, seq, owner_id = read.pop("after"), read.pop("seq"), read.pop("owner_id")
        # An older leader does not send it, because it has no shares.
        unshared = frozenset(map(str, read.pop("unshared", ())))
        EventKind(read["event"])
        return EventMessage(int(read["id"]), int(after), int(seq), str(read["workspace"]["id"]), str(owner_id), read, unshared)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an event: {error!r}") from error
