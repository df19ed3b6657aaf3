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
    HEARTBEAT = "heartbeat"
    """Nothing happened; the id goes on all the same, so that it does not grow old."""
    RESET = "reset"
    """What was missed is not kept any more; how everything stands follows."""


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one workspace, with its number."""

    id: int
    kind: EventKind
    at: datetime
    owner_id: str
    workspace: Workspace
    """As it was then."""


@dataclass(frozen=True, slots=True)
class Told:
    """An event as it comes from the bus or goes to clients."""

    id: int
    after: int
    """The id before it, of all events: whoever has not seen that one has missed something."""
    workspace_id: str
    owner_id: str
    body: Mapping[str, Any]
    """What a client gets."""


def body(
    kind: EventKind, event_id: int, *, at: datetime | None = None, workspace: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {"id": event_id, "event": kind, "at": at.isoformat() if at else None, "workspace": workspace}


def tell(event: Event, workspace: Mapping[str, Any]) -> Told:
    """`workspace` is the event's, as the API tells it."""
    told = body(event.kind, event.id, at=event.at, workspace=workspace)
    # Ids have no holes: they are given out in the transaction that stores them.
    return Told(event.id, event.id - 1, event.workspace.id, event.owner_id, told)


def channels(told: Told) -> tuple[str, str]:
    return f"workspace:{told.workspace_id}", f"user:{told.owner_id}"


def to_message(told: Told) -> bytes:
    return json.dumps({**told.body, "after": told.after, "owner_id": told.owner_id}).encode()


def from_message(message: bytes) -> Told:
    """ValueError when it is none of ours."""
    try:
        read = json.loads(message)
        after, owner_id = read.pop("after"), read.pop("owner_id")
        return Told(int(read["id"]), int(after), str(read["workspace"]["id"]), str(owner_id), read)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an event: {error!r}") from error
