"""How does somebody type in a workspace from afar?

A WebSocket. Binary frames are the terminal's bytes, both ways. Text frames are JSON: `{"resize": [columns, rows]}` from the
client, and `{"exit": CODE}` to it, as the last word. `{"sleeping_soon": INSTANT}` warns of a stop because it is not in use; the
terminal is not written to, because its output would count as use. What is refused is refused before the upgrade, like any other
call.

With `?wake=true` a workspace that does not run is woken first. How that proceeds is told in text frames,
`{"phase": ..., "operation": ..., "progress": ...}`; if it does not run in the end, the close reason says why.
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
    End,
    ForcedClose,
    Inbox,
    admitted,
    close_for_error,
    close_websocket,
    is_awake,
    size,
    until_awake,
    wants_wake,
)
from torpor.domain.audit import AuditAction
from torpor.domain.errors import Failed, Refused, Unavailable
from torpor.domain.sleep_warning import is_news
from torpor.ports import Runtime, Shell, TerminalSize
from torpor.service.wishes import Wishes

COLUMNS, ROWS = 80, 24
UNREAD_S = 60.0
"""How long a program may leave unread what was typed, once there is no room for more."""
CHUNK = 1 << 16


def shell_routes(wishes: Wishes, runtime: Runtime, accounts: Accounts, feed: EventFeed) -> APIRouter:
    router = APIRouter(tags=["workspaces"])

    async def open_shell(visit: ConversationContext, wanted: TerminalSize) -> Shell:
        found = await wishes.enter(visit.caller, visit.found.id, AuditAction.WORKSPACE_SHELL)
        return await runtime.shell(found.id, columns=wanted.columns, rows=wanted.rows)

    async def converse(visit: ConversationContext, wanted: TerminalSize, opened: Shell | None) -> End:
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
        found = await admitted(wishes, caller, workspace, wake=wake)
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
        self._has_looked = asyncio.Event()

    def _ways(self) -> Sequence[Coroutine[Any, Any, End]]:
        return self._show(), self._type(), self._warn()

    async def _look(self) -> None:
        await super()._look()
        self._has_looked.set()

    async def _warn(self) -> End:
        """Besides looking: a client that does not read must not keep it from being looked whether it may stay."""
        told: datetime | None = None
        while True:
            await self._has_looked.wait()
            self._has_looked.clear()
            at = self._found.sleeps_at
            if at is not None and is_news(told, at):
                try:
                    await self._websocket.send_text(json.dumps({"sleeping_soon": at.isoformat()}))
                except GONE:
                    return ClientDisconnect()
            told = at

    async def _show(self) -> End:
        """As fast as it is looked at: sending waits for the client, and the program for us."""
        try:
            while shown := await self._shell.read():
                try:
                    await self._websocket.send_bytes(shown)
                except GONE:
                    return ClientDisconnect()
            return CommandExit(await self._shell.exit_code())
        except (Refused, Failed) as error:
            return ForcedClose(GOING_AWAY, error.message)

    async def _type(self) -> End:
        while True:
            message = await self._inbox.next()
            if message["type"] == "websocket.disconnect":
                return ClientDisconnect()
            if message.get("bytes"):
                # Somebody sits there and types. That it is open says nothing: so are forgotten tabs.
                self._visit.wishes.using.touch(self._found.id, self._found.standby_ttl_s)
                if not await self._is_taken(message["bytes"]):
                    return ForcedClose(TOO_MUCH, f"what was typed was not read for {UNREAD_S:g} s")
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
            raise ValueError('text frames read {"resize": [columns, rows]}')
