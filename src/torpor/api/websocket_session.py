"""The common part of the WebSockets of `shell` and `exec`: wake the workspace first, watch the caller's rights, and close."""

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
from torpor.accounts.access_watch import wait_until_refused
from torpor.api.event_fanout import EventFeed
from torpor.domain.access import Permission
from torpor.domain.errors import Failed, Refused, Unavailable
from torpor.domain.records import Workspace
from torpor.domain.states import Operation, Phase, Wish
from torpor.loops import abandon_tasks, stop
from torpor.ports import TerminalSize
from torpor.service.wishes import Wishes
from torpor.service.workspace_lookup import refuse_stopped

MOST_COLUMNS_OR_ROWS = 2000
LOOK_S = 0.25
"""How often the row of a workspace that wakes is read."""
EARLY_BYTES = 1 << 18
"""How much input of a client is kept while the workspace wakes."""
LAST_WORD_S = 5.0
LONGEST_REASON_BYTES = 123  # of a close frame

# RuntimeError: the server has closed the WebSocket itself, because it stops or its pings were not answered.
GONE = (WebSocketDisconnect, RuntimeError)
# Close codes (RFC 6455).
NORMAL, GOING_AWAY, NOT_ALLOWED, TOO_MUCH, BROKEN = 1000, 1001, 1008, 1009, 1011


@dataclass(frozen=True, slots=True)
class CommandExit:
    code: int


@dataclass(frozen=True, slots=True)
class ForcedClose:
    """The server closes the conversation."""

    close_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class ClientDisconnect:
    """The client has disconnected."""


ConversationEnd: TypeAlias = CommandExit | ForcedClose | ClientDisconnect


class Inbox:
    """The messages of a client, including those that arrive before the command runs."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._early: deque[Message] = deque()

    async def next(self) -> Message:
        return self._early.popleft() if self._early else await self._websocket.receive()

    async def until_gone(self) -> None:
        """Keep messages, up to a limit; return when the client has disconnected."""
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
    """The caller, the workspace and the WebSocket of one conversation."""

    websocket: WebSocket
    inbox: Inbox
    wishes: Wishes
    accounts: Accounts
    feed: EventFeed
    caller: Caller
    found: Workspace


class Conversation(ABC):
    """Carry data between a client and a command, for as long as the client has the right to."""

    def __init__(self, visit: ConversationContext) -> None:
        self._websocket = visit.websocket
        self._inbox = visit.inbox
        self._visit = visit
        self._found = visit.found

    @abstractmethod
    def _parts(self) -> Sequence[Coroutine[Any, Any, ConversationEnd]]:
        """What runs concurrently. The result of the first that ends is the end of the conversation."""

    async def run(self) -> ConversationEnd:
        parts = [asyncio.create_task(part) for part in (*self._parts(), self._until_signed_out(), self._until_refused())]
        try:
            ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            return next(part.result() for part in parts if part in ended)
        finally:
            await stop(*parts, past_deadline=abandon_tasks)

    async def _until_signed_out(self) -> ConversationEnd:
        await self._visit.accounts.until_ended(self._visit.caller)
        return ForcedClose(NOT_ALLOWED, "you are no longer signed in")

    async def _until_refused(self) -> ConversationEnd:
        """The workspace may be unshared or deleted meanwhile. Each check also reads its current TTLs."""
        with self._visit.feed.news_for(self._visit.caller.user.username, self._found.id) as news:
            await wait_until_refused(self._read_workspace, news)
        return ForcedClose(NOT_ALLOWED, f"you may no longer use {self._found.name!r}")

    async def _read_workspace(self) -> None:
        self._found = await self._visit.wishes.find(self._visit.caller, self._found.id, Permission.RUN)


# ── wake ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def wants_wake(query: Mapping[str, str]) -> bool:
    value = query.get("wake", "false")
    if value not in ("true", "false"):
        raise Refused("bad_request", f"wake is {value!r}; allowed are true and false")
    return value == "true"


async def find_running_workspace(wishes: Wishes, caller: Caller, workspace: str, *, wake: bool) -> Workspace:
    """The workspace, which runs or is being woken. A refusal here comes before the upgrade, like that of any other call."""
    found = await wishes.find(caller, workspace, Permission.RUN)
    if wake:
        # Also if it runs: it may be about to sleep.
        return await wishes.wake(caller, found.id)
    refuse_stopped(found)
    return await wishes.using.stay(found)


def is_awake(workspace: Workspace) -> bool:
    return workspace.container_present and workspace.phase is Phase.RUNNING and workspace.operation is not Operation.STOPPING


async def until_awake(visit: ConversationContext) -> None:
    """Report the progress to the client until the workspace runs. Refused when it will not run; WebSocketDisconnect when the
    client has disconnected."""
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
            raise Refused("in_error", f"{found.name!r} has an error: {found.error.message}", workspace=found.name)
        if found.desired_state is not Wish.RUNNING:
            raise Refused("not_running", f"{found.name!r} was stopped while it was starting", workspace=found.name)
        now = {"phase": found.phase, "operation": found.operation, "progress": found.progress}
        if now != told:
            told = now
            await visit.websocket.send_text(json.dumps(now))
        await asyncio.wait([leaving, signed_out], timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            raise WebSocketDisconnect
        if signed_out.done():
            raise Refused("unauthorized", "you are no longer signed in")
        found = await visit.wishes.find(visit.caller, found.id, Permission.RUN)


def close_for_error(error: Refused | Failed | Unavailable) -> ForcedClose:
    """The close frame for an error after the upgrade."""
    match error:
        case Refused(code="not_running"):
            return ForcedClose(GOING_AWAY, error.message)
        case Refused():
            return ForcedClose(NOT_ALLOWED, error.message)
        case _:
            return ForcedClose(BROKEN, error.message)


async def close_websocket(websocket: WebSocket, end: ConversationEnd) -> None:
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
    wrong = f"a size must be [columns, rows], whole numbers from 1 to {MOST_COLUMNS_OR_ROWS}"
    match wanted:
        case [bool(), _] | [_, bool()]:
            raise ValueError(wrong)
        case [int(columns), int(rows)] if min(columns, rows) > 0 and max(columns, rows) <= MOST_COLUMNS_OR_ROWS:
            return TerminalSize(columns, rows)
        case _:
            raise ValueError(wrong)
