"""Send what is read from an archive, and stop when the client leaves or takes nothing any more.

The tasks are ours, not those of Starlette: it cancels a stream again at each await, so nothing could be given back at the end.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import structlog
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from torpor.loops import abandon_tasks, stop

log = structlog.get_logger()

TAKES_WITHIN_S = 120.0
"""A client that does not take a part in this time is disconnected: its stream would keep others from reading."""
PART_BYTES = 1 << 18
"""The most bytes of one part, so that a slow client takes one in time."""
# A browser must never show what a workspace contains as a page of Torpor.
HEADERS = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}


class ArchiveStreamResponse(StreamingResponse):
    """The first piece is read before the answer begins: until then an error has a status of its own. A later error ends the
    connection, so that no client takes a part for the whole."""

    def __init__(self, pieces: AsyncGenerator[bytes], media_type: str) -> None:
        super().__init__(pieces, media_type=media_type, headers=HEADERS)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self.stream_response(send))
        leaving = asyncio.create_task(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await stop(sending, leaving, past_deadline=abandon_tasks)
        if not sending.cancelled():
            sending.result()

    async def stream_response(self, send: Send) -> None:
        async with contextlib.aclosing(self._pieces) as pieces:
            first = await anext(pieces, b"")
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if not await _is_taken(send, first):
                return
            async for piece in pieces:
                if not await _is_taken(send, piece):
                    return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _is_taken(send: Send, piece: bytes) -> bool:
    """False if the client took nothing for too long."""
    for start in range(0, len(piece), PART_BYTES):
        part = piece[start : start + PART_BYTES]
        try:
            async with asyncio.timeout(TAKES_WITHIN_S):
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except TimeoutError:
            log.info("archive_stream_stalled", within_s=TAKES_WITHIN_S)
            return False
    return True
