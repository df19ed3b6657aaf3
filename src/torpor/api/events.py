"""How does somebody follow what changes?

`text/event-stream`: first what was missed or how it stands, read from the database at the client's own pace, then what happens,
from the feed. Between the two there is neither a hole nor anything twice: a stream goes live in the very moment in which it has
caught up with the feed. No stream holds a database connection.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from torpor.api import wire
from torpor.api.door import SignedIn
from torpor.api.fanout import PAGE, EventFeed, Stream, frame
from torpor.domain.errors import Refused, Unavailable
from torpor.domain.events import BEGINNING, EventKind, body, tell
from torpor.domain.records import Workspace
from torpor.store.events import ALL, EventStore, Later, Sight
from torpor.store.for_service import User
from torpor.wishes import Wishes

log = structlog.get_logger()

# Many come back at once when a server was restarted; the other calls need the database as well.
READING_AT_ONCE = 4
# Whoever does not take the last bytes of a stream that has ended in this time is cut off.
LINGER_S = 1.0
_ID = re.compile(r"[0-9]{1,18}", re.ASCII)

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStreamResponse(StreamingResponse):
    """A stream that ends at once when its client is gone, and whenever it is told to, even while nobody takes its bytes."""

    media_type = "text/event-stream"

    def __init__(self, parts: AsyncGenerator[bytes], stream: Stream) -> None:
        super().__init__(parts, headers=HEADERS)
        self._parts = parts
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self.stream_response(send))
        leaving = asyncio.create_task(self.listen_for_disconnect(receive))
        loop = asyncio.get_running_loop()
        self._stream.when_ended(lambda: loop.call_later(LINGER_S, sending.cancel))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
        if not sending.cancelled():
            sending.result()

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for part in self._parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            await self._parts.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@dataclass(frozen=True, slots=True)
class Events:
    """What the routes need."""

    store: EventStore
    feed: EventFeed
    heartbeat_s: float


def event_routes(events: Events, wishes: Wishes, *, base_url: str) -> APIRouter:
    router = APIRouter(tags=["events"])
    followed = _Followed(events, wishes, base_url)
    described: dict[int | str, dict[str, Any]] = {200: {"model": wire.EventOut, "description": "Each event's data."}}
    Since = Annotated[str | None, Header(alias="Last-Event-ID")]  # noqa: N806 - a type
    SinceToo = Annotated[str | None, Query(alias="last_event_id")]  # noqa: N806 - a type

    @router.get("/events", status_code=200, response_class=EventStreamResponse, responses=described)
    async def follow_all(user: SignedIn, since: Since = None, since_too: SinceToo = None) -> StreamingResponse:
        sight = ALL if user.is_admin else Sight(owner_id=user.id)
        return await followed.by(user, sight, _event_id(since or since_too))

    @router.get("/workspaces/{workspace}/events", status_code=200, response_class=EventStreamResponse, responses=described)
    async def follow(workspace: str, user: SignedIn, since: Since = None, since_too: SinceToo = None) -> StreamingResponse:
        found = await wishes.find(user, workspace)
        return await followed.by(user, Sight(workspace_id=found.id), _event_id(since or since_too))

    return router


def _event_id(said: str | None) -> int | None:
    if not said:
        return None
    if not _ID.fullmatch(said):
        raise Refused("bad_event_id", f"{said!r} is not the id of an event that this API gave out")
    return int(said)


@dataclass(frozen=True, slots=True)
class _Begun:
    """What is sent first, and where that leads."""

    framed: bytes
    reached: int | None
    """None: what was missed is not kept; how everything stands must follow."""


class _Followed:
    def __init__(self, events: Events, wishes: Wishes, base_url: str) -> None:
        self._store = events.store
        self._feed = events.feed
        self._heartbeat_s = events.heartbeat_s
        self._wishes = wishes
        self._base_url = base_url
        self._reading = asyncio.Semaphore(READING_AT_ONCE)

    async def by(self, user: User, sight: Sight, since: int | None) -> EventStreamResponse:
        # Asked before the answer begins: what is refused or out of reach is then said as such.
        _ = self._feed.cursor
        begun = await (self._as_it_stands(sight) if since is None else self._since(since, sight))
        stream = Stream()
        return EventStreamResponse(self._parts(user, sight, begun, stream), stream)

    async def _parts(self, user: User, sight: Sight, begun: _Begun, stream: Stream) -> AsyncGenerator[bytes]:
        with self._feed.open(sight, stream), contextlib.suppress(Unavailable):
            yield begun.framed
            reached = begun.reached
            if reached is None:
                async with contextlib.aclosing(self._anew(user, sight)) as parts:
                    async for reached, framed in parts:  # noqa: B007 - the last one counts
                        yield framed
            assert reached is not None, "the present state ends with an id"
            while reached < self._feed.cursor:
                later = await self._later(reached, sight)
                if _is_lost(reached, later):
                    return
                yield self._framed(later)
                reached = later.reached
            stream.go_live(after=reached)
            while not stream.is_ended:
                framed = await stream.next(within_s=self._heartbeat_s)
                if not framed and not stream.is_ended:
                    # Nothing waits, so everything that the feed has handed out was sent.
                    framed = frame(body(EventKind.HEARTBEAT, max(reached, self._feed.cursor)))
                yield framed

    async def _as_it_stands(self, sight: Sight) -> _Begun:
        async with self._reading:
            if sight.workspace_id is None:
                newest = await self._store.newest()
                return _Begun(frame(body(EventKind.HEARTBEAT, newest.last_id, at=newest.at)), newest.last_id)
            standing = await self._store.standing(sight.workspace_id)
        if standing is None:
            raise Refused("not_found", "there is no such workspace any more")
        told = body(EventKind.STATE_CHANGED, standing.last_id, at=standing.at, workspace=self._json(standing.workspace))
        return _Begun(frame(told), standing.last_id)

    async def _since(self, event_id: int, sight: Sight) -> _Begun:
        later = await self._later(event_id, sight)
        if _is_lost(event_id, later):
            # Until everything was told the id is the one that asks for it: a client cut off in between asks again.
            return _Begun(frame(body(EventKind.RESET, BEGINNING)), None)
        # Something is always said at once, and be it that nothing was missed.
        return _Begun(self._framed(later) or frame(body(EventKind.HEARTBEAT, later.reached)), later.reached)

    async def _anew(self, user: User, sight: Sight) -> AsyncGenerator[tuple[int, bytes]]:
        """How everything stands; the last part has the id from which on events follow."""
        if sight.workspace_id is not None:
            begun = await self._as_it_stands(sight)
            assert begun.reached is not None
            yield begun.reached, begun.framed
            return
        # Before the pages: what changes while they are read follows as events.
        begun = await self._as_it_stands(sight)
        assert begun.reached is not None
        after = None
        while True:
            async with self._reading:
                page = await self._wishes.page(user, after=after, limit=PAGE)
            told = (body(EventKind.STATE_CHANGED, BEGINNING, workspace=self._json(one)) for one in page.items)
            yield begun.reached, b"".join(frame(one) for one in told)
            after = page.next_after
            if after is None:
                break
        yield begun.reached, begun.framed

    async def _later(self, event_id: int, sight: Sight) -> Later:
        async with self._reading:
            return await self._store.after(event_id, sight, limit=PAGE)

    def _framed(self, later: Later) -> bytes:
        return b"".join(frame(tell(event, self._json(event.workspace)).body) for event in later.events)

    def _json(self, workspace: Workspace) -> dict[str, Any]:
        return wire.workspace_json(workspace, base_url=self._base_url)


def _is_lost(event_id: int, later: Later) -> bool:
    """Whether something after it is not kept any more, or it is from another history of this database."""
    return not later.pruned_id <= event_id <= later.last_id
