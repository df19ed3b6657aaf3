"""A terminal in a workspace: `GET /workspaces/{id}/shell`, a WebSocket.

Binary frames are the terminal's bytes, in both directions. Text frames are JSON: `{"resize": [columns, rows]}` from the client,
and `{"exit": CODE}` to the client as the last frame. `{"sleeping_soon": INSTANT}` warns of an automatic stop; this is not
written to the terminal, because output would count as use. Refusals come before the upgrade, like those of any other call.

With `?wake=true` a workspace that does not run is woken first. Text frames report the progress,
`{"phase": ..., "operation": ..., "progress": ...}`; if the workspace does not start, the close reason says why.
"""

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from torpor.accounts import Accounts
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
from torpor.api.wire import to_json_value
from torpor.domain.audit import AuditAction
from torpor.domain.errors import Failed, Refused, Unavailable
from torpor.domain.sleep_warning import is_news
from torpor.ports import Shell, TerminalSize, WorkspaceAccess
from torpor.service.wishes import Wishes

COLUMNS, ROWS = 80, 24
UNREAD_S = 60.0
"""How long a program may leave input unread once the buffer is full."""
CHUNK = 1 << 16


def shell_routes(wishes: Wishes, access: WorkspaceAccess, accounts: Accounts, feed: EventFeed) -> APIRouter:
    router = APIRouter(tags=["workspaces"])

    async def open_shell(visit: ConversationContext, wanted: TerminalSize) -> Shell:
        found = await wishes.enter(visit.caller, visit.found.id, AuditAction.WORKSPACE_SHELL)
        return await access.shell(found, columns=wanted.columns, rows=wanted.rows)

    async def converse(visit: ConversationContext, wanted: TerminalSize, opened: Shell | None) -> ConversationEnd:
        try:
            if opened is None:
                await until_awake(visit)
                opened = await open_shell(visit, wanted)
            return await ShellConversation(visit, opened).run()
        except GONE:
            return ClientDisconnect()
        except (Refused, Failed, Unavailable) as error:
            return close_for_error(error)
        finally:
            if opened is not None:
                await opened.close()

    @router.websocket("/workspaces/{workspace}/shell")
    async def shell(websocket: WebSocket, workspace: str, caller: Asking) -> None:
        wanted, wake = initial_size(websocket.query_params), wants_wake(websocket.query_params)
        found = await find_running_workspace(wishes, caller, workspace, wake=wake)
        visit = ConversationContext(websocket, Inbox(websocket), wishes, accounts, feed, caller, found)
        opened = None if wake and not is_awake(found) else await open_shell(visit, wanted)
        try:
            await websocket.accept()
        except WebSocketDisconnect:
            if opened is not None:
                await opened.close()
            return
        await close_websocket(websocket, await converse(visit, wanted, opened))

    return router


class ShellConversation(Conversation):
    """One terminal and its user."""

    def __init__(self, visit: ConversationContext, shell: Shell) -> None:
        super().__init__(visit)
        self._shell = shell
        self._has_read = asyncio.Event()

    def _parts(self) -> Sequence[Coroutine[Any, Any, ConversationEnd]]:
        return self._show(), self._type(), self._warn()

    async def _read_workspace(self) -> None:
        await super()._read_workspace()
        self._has_read.set()

    async def _warn(self) -> ConversationEnd:
        """A task of its own: a client that does not read must not delay the check of its rights."""
        last: datetime | None = None
        while True:
            await self._has_read.wait()
            self._has_read.clear()
            at = self._found.sleeps_at
            if at is not None and is_news(last, at):
                try:
                    await self._websocket.send_text(json.dumps({"sleeping_soon": to_json_value(at)}))
                except GONE:
                    return ClientDisconnect()
            last = at

    async def _show(self) -> ConversationEnd:
        """As fast as the client reads: sending waits for the client, and the program waits for this loop."""
        try:
            while shown := await self._shell.read():
                try:
                    await self._websocket.send_bytes(shown)
                except GONE:
                    return ClientDisconnect()
            return CommandExit(await self._shell.exit_code())
        except (Refused, Failed) as error:
            return ForcedClose(GOING_AWAY, error.message)

    async def _type(self) -> ConversationEnd:
        while True:
            message = await self._inbox.next()
            if message["type"] == "websocket.disconnect":
                return ClientDisconnect()
            if message.get("bytes"):
                # Only typing counts as use: an open terminal may be a forgotten tab.
                self._visit.wishes.using.touch(self._found.id, self._found.standby_ttl_s)
                if not await self._is_taken(message["bytes"]):
                    return ForcedClose(TOO_MUCH, f"the program did not read its input for {UNREAD_S:g} s")
            elif message.get("text"):
                try:
                    wanted = parse_resize(message["text"])
                except (ValueError, RecursionError) as error:
                    return ForcedClose(NOT_ALLOWED, str(error))
                await self._shell.resize(columns=wanted.columns, rows=wanted.rows)

    async def _is_taken(self, typed: bytes) -> bool:
        for start in range(0, len(typed), CHUNK):
            try:
                async with asyncio.timeout(UNREAD_S):
                    await self._shell.write(typed[start : start + CHUNK])
            except TimeoutError:
                return False
        return True


def initial_size(query: Mapping[str, str]) -> TerminalSize:
    try:
        return size([int(query.get("columns", COLUMNS)), int(query.get("rows", ROWS))])
    except ValueError as error:
        raise Refused("bad_request", f"columns and rows: {error}") from error


def parse_resize(text: str) -> TerminalSize:
    match json.loads(text):
        case {"resize": wanted}:
            return size(wanted)
        case _:
            raise ValueError('a text frame must be {"resize": [columns, rows]}')
