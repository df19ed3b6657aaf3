"""Limit the body of a call: its length, the time it may take, how much there is to parse, and who may send one.

A call is authenticated before its body is read, because reading and parsing it costs the loop that carries everything else.
Parsing in a thread would not help: the parser holds the interpreter's lock until it is done. What makes a body expensive is not
its length but the number of values in it, so that number is limited before the parser sees the body.

Measured, the most CPU time that the loop spends without a pause: 64 KiB of `[[],[],...]` took 100 ms and take 2; 64 KiB of
unknown names took 127 ms, with an answer of 600 KB, and take 2; 2 MiB of them, sent to exec, took 1.7 s, with an answer of
18 MB, and take 8. The worst that is left is 3 ms, and for an exec with 1.5 MB of input 15 ms.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torpor.api.refusals import problem
from torpor.api.route_access import V1
from torpor.domain.errors import Refused, Unavailable

LONGEST_BYTES = 64 * 2**10
LONGEST_SIGN_IN_BYTES = 8 * 2**10
"""Clients may send one without signing in."""
LONGEST_EXEC_BYTES = 2 * 2**20
"""It contains the command's input."""
WITHIN_S = 20.0
"""From the first read to the last byte."""
MOST_STRUCTURE_BYTES = 2048
"""Outside of strings and without spaces: brackets, commas, colons, numbers. A command of 1,000 words has 1,012."""
MOST_ESCAPES = LONGEST_BYTES // 2
"""As many as the longest usual body can have. An exec's input is base64, which needs none."""

Guard = Callable[[HTTPConnection], Awaitable[None]]
"""Returns when the caller may make this call; Refused or Unavailable when not."""


class BodyLimitMiddleware:
    """ASGI middleware around the whole app. A body whose Content-Length is too long is refused before it is read."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        longest = max_body_bytes(scope["path"])
        if _content_length(scope) > longest:
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
        self._parts: list[bytes] = []
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
            raise HTTPException(408, f"the request body must arrive within {WITHIN_S:g} s") from None
        part = message.get("body", b"")
        self._read_bytes += len(part)
        if self._read_bytes > self._longest:
            raise HTTPException(413, _too_long(self._longest))
        self._parts.append(part)
        self._is_whole = not message.get("more_body", False)
        if self._is_whole:
            parts, self._parts = self._parts, []
            if why_not := body_fault(b"".join(parts)):
                raise HTTPException(400, why_not)
        return message

    async def _authenticate(self) -> None:
        try:
            await self._guard(HTTPConnection(self._scope))
        except (Refused, Unavailable) as error:
            # The framework would report another error during a read as a broken body; `refusals` answers with the cause.
            raise HTTPException(401) from error


def max_body_bytes(path: str) -> int:
    if path == f"{V1}/login":
        return LONGEST_SIGN_IN_BYTES
    return LONGEST_EXEC_BYTES if path.startswith(f"{V1}/workspaces/") and path.endswith("/exec") else LONGEST_BYTES


def body_fault(body: bytes) -> str | None:
    """Why a body is refused without parsing it; None: parsing it takes a few milliseconds at most."""
    if json.detect_encoding(body) != "utf-8":
        return "the request body must be JSON in UTF-8"
    if b"\\" in body:
        if body.count(b"\\") > MOST_ESCAPES:
            return f"the strings in the request body can have at most {MOST_ESCAPES} escape sequences"
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A body with more strings than this has more separators than allowed, or is not JSON.
    outside = b"".join(body.split(b'"', 2 * MOST_STRUCTURE_BYTES + 4)[::2])
    if len(outside.translate(None, _SPACE)) > MOST_STRUCTURE_BYTES:
        return f"the request body can have at most {MOST_STRUCTURE_BYTES} bytes outside of strings (brackets, commas, numbers)"
    return None


_SPACE = b" \t\r\n"


def _too_long(longest: int) -> str:
    return f"the request body is too large; at most {longest} bytes are allowed"


def _content_length(scope: Scope) -> int:
    """The server has checked that it is a number."""
    return max((int(value) for name, value in scope["headers"] if name == b"content-length"), default=0)
