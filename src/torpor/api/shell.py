"""How does somebody type in a workspace from afar?

A WebSocket. Binary frames are the terminal's bytes, both ways. Text frames are JSON: `{"resize": [columns, rows]}` from the
client, and `{"exit": CODE}` to it, as the last word. What is refused is refused before the upgrade, like any other call.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from torpor.accounts import Accounts, Caller
from torpor.api.door import Asking
from torpor.api.fanout import EventFeed
from torpor.api.staying import until_refused
from torpor.domain.access import Deed
from torpor.domain.audit import Action
from torpor.domain.errors import Failed, Refused
from torpor.domain.records import Workspace
from torpor.loops import abandon, stop
from torpor.ports import Runtime, Shell
from torpor.wishes import Wishes

MOST_COLUMNS_OR_ROWS = 2000
COLUMNS, ROWS = 80, 24
UNREAD_S = 60.0
"""How long a program may leave unread what was typed, once there is no room for more."""
LAST_WORD_S = 5.0
CHUNK = 1 << 16
LONGEST_REASON_BYTES = 123  # of a close frame

# A server that has closed it by itself (it stops, or its pings were not answered) says that in its own way.
GONE = (WebSocketDisconnect, RuntimeError)
# Close codes (RFC 6455).
NORMAL, GOING_AWAY, NOT_ALLOWED, TOO_MUCH = 1000, 1001, 1008, 1009


@dataclass(frozen=True, slots=True)
class Exited:
    code: int


@dataclass(frozen=True, slots=True)
class Cut:
    """It did not end by itself."""

    close_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """Nobody is there to be told."""


End: TypeAlias = Exited | Cut | Left


def shell_routes(wishes: Wishes, runtime: Runtime, accounts: Accounts, feed: EventFeed) -> APIRouter:
    router = APIRouter(tags=["workspaces"])

    @router.websocket("/workspaces/{workspace}/shell")
    async def shell(websocket: WebSocket, workspace: str, caller: Asking) -> None:
        columns, rows = asked_size(websocket.query_params)
        found = await wishes.enter(caller, workspace, Action.WORKSPACE_SHELL)
        opened = await runtime.shell(found.id, columns=columns, rows=rows)
        try:
            await websocket.accept()
            end = await Conversation(websocket, opened, wishes, accounts, feed, caller=caller, found=found).run()
        except WebSocketDisconnect:
            end = Left()
        finally:
            await opened.close()
        with contextlib.suppress(*GONE, TimeoutError):
            async with asyncio.timeout(LAST_WORD_S):
                await say_goodbye(websocket, end)

    return router


class Conversation:
    """One terminal and whoever sits at it, for as long as they may."""

    def __init__(
        self,
        websocket: WebSocket,
        shell: Shell,
        wishes: Wishes,
        accounts: Accounts,
        feed: EventFeed,
        *,
        caller: Caller,
        found: Workspace,
    ) -> None:
        self._websocket = websocket
        self._shell = shell
        self._wishes = wishes
        self._accounts = accounts
        self._feed = feed
        self._caller = caller
        self._found = found

    async def run(self) -> End:
        """Until the first of them ends; that one says how."""
        ways = [asyncio.create_task(way) for way in (self._show(), self._type(), self._be_signed_in(), self._be_allowed())]
        try:
            ended, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            return next(way.result() for way in ways if way in ended)
        finally:
            await stop(*ways, past_deadline=abandon)

    async def _show(self) -> End:
        """As fast as it is looked at: sending waits for the client, and the program for us."""
        try:
            while shown := await self._shell.read():
                try:
                    await self._websocket.send_bytes(shown)
                except GONE:
                    return Left()
            return Exited(await self._shell.exit_code())
        except (Refused, Failed) as error:
            return Cut(GOING_AWAY, error.message)

    async def _type(self) -> End:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return Left()
            if message.get("bytes"):
                # Somebody sits there and types. That it is open says nothing: so are forgotten tabs.
                self._wishes.using.touch(self._found.id, self._found.standby_ttl_s)
                if not await self._is_taken(message["bytes"]):
                    return Cut(TOO_MUCH, f"what was typed was not read for {UNREAD_S:g} s")
            elif message.get("text"):
                try:
                    columns, rows = told_size(message["text"])
                except (ValueError, RecursionError) as error:
                    return Cut(NOT_ALLOWED, str(error))
                await self._shell.resize(columns=columns, rows=rows)

    async def _is_taken(self, typed: bytes) -> bool:
        for start in range(0, len(typed), CHUNK):
            try:
                async with asyncio.timeout(UNREAD_S):
                    await self._shell.write(typed[start : start + CHUNK])
            except TimeoutError:
                return False
        return True

    async def _be_signed_in(self) -> End:
        await self._accounts.until_ended(self._caller)
        return Cut(NOT_ALLOWED, "you are not signed in any more")

    async def _be_allowed(self) -> End:
        """It may be shared with somebody else by now, or deleted; and how long it stays awake may have changed."""
        with self._feed.taken_from(self._caller.user.username, self._found.id) as news:
            await until_refused(self._look, news)
        return Cut(NOT_ALLOWED, f"you may not use {self._found.name!r} any more")

    async def _look(self) -> None:
        self._found = await self._wishes.find(self._caller, self._found.id, Deed.RUN)


async def say_goodbye(websocket: WebSocket, end: End) -> None:
    match end:
        case Exited(code):
            await websocket.send_text(json.dumps({"exit": code}))
            await websocket.close(NORMAL)
        case Cut(close_code, reason):
            await websocket.close(close_code, reason.encode()[:LONGEST_REASON_BYTES].decode(errors="ignore"))
        case Left():
            pass


def asked_size(query: Mapping[str, str]) -> tuple[int, int]:
    try:
        return size([int(query.get("columns", COLUMNS)), int(query.get("rows", ROWS))])
    except ValueError as error:
        raise Refused("bad_request", f"columns and rows: {error}") from error


def told_size(text: str) -> tuple[int, int]:
    match json.loads(text):
        case {"resize": wanted}:
            return size(wanted)
        case _:
            raise ValueError('text frames read {"resize": [columns, rows]}')


def size(wanted: object) -> tuple[int, int]:
    match wanted:
        case [int(columns), int(rows)] if min(columns, rows) > 0 and max(columns, rows) <= MOST_COLUMNS_OR_ROWS:
            return columns, rows
        case _:
            raise ValueError(f"whole numbers from 1 to {MOST_COLUMNS_OR_ROWS}")
