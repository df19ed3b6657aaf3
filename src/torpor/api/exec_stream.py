"""A command in a workspace as a stream: `GET /workspaces/{id}/exec`, a WebSocket.

Binary frames are data. The first byte is the number of the stream, the rest belongs to it:

    0  standard input, from the client; a frame of this byte alone is the end of input
    1  standard output, to the client
    2  standard error, to the client

Text frames are JSON. From the client, the first one starts the command:

    {"command": ["ls", "-l"]}                                 a pipe for each stream
    {"command": ["top"], "terminal": [80, 24]}                at a terminal of this size; its output is stream 1
    {"signal": "INT"}                                         to the command and its process group
    {"resize": [120, 40]}                                     the new size of its terminal

To the client:

    {"phase": ..., "operation": ..., "progress": ...}         with ?wake=true, while the workspace wakes
    {"taken": 65536}                                          the command has read so many bytes of input
    {"exit": 0}                                               the exit code, last; 127 if the command cannot be started

The client sends at most WINDOW bytes of input beyond those reported as taken, so input never delays a signal. Output is sent as
fast as the client reads it, and the command waits meanwhile: the server buffers no more than a fixed window of either. A client
that closes ends the command. Refusals come before the upgrade; later ones are the reason of the close frame.
"""

import asyncio
import json
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import ValidationError

from torpor.accounts import Accounts
from torpor.api import wire
from torpor.api.authentication import Asking
from torpor.api.event_fanout import EventFeed
from torpor.api.websocket_session import (
    GOING_AWAY,
    GONE,
    NOT_ALLOWED,
    TOO_MUCH,
    ClientDisconnect,
    CommandExit,
    Conversation,
    ConversationContext,
    ConversationEnd,
    ForcedClose,
    Inbox,
    close_for_error,
    close_websocket,
    find_running_workspace,
    is_awake,
    size,
    until_awake,
    wants_wake,
)
from torpor.domain.audit import AuditAction
from torpor.domain.errors import Failed, Refused, Unavailable
from torpor.ports import SIGNALS, RunningCommand, TerminalSize, WorkspaceAccess
from torpor.service.wishes import Wishes

WINDOW = 1 << 18
STDIN = 0
START_WITHIN_S = 30.0
"""How long a client may take to send its command."""


@dataclass(frozen=True, slots=True)
class StartMessage:
    command: tuple[str, ...]
    terminal: TerminalSize | None


@dataclass(frozen=True, slots=True)
class SignalMessage:
    name: str


@dataclass(frozen=True, slots=True)
class ResizeMessage:
    size: TerminalSize


def exec_routes(wishes: Wishes, access: WorkspaceAccess, accounts: Accounts, feed: EventFeed) -> APIRouter:
    router = APIRouter(tags=["workspaces"])

    async def converse(visit: ConversationContext) -> ConversationEnd:
        try:
            async with asyncio.timeout(START_WITHIN_S):
                start = await read_start_message(visit.inbox)
        except TimeoutError:
            return ForcedClose(NOT_ALLOWED, f"the client sent no command within {START_WITHIN_S:g} s")
        if not is_awake(visit.found) and wants_wake(visit.websocket.query_params):
            await until_awake(visit)
        # Only the program's name: an argument may be a password.
        program = start.command[0][: wire.LONGEST_PROGRAM]
        found = await wishes.enter(visit.caller, visit.found.id, AuditAction.WORKSPACE_EXEC, program=program)
        command = await access.start_command(found, start.command, terminal=start.terminal)
        try:
            async with wishes.using.keeping_awake(found):
                return await ExecConversation(visit, command).run()
        finally:
            await command.close()

    @router.websocket("/workspaces/{workspace}/exec")
    async def execute(websocket: WebSocket, workspace: str, caller: Asking) -> None:
        found = await find_running_workspace(wishes, caller, workspace, wake=wants_wake(websocket.query_params))
        try:
            await websocket.accept()
            end = await converse(ConversationContext(websocket, Inbox(websocket), wishes, accounts, feed, caller, found))
        except (ValueError, RecursionError) as error:
            end = ForcedClose(NOT_ALLOWED, str(error))
        except GONE:
            end = ClientDisconnect()
        except (Refused, Failed, Unavailable) as error:
            end = close_for_error(error)
        await close_websocket(websocket, end)

    return router


class ExecConversation(Conversation):
    """One command and its client."""

    def __init__(self, visit: ConversationContext, command: RunningCommand) -> None:
        super().__init__(visit)
        self._command = command
        self._input: asyncio.Queue[bytes] = asyncio.Queue()
        self._untaken = 0

    def _parts(self) -> Sequence[Coroutine[Any, Any, ConversationEnd]]:
        return self._show(), self._listen(), self._feed()

    async def _show(self) -> ConversationEnd:
        """Sending waits for the client, and the command waits for this loop."""
        try:
            while (output := await self._command.read()) is not None:
                await self._websocket.send_bytes(bytes((output.stream,)) + output.data)
            return CommandExit(await self._command.exit_code())
        except GONE:
            return ClientDisconnect()
        except (Refused, Failed) as error:
            return ForcedClose(GOING_AWAY, error.message)

    async def _listen(self) -> ConversationEnd:
        """Never waits for the command, so that a signal or a disconnect takes effect at once."""
        while True:
            message = await self._inbox.next()
            if message["type"] == "websocket.disconnect":
                return ClientDisconnect()
            if message.get("bytes"):
                stream, data = message["bytes"][0], message["bytes"][1:]
                if stream != STDIN:
                    return ForcedClose(NOT_ALLOWED, f"a client can send only stream {STDIN}, not {stream}")
                self._untaken += len(data)
                if self._untaken > WINDOW:
                    return ForcedClose(TOO_MUCH, f"the client sent more than {WINDOW} bytes of input that were not read yet")
                self._input.put_nowait(data)
            elif message.get("text"):
                try:
                    told = parse_message(message["text"])
                except (ValueError, RecursionError) as error:
                    return ForcedClose(NOT_ALLOWED, str(error))
                match told:
                    case SignalMessage(name):
                        await self._command.send_signal(name)
                    case ResizeMessage(wanted):
                        await self._command.resize(columns=wanted.columns, rows=wanted.rows)
                    case StartMessage():
                        return ForcedClose(NOT_ALLOWED, "a connection runs one command only; open another connection")

    async def _feed(self) -> ConversationEnd:
        try:
            while True:
                await self._pass_on(await self._input.get())
        except GONE:
            return ClientDisconnect()

    async def _pass_on(self, data: bytes) -> None:
        if not data:
            await self._command.end_input()
            return
        await self._command.write(data)
        self._untaken -= len(data)
        await self._websocket.send_text(json.dumps({"taken": len(data)}))


async def read_start_message(inbox: Inbox) -> StartMessage:
    """The first message; ValueError if it does not start a command, WebSocketDisconnect if the client disconnects."""
    message = await inbox.next()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect
    match parse_message(message.get("text") or "null"):
        case StartMessage() as start:
            return start
        case _:
            raise ValueError('the first frame must be {"command": ["PROGRAM", ...]}')


def parse_message(text: str) -> StartMessage | SignalMessage | ResizeMessage:
    match json.loads(text):
        case {"command": command, **rest}:
            wanted = rest.get("terminal")
            return StartMessage(parse_command(command), None if wanted is None else size(wanted))
        case {"signal": str(name)} if name in SIGNALS:
            return SignalMessage(name)
        case {"signal": _}:
            raise ValueError(f"signal must be one of {', '.join(sorted(SIGNALS))}")
        case {"resize": wanted}:
            return ResizeMessage(size(wanted))
        case _:
            raise ValueError('a text frame must be {"command": [...]}, {"signal": NAME} or {"resize": [columns, rows]}')


def parse_command(command: object) -> tuple[str, ...]:
    try:
        return tuple(wire.ExecCommand.model_validate({"command": command}).command)
    except ValidationError as error:
        raise ValueError(f"a command must be 1 to {wire.MOST_WORDS} strings without NUL") from error
