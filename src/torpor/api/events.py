"""Stream changes of workspaces to clients as `text/event-stream`.

A stream first sends the missed events or the current state, read from the database as fast as the client reads, then new events
from the feed. No event is missing or repeated in between: a stream goes live in the moment in which it has caught up with the
feed. No stream keeps a database connection.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from torpor.accounts import Accounts, Caller
from torpor.accounts.access_watch import wait_until_refused
from torpor.api import wire
from torpor.api.authentication import Asking
from torpor.api.event_fanout import PAGE, EventFeed, EventStream, frame, split_into_chunks
from torpor.api.stream_limit import StreamLimit
from torpor.domain.errors import Refused, Unavailable
from torpor.domain.events import BEGINNING, EventKind, event_body
from torpor.domain.hostnames import Hosts
from torpor.domain.records import Workspace
from torpor.loops import abandon_tasks, stop
from torpor.service.wishes import Wishes
from torpor.store.events import ALL, EventFilter, EventPage, EventStore, event_messages

log = structlog.get_logger()

# After a restart many clients reconnect at once, and the other calls need the database, too.
READING_AT_ONCE = 4
# A client that does not read the last bytes of an ended stream in this time is disconnected.
LINGER_S = 1.0
# Of one user, in this process: tabs, programs, and lost connections that were not noticed yet.
STREAMS_PER_USER = 100
RETRY_AFTER_S = 30
_ID = re.compile(r"[0-9]{1,18}", re.ASCII)

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStreamResponse(StreamingResponse):
    """A stream that ends at once when its client disconnects or `until_ended` returns, even while the client reads no bytes."""

    media_type = "text/event-stream"

    def __init__(
        self,
        parts: AsyncGenerator[bytes],
        stream: EventStream,
        *,
        until_ended: Callable[[], Awaitable[None]],
        on_end: Callable[[], None],
    ) -> None:
        """`until_ended` returns once the caller has lost the right to the stream."""
        super().__init__(parts, headers=HEADERS)
        self._parts = parts
        self._stream = stream
        self._until_ended = until_ended
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self.stream_response(send))
        leaving = asyncio.create_task(self.listen_for_disconnect(receive))
        watching = asyncio.create_task(self._watch())
        loop = asyncio.get_running_loop()
        self._stream.when_ended(lambda: loop.call_later(LINGER_S, sending.cancel))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._on_end()
            await stop(sending, leaving, watching, past_deadline=abandon_tasks)
        if not sending.cancelled():
            sending.result()

    async def _watch(self) -> None:
        try:
            await self._until_ended()
        finally:
            self._stream.end()

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for part in self._parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            await self._parts.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@dataclass(frozen=True, slots=True)
class EventSources:
    """What the routes need."""

    store: EventStore
    feed: EventFeed
    heartbeat_s: float


def event_routes(events: EventSources, wishes: Wishes, accounts: Accounts, *, hosts: Hosts) -> APIRouter:
    router = APIRouter(tags=["events"])
    followed = _EventStreams(events, wishes, accounts, hosts)
    described: dict[int | str, dict[str, Any]] = {200: {"model": wire.EventOut, "description": "Each event's data."}}
    Since = Annotated[str | None, Header(alias="Last-Event-ID")]  # noqa: N806 - a type
    SinceToo = Annotated[str | None, Query(alias="last_event_id")]  # noqa: N806 - a type

    @router.get("/events", status_code=200, response_class=EventStreamResponse, responses=described)
    async def follow_all(caller: Asking, since: Since = None, since_too: SinceToo = None) -> StreamingResponse:
        """Events of all workspaces that you may see."""
        sight = ALL if caller.is_admin else EventFilter(owner_id=caller.user.id, username=caller.user.username)
        return await followed.by(caller, sight, _event_id(since or since_too))

    @router.get("/workspaces/{workspace}/events", status_code=200, response_class=EventStreamResponse, responses=described)
    async def follow(workspace: str, caller: Asking, since: Since = None, since_too: SinceToo = None) -> StreamingResponse:
        found = await wishes.find(caller, workspace)
        sight = EventFilter(workspace_id=found.id, username=caller.user.username)
        return await followed.by(caller, sight, _event_id(since or since_too))

    return router


def _event_id(text: str | None) -> int | None:
    if not text:
        return None
    if not _ID.fullmatch(text):
        raise Refused("bad_event_id", f"{text!r} is not the id of an event of this API")
    return int(text)


@dataclass(frozen=True, slots=True)
class _StreamStart:
    """The first part of a stream, and the event that it reaches."""

    framed: bytes
    reached: int | None
    """None: the missed events are no longer stored, so the current state must follow."""
    later: EventPage | None = None
    """The missed events, which follow."""


class _EventStreams:
    def __init__(self, events: EventSources, wishes: Wishes, accounts: Accounts, hosts: Hosts) -> None:
        self._store = events.store
        self._feed = events.feed
        self._heartbeat_s = events.heartbeat_s
        self._wishes = wishes
        self._accounts = accounts
        self._hosts = hosts
        self._reading = asyncio.Semaphore(READING_AT_ONCE)
        self._limit = StreamLimit(STREAMS_PER_USER, "event streams", retry_after_s=RETRY_AFTER_S)

    async def by(self, caller: Caller, sight: EventFilter, since: int | None) -> EventStreamResponse:
        # Checked before the answer begins, so that the client gets an error status.
        _ = self._feed.cursor
        stream = EventStream(caller.user.username)
        begun = await (self._as_it_stands(sight, stream) if since is None else self._since(since, sight))
        # Checked after reading: access that was lost before is refused here; access that is lost later ends the stream.
        await self._check_access(caller, sight)
        self._limit.admit(caller.user)
        return EventStreamResponse(
            self._parts(sight, begun, stream),
            stream,
            until_ended=lambda: self._until_ended(caller, sight),
            on_end=lambda: self._limit.release(caller.user),
        )

    async def _check_access(self, caller: Caller, sight: EventFilter) -> None:
        """Refused when the caller may no longer see this workspace."""
        if sight.workspace_id is not None:
            await self._wishes.find(caller, sight.workspace_id)

    async def _until_ended(self, caller: Caller, sight: EventFilter) -> None:
        """Return once the caller has lost the right to the stream. Losses that the feed reports end a stream at once."""
        ends = [self._accounts.until_ended(caller)]
        if sight.workspace_id is not None:
            ends.append(wait_until_refused(lambda: self._check_access(caller, sight), asyncio.Event()))
        waiting = [asyncio.create_task(end) for end in ends]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await stop(*waiting, past_deadline=abandon_tasks)

    async def _parts(self, sight: EventFilter, begun: _StreamStart, stream: EventStream) -> AsyncGenerator[bytes]:
        with self._feed.open(sight, stream), contextlib.suppress(Unavailable):
            if begun.framed:
                yield begun.framed
            reached, later = begun.reached, begun.later
            if reached is None:
                async with contextlib.aclosing(self._anew(sight, stream)) as parts:
                    async for reached, framed in parts:  # noqa: B007 - the last one counts
                        if stream.is_ended:
                            return
                        yield framed
            assert reached is not None, "the present state ends with an id"
            while later is not None or reached < self._feed.cursor:
                later = later or await self._later(reached, sight)
                # The client reconnects and gets the current state.
                if stream.is_ended or later.is_lost_to(reached) or later.takes_from(sight):
                    return
                async for framed in self._framed(later, stream):
                    yield framed
                reached, later = later.reached, None
            stream.go_live(after=reached)
            while not stream.is_ended:
                framed = await stream.next(within_s=self._heartbeat_s)
                if not framed and not stream.is_ended:
                    # No event waits, so all events that the feed has delivered are sent.
                    framed = frame(event_body(EventKind.HEARTBEAT, max(reached, self._feed.cursor)))
                yield framed

    async def _as_it_stands(self, sight: EventFilter, stream: EventStream) -> _StreamStart:
        async with self._reading:
            if sight.workspace_id is None:
                newest = await self._store.newest()
                return _StreamStart(frame(event_body(EventKind.HEARTBEAT, newest.last_id, at=newest.at)), newest.last_id)
            standing = await self._store.standing(sight.workspace_id)
        if standing is None:
            raise Refused("not_found", "this workspace no longer exists")
        told = self._json(stream.show(standing.shown))
        return _StreamStart(
            frame(event_body(EventKind.STATE_CHANGED, standing.last_id, at=standing.at, workspace=told)), standing.last_id
        )

    async def _since(self, event_id: int, sight: EventFilter) -> _StreamStart:
        later = await self._later(event_id, sight)
        if later.is_lost_to(event_id) or later.takes_from(sight):
            # Until the whole state is sent, events have the id that asks for it: a client that loses the connection in between
            # gets the whole state again.
            return _StreamStart(frame(event_body(EventKind.RESET, BEGINNING)), None)
        # The client always gets an event at once: a heartbeat if it missed none.
        heartbeat = frame(event_body(EventKind.HEARTBEAT, later.reached))
        return _StreamStart(b"", event_id, later) if later.events else _StreamStart(heartbeat, later.reached)

    async def _anew(self, sight: EventFilter, stream: EventStream) -> AsyncGenerator[tuple[int, bytes]]:
        """The current state. The last part has the id after which events follow."""
        # Read before the pages: changes while they are read follow as events.
        begun = await self._as_it_stands(sight, stream)
        assert begun.reached is not None
        last: Workspace | None = None
        is_all = sight.workspace_id is not None
        while not is_all:
            async with self._reading:
                page = await self._store.standing_all(sight, begun.reached, after=last, limit=PAGE)
            told = (event_body(EventKind.STATE_CHANGED, BEGINNING, workspace=self._json(stream.show(one))) for one in page)
            async for framed in split_into_chunks(told):
                yield begun.reached, framed
            is_all = len(page) < PAGE
            last = page[-1].workspace if page else None
        yield begun.reached, begun.framed

    async def _later(self, event_id: int, sight: EventFilter) -> EventPage:
        async with self._reading:
            return await self._store.after(event_id, sight, limit=PAGE)

    def _framed(self, later: EventPage, stream: EventStream) -> AsyncIterator[bytes]:
        return split_into_chunks(told.body for told in event_messages(later.events, self._json) if stream.is_news(told))

    def _json(self, workspace: Workspace) -> dict[str, Any]:
        return wire.workspace_json(workspace, hosts=self._hosts)
