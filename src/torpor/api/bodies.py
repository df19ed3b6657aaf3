"""Decide how long the body of a call may be, how long it may take, and from whom it is read.

A call is authenticated before its body is read, because reading and parsing it costs the loop that carries everything else.
"""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torpor.api.refusals import problem
from torpor.api.rules import V1
from torpor.domain.errors import Refused, Unavailable

LONGEST_BYTES = 64 * 2**10
LONGEST_SIGN_IN_BYTES = 8 * 2**10
"""Anyone may send one."""
LONGEST_EXEC_BYTES = 2 * 2**20
"""It carries the command's input."""
WITHIN_S = 20.0
"""From the first byte that is asked for to the last one."""

Guard = Callable[[HTTPConnection], Awaitable[None]]
"""Returns when the caller may make this call; Refused or Unavailable when not."""


class ShortBodies:
    """Around the whole app, in plain ASGI. A body that says that it is too long is refused before any of it is read."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        longest = longest_bytes(scope["path"])
        if _said_bytes(scope) > longest:
            await problem(413, "too_large", _too_long(longest))(scope, receive, send)
            return
        body = _Body(scope, receive, longest, self._guard)
        await self._app(scope, body.receive, send)


class _Body:
    """The body of one call, as the app reads it."""

    def __init__(self, scope: Scope, receive: Receive, longest: int, guard: Guard) -> None:
        self._scope = scope
        self._receive = receive
        self._longest = longest
        self._guard = guard
        self._until: float | None = None
        self._read_bytes = 0
        self._is_whole = False

    async def receive(self) -> Message:
        if self._is_whole:
            return await self._receive()  # the end of the connection, which may take any time
        if self._until is None:
            await self._authenticate()
            self._until = asyncio.get_running_loop().time() + WITHIN_S
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, f"the body of a call must arrive within {WITHIN_S:g} s") from None
        self._read_bytes += len(message.get("body", b""))
        if self._read_bytes > self._longest:
            raise HTTPException(413, _too_long(self._longest))
        self._is_whole = not message.get("more_body", False)
        return message

    async def _authenticate(self) -> None:
        try:
            await self._guard(HTTPConnection(self._scope))
        except (Refused, Unavailable) as error:
            # The framework takes other errors while it reads for a broken body; `refusals` answers with the cause.
            raise HTTPException(401) from error


def longest_bytes(path: str) -> int:
    if path == f"{V1}/login":
        return LONGEST_SIGN_IN_BYTES
    return LONGEST_EXEC_BYTES if path.startswith(f"{V1}/workspaces/") and path.endswith("/exec") else LONGEST_BYTES


def _too_long(longest: int) -> str:
    return f"the body of this call has at most {longest} bytes"


def _said_bytes(scope: Scope) -> int:
    """Servers let nothing else through than a number."""
    return max((int(value) for name, value in scope["headers"] if name == b"content-length"), default=0)
