"""Deliver each event to the streams that may see it, in order.

One task in each process follows the bus and gives each event, encoded once, to the streams. Events that the bus lost are read
from the database. A stream with too many waiting events is ended: its client reconnects and sends the id of its last event.
"""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

import structlog

from torpor import metrics
from torpor.domain.errors import Unavailable
from torpor.domain.events import EventKind, EventMessage
from torpor.domain.records import Workspace
from torpor.loops import Loop, run_until_first_ends
from torpor.ports import Feed
from torpor.service.event_subscription import EventSubscription, has_gap
from torpor.store.events import ALL, EventFilter, EventStore, WorkspaceSnapshot, event_messages

log = structlog.get_logger()

# Short, so that clients do not wait long while the bus is out. It costs one small statement for the whole process.
POLL_S = 2.0
RETRY_S = 1.0
WARN_EVERY_S = 60.0
PAGE = 500
STREAM_HOLDS = 256
STREAM_HOLDS_BYTES = 4 * 2**20
# So many events are delivered before the streams get time to send, so that a stream that keeps up never overflows.
AT_ONCE = 32
INBOX_HOLDS_BYTES = 32 * 2**20
EVERYTHING = "everything"


def frame(body: Mapping[str, Any]) -> bytes:
    """One event of a `text/event-stream`."""
    return f"id: {body['id']}\nevent: {body['event']}\ndata: {json.dumps(body)}\n\n".encode()


async def split_into_chunks(bodies: Iterable[Mapping[str, Any]]) -> AsyncIterator[bytes]:
    """Frame the events in chunks, with a pause after each in which other tasks run."""
    part: list[bytes] = []
    for body in bodies:
        part.append(frame(body))
        if len(part) == AT_ONCE:
            yield b"".join(part)
            part.clear()
            await asyncio.sleep(0)
    if part:
        yield b"".join(part)


class EventStream:
    """The events that wait to be sent to one client, in order, once the stream has caught up."""

    def __init__(self, username: str = "") -> None:
        self.username = username
        """The user who follows."""
        self.is_ended = False
        self._reached: int | None = None
        self._shown: dict[str, int] = {}
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._changed = asyncio.Event()
        self._on_end: list[Callable[[], object]] = []

    def go_live(self, *, after: int) -> None:
        """All events up to this one are sent."""
        self._reached = after

    def show(self, shown: WorkspaceSnapshot) -> Workspace:
        """The client gets this state. Events that led to it may still arrive, and are then skipped."""
        if shown.seq:
            self._shown[shown.workspace.id] = shown.seq
        return shown.workspace

    def is_news(self, told: EventMessage) -> bool:
        if told.seq <= self._shown.get(told.workspace_id, 0):
            return False
        # All later events are news.
        self._shown.pop(told.workspace_id, None)
        return True

    def offer(self, told: EventMessage, framed: bytes) -> None:
        if self._reached is None or told.id <= self._reached or self.is_ended:
            return
        if len(self._waiting) >= STREAM_HOLDS or self._waiting_bytes >= STREAM_HOLDS_BYTES:
            log.info("slow_reader_dropped", reached=self._reached)
            self.end()
            return
        self._reached = told.id
        if self.is_news(told):
            self._waiting.append(framed)
            self._waiting_bytes += len(framed)
            self._changed.set()

    def end(self) -> None:
        """No more events are sent. May be called at any time."""
        self.is_ended = True
        self._take()
        self._changed.set()
        while self._on_end:
            self._on_end.pop()()

    def when_ended(self, do: Callable[[], object]) -> None:
        self._on_end.append(do)

    async def next(self, *, within_s: float) -> bytes:
        """All waiting events, as soon as there is one; empty when the time is over or the stream has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        self._changed.clear()
        return self._take()

    def _take(self) -> bytes:
        framed = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        return framed


def _of_workspace(workspace_id: str) -> str:
    return f"workspace:{workspace_id}"


def _of_user(username: str) -> str:
    return f"user:{username}"


def _followed(sight: EventFilter) -> str:
    if sight.workspace_id is not None:
        return _of_workspace(sight.workspace_id)
    return _of_user(sight.username) if sight.username is not None else EVERYTHING


class EventFeed:
    def __init__(self, store: EventStore, feed: Feed, *, encode: Callable[[Workspace], Mapping[str, Any]]) -> None:
        self._store = store
        self._subscription = EventSubscription(feed, self._received, self._missed)
        self._encode = encode
        self._cursor: int | None = None
        """All events up to this one are delivered; None: the position is not known yet."""
        self._streams: dict[str, set[EventStream]] = {}
        """The streams of each workspace (`_of_workspace`), of each user (`_of_user`), and of all events (`EVERYTHING`)."""
        self._guests: dict[str, dict[asyncio.Event, str]] = {}
        """For shells and commands, by workspace: the event to set, and the user."""
        self._inbox: deque[EventMessage] = deque()
        self._inbox_bytes = 0
        self._has_gap = True
        self._warn_at = 0.0
        self._wake = asyncio.Event()

    @property
    def is_following(self) -> bool:
        return self._cursor is not None

    @property
    def cursor(self) -> int:
        if self._cursor is None:
            raise Unavailable("event streams are not available now; try again")
        return self._cursor

    @contextlib.contextmanager
    def open(self, sight: EventFilter, stream: EventStream) -> Iterator[None]:
        """Count the stream, and end it when its user loses access. It gets events from `go_live` on."""
        followed = _followed(sight)
        among = self._streams.setdefault(followed, set())
        among.add(stream)
        metrics.sse_streams.inc()
        try:
            yield
        finally:
            metrics.sse_streams.dec()
            among.discard(stream)
            if not among and self._streams.get(followed) is among:
                del self._streams[followed]

    @contextlib.contextmanager
    def news_for(self, username: str, workspace_id: str) -> Iterator[asyncio.Event]:
        """An event that is set when this user may have lost access to the workspace, when it is stopped soon, and at first."""
        news = asyncio.Event()
        news.set()
        among = self._guests.setdefault(workspace_id, {})
        among[news] = username
        try:
            yield news
        finally:
            among.pop(news, None)
            if not among and self._guests.get(workspace_id) is among:
                del self._guests[workspace_id]

    async def run(self) -> None:
        """Run until cancelled; then every stream ends."""
        try:
            await run_until_first_ends(
                Loop("event-feed", self._turn, interval_s=POLL_S, retry_s=RETRY_S, wake=self._wake).run(),
                self._subscription.listen(name="event-messages"),
            )
        finally:
            self._cursor = None
            self._end_all()

    def _received(self, told: EventMessage, size: int) -> None:
        if self._inbox_bytes >= INBOX_HOLDS_BYTES:
            self._empty_inbox()
            self._has_gap = True
        self._inbox.append(told)
        self._inbox_bytes += size
        self._wake.set()

    def _missed(self) -> None:
        self._has_gap = True
        self._wake.set()

    async def _turn(self) -> None:
        if not self._inbox and not self._has_gap:
            # No message arrived in a whole interval.
            self._has_gap = True
            await self._warn()
        await self._follow()

    async def _follow(self) -> None:
        """Deliver all events that are known now."""
        try:
            if self._cursor is None:
                newest = await self._store.newest()
                self._cursor, self._subscription.installation = newest.last_id, newest.installation
            await self._hand_out_inbox()
            if self._has_gap:
                # Cleared before the read: a gap that is found meanwhile is a new one.
                self._has_gap = False
                await self._catch_up(self._cursor)
        except BaseException:
            self._has_gap = True
            raise

    async def _hand_out_inbox(self) -> None:
        handed_out = 0
        while self._inbox:
            told = self._inbox.popleft()
            if has_gap(told, after=self.cursor):
                # The rest of the inbox is read from the database, too.
                self._empty_inbox()
                self._has_gap = True
                return
            self._hand_out(told)
            handed_out += 1
            if handed_out % AT_ONCE == 0:
                await asyncio.sleep(0)
        self._empty_inbox()

    def _empty_inbox(self) -> None:
        self._inbox.clear()
        self._inbox_bytes = 0

    async def _catch_up(self, cursor: int) -> None:
        later = await self._store.after(cursor, ALL, limit=PAGE)
        if later.is_lost_to(cursor):
            # The gap is older than the stored events, or the database was restored from a backup: all clients must start again.
            log.warning("events_begun_anew", cursor=cursor, pruned_id=later.pruned_id, last_id=later.last_id)
            self._cursor = later.last_id
            self._end_all()
            return
        for number, told in enumerate(event_messages(later.events, self._encode), start=1):
            self._hand_out(told)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        self._cursor = max(self.cursor, later.reached)
        if later.reached < later.last_id:
            self._missed()

    def _hand_out(self, told: EventMessage) -> None:
        if told.id <= self.cursor:
            return
        if told.unshared:
            self._end_unshared(told)
        if told.body["event"] == EventKind.SLEEPING_SOON:
            for news in self._guests.get(told.workspace_id, ()):
                news.set()
        framed: bytes | None = None
        for followed in (_of_workspace(told.workspace_id), *map(_of_user, told.usernames), EVERYTHING):
            for stream in self._streams.get(followed, ()):
                framed = framed or frame(told.body)
                stream.offer(told, framed)
        # Moved last: an event whose delivery fails is read from the database.
        self._cursor = told.id

    def _end_unshared(self, told: EventMessage) -> None:
        """End the streams of users who lost access. Their clients reconnect and get what they may still see."""
        for news, username in self._guests.get(told.workspace_id, {}).items():
            if username in told.unshared:
                news.set()
        for username in told.unshared:
            for stream in tuple(self._streams.get(_of_user(username), ())):
                stream.end()
        for stream in tuple(self._streams.get(_of_workspace(told.workspace_id), ())):
            if stream.username in told.unshared:
                stream.end()

    async def _warn(self) -> None:
        """Log a warning if the database has many events without an id: no leader may be there to number them."""
        now = asyncio.get_running_loop().time()
        if now >= self._warn_at:
            self._warn_at = now + WARN_EVERY_S
            with contextlib.suppress(Unavailable):
                await self._store.warn_of_many()

    def _end_all(self) -> None:
        for stream in [one for among in self._streams.values() for one in among]:
            stream.end()
        # The missed events may include a loss of access.
        for news in [one for among in self._guests.values() for one in among]:
            news.set()
