"""What the WebSockets of `shell` and `exec` have in common: waking first, how long a caller may stay, and how it ends."""

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fastapi import WebSocket, WebSocketDisconnect
from starlette.types import Message

from torpor.accounts import Accounts, Caller
from torpor.api.event_fanout import EventFeed
from torpor.api.staying import until_refused
from torpor.domain.access import Permission
from torpor.domain.errors import Failed, Refused, Unavailable
from torpor.domain.records import Workspace
from torpor.domain.states import Operation, Phase, Wish
from torpor.loops import abandon_tasks, stop
from torpor.ports import TerminalSize
from torpor.service.wishes import Wishes

MOST_COLUMNS_OR_ROWS = 2000
LOOK_S = 0.25
"""How often a workspace that wakes is looked at."""
EARLY_BYTES = 1 << 18
"""How much of what a client sends is kept while its workspace wakes."""
LAST_WORD_S = 5.0
LONGEST_REASON_BYTES = 123  # of a close frame

# A server that has closed it by itself (it stops, or its pings were not answered) says that in its own way.
GONE = (WebSocketDisconnect, RuntimeError)
# Close codes (RFC 6455).
NORMAL, GOING_AWAY, NOT_ALLOWED, TOO_MUCH, BROKEN = 1000, 1001, 1008, 1009, 1011


@dataclass(frozen=True, slots=True)
class CommandExit:
    code: int


@dataclass(frozen=True, slots=True)
class ForcedClose:
    """It did not end by itself."""

    close_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class ClientDisconnect:
    """The client is gone."""


End: TypeAlias = CommandExit | ForcedClose | ClientDisconnect


class Inbox:
    """What a client sends, also before there is a command that could take it."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._early: deque[Message] = deque()

    async def next(self) -> Message:
        return self._early.popleft() if self._early else await self._websocket.receive()

    async def until_gone(self) -> None:
        """Keeps what comes, up to a limit; returns when the client has left."""
        kept = 0
        while kept <= EARLY_BYTES:
            message = await self._websocket.receive()
            self._early.append(message)
            if message["type"] == "websocket.disconnect":
                return
            kept += len(message.get("bytes") or message.get("text") or b"") + 1
        await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class ConversationContext:
    """A caller at a workspace, over one WebSocket."""

    websocket: WebSocket
    inbox: Inbox
    wishes: Wishes
    accounts: Accounts
    feed: EventFeed
    caller: Caller
    found: Workspace


class Conversation(ABC):
    """Between a client and a command, for as long as the client may."""

    def __init__(self, visit: ConversationContext) -> None:
        self._websocket = visit.websocket
        self._inbox = visit.inbox
        self._visit = visit
        self._found = visit.found

    @abstractmethod
    def _ways(self) -> Sequence[Coroutine[Any, Any, End]]:
        """What goes on at once. The first that ends says how."""

    async def run(self) -> End:
        ways = [asyncio.create_task(way) for way in (*self._ways(), self._be_signed_in(), self._be_allowed())]
        try:
            ended, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            return next(way.result() for way in ways if way in ended)
        finally:
            await stop(*ways, past_deadline=abandon_tasks)

    async def _be_signed_in(self) -> End:
        await self._visit.accounts.until_ended(self._visit.caller)
        return ForcedClose(NOT_ALLOWED, "you are not signed in any more")

    async def _be_allowed(self) -> End:
        """It may be shared with other users by now, or deleted; and its times may have changed."""
        with self._visit.feed.news_for(self._visit.caller.user.username, self._found.id) as news:
            await until_refused(self._look, news)
        return ForcedClose(NOT_ALLOWED, f"you may not use {self._found.name!r} any more")

    async def _look(self) -> None:
        self._found = await self._visit.wishes.find(self._visit.caller, self._found.id, Permission.RUN)


# ── waking ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def wants_wake(query: Mapping[str, str]) -> bool:
    said = query.get("wake", "false")
    if said not in ("true", "false"):
        raise Refused("bad_request", f"wake is {said!r}; allowed are true and false")
    return said == "true"


async def admitted(wishes: Wishes, caller: Caller, workspace: str, *, wake: bool) -> Workspace:
    """The workspace, which runs or was woken; Refused before the upgrade like any other call."""
    found = await wishes.find(caller, workspace, Permission.RUN)
    if wake:
        # Also where it runs: it may just be going to sleep.
        return await wishes.wake(caller, found.id)
    if not found.container_present:
        raise Refused("not_running", f"{found.name!r} is {found.phase}; start it first", workspace=found.name)
    return await wishes.using.stay(found)


def is_awake(workspace: Workspace) -> bool:
    return workspace.container_present and workspace.phase is Phase.RUNNING and workspace.operation is not Operation.STOPPING


async def until_awake(visit: ConversationContext) -> None:
    """Tells the client how it proceeds. Refused when it will not run; WebSocketDisconnect when the client has left."""
    leaving = asyncio.create_task(visit.inbox.until_gone())
    signed_out = asyncio.create_task(visit.accounts.until_ended(visit.caller))
    try:
        await _follow(visit, leaving, signed_out)
    finally:
        await stop(leaving, signed_out, past_deadline=abandon_tasks)


async def _follow(visit: ConversationContext, leaving: "asyncio.Task[None]", signed_out: "asyncio.Task[None]") -> None:
    told: Mapping[str, object] = {}
    found = visit.found
    while not is_awake(found):
        if found.error is not None and found.error.is_terminal:
            raise Refused("in_error", f"{found.name!r} is in ERROR: {found.error.message}", workspace=found.name)
        if found.desired_state is not Wish.RUNNING:
            raise Refused("not_running", f"{found.name!r} was stopped while it woke", workspace=found.name)
        now = {"phase": found.phase, "operation": found.operation, "progress": found.progress}
        if now != told:
            told = now
            await visit.websocket.send_text(json.dumps(now))
        await asyncio.wait([leaving, signed_out], timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            raise WebSocketDisconnect
        if signed_out.done():
            raise Refused("unauthorized", "you are not signed in any more")
        found = await visit.wishes.find(visit.caller, found.id, Permission.RUN)


def close_for_error(error: Refused | Failed | Unavailable) -> ForcedClose:
    """What a refusal after the upgrade looks like."""
    match error:
        case Refused(code="not_running"):
            return ForcedClose(GOING_AWAY, error.message)
        case Refused():
            return ForcedClose(NOT_ALLOWED, error.message)
        case _:
            return ForcedClose(BROKEN, error.message)


async def close_websocket(websocket: WebSocket, end: End) -> None:
    with contextlib.suppress(*GONE, TimeoutError):
        async with asyncio.timeout(LAST_WORD_S):
            match end:
                case CommandExit(code):
                    await websocket.send_text(json.dumps({"exit": code}))
                    await websocket.close(NORMAL)
                case ForcedClose(close_code, reason):
                    await websocket.close(close_code, reason.encode()[:LONGEST_REASON_BYTES].decode(errors="ignore"))
                case ClientDisconnect():
                    pass


# ── sizes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def size(wanted: object) -> TerminalSize:
    wrong = f"a size is [columns, rows], whole numbers from 1 to {MOST_COLUMNS_OR_ROWS}"
    match wanted:
        case [bool(), _] | [_, bool()]:
            raise ValueError(wrong)
        case [int(columns), int(rows)] if min(columns, rows) > 0 and max(columns, rows) <= MOST_COLUMNS_OR_ROWS:
            return TerminalSize(columns, rows)
        case _:
            raise ValueError(wrong)
