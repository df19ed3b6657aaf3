"""How long may the body of a call be?

It is read whole before anybody is asked who sends it, so it must not be longer than what a process can hold for many at once.
"""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torpor.api.refusals import problem

LONGEST_BYTES = 16 * 2**20
TOO_LONG = f"a call's body has at most {LONGEST_BYTES} bytes"


class ShortBodies:
    """Around the whole app, in plain ASGI. What says how long it is, is refused before any of it is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _said_bytes(scope) > LONGEST_BYTES:
            await problem(413, "too_large", TOO_LONG)(scope, receive, send)
            return
        read_bytes = 0

        async def receive_some() -> Message:
            nonlocal read_bytes
            message = await receive()
            read_bytes += len(message.get("body", b""))
            if read_bytes > LONGEST_BYTES:
                raise HTTPException(413, TOO_LONG)
            return message

        await self._app(scope, receive_some, send)


def _said_bytes(scope: Scope) -> int:
    """Servers let nothing else through than a number."""
    return max((int(value) for name, value in scope["headers"] if name == b"content-length"), default=0)
