"""Who hears of a change, in which order, and what becomes of those who do not keep up?

One task for the process follows the bus and hands each event, encoded once, to the streams that may see it. The bus may lose
and repeat; ids have no holes, so a gap shows, and what is missing is read from the database. A stream that lets too much wait
is ended: its client comes again and says where it was.
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
from torpor.domain.events import OF_ANY_WORKSPACE, EventKind, EventMessage, from_message
from torpor.domain.records import Workspace
from torpor.loops import Loop, run_until_first_ends
from torpor.ports import Feed
from torpor.store.events import ALL, EventFilter, EventStore, WorkspaceSnapshot, event_messages

log = structlog.get_logger()

# Often enough that nobody waits long while the bus is out; one small statement for the whole process.
POLL_S = 2.0
RETRY_S = 1.0
WARN_EVERY_S = 60.0
PAGE = 500
STREAM_HOLDS = 256
STREAM_HOLDS_BYTES = 4 * 2**20
# So many are handed out before the streams get their turn to send: one that keeps up never overflows.
AT_ONCE = 32
INBOX_HOLDS_BYTES = 32 * 2**20
EVERYTHING = "everything"


def frame(body: Mapping[str, Any]) -> bytes:
    """One event of a `text/event-stream`."""
    return f"id: {body['id']}\nevent: {body['event']}\ndata: {json.dumps(body)}\n\n".encode()


async def split_into_chunks(bodies: Iterable[Mapping[str, Any]]) -> AsyncIterator[bytes]:
    """Framed, so many at once that the others get their turn in between."""
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
    """What waits to be sent to one client, in order, once it has caught up."""

    def __init__(self, username: str = "") -> None:
        self.username = username
        """Who follows."""
        self.is_ended = False
        self._reached: int | None = None
        self._shown: dict[str, int] = {}
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._changed = asyncio.Event()
        self._on_end: list[Callable[[], object]] = []

    def go_live(self, *, after: int) -> None:
        """Everything up to this event was sent."""
        self._reached = after

    def show(self, shown: WorkspaceSnapshot) -> Workspace:
        """It is told how this one stands. What led there may still come as an event, and is no news then."""
        if shown.seq:
            self._shown[shown.workspace.id] = shown.seq
        return shown.workspace

    def is_news(self, told: EventMessage) -> bool:
        if told.seq <= self._shown.get(told.workspace_id, 0):
            return False
        # From here on everything is.
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
        """From anywhere, at any time: nothing more is sent."""
        self.is_ended = True
        self._take()
        self._changed.set()
        while self._on_end:
            self._on_end.pop()()

    def when_ended(self, do: Callable[[], object]) -> None:
        self._on_end.append(do)

    async def next(self, *, within_s: float) -> bytes:
        """All that waits, as soon as something does; nothing when time is up or the stream has ended."""
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
        self._feed = feed
        self._encode = encode
        self._cursor: int | None = None
        """Everything up to this event was handed out; None: it is not known yet where we stand."""
        self._installation: str | None = None
        self._streams: dict[str, set[EventStream]] = {}
        """By whom or what they follow (`_of_workspace`, `_of_user`, `EVERYTHING`)."""
        self._guests: dict[str, dict[asyncio.Event, str]] = {}
        """What wakes those who are served by a workspace in another way, by workspace, and who each of them is."""
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
            raise Unavailable("events cannot be followed just now")
        return self._cursor

    @contextlib.contextmanager
    def open(self, sight: EventFilter, stream: EventStream) -> Iterator[None]:
        """From here on it is counted and can be ended; what it hears begins where it goes live."""
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
        """Set when this workspace may have been taken from this user, or is stopped soon; and at first."""
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
        """Until cancelled; then every stream ends."""
        try:
            await run_until_first_ends(
                Loop("event-feed", self._turn, interval_s=POLL_S, retry_s=RETRY_S, wake=self._wake).run(),
                self._feed.listen(OF_ANY_WORKSPACE, self._heard, self._missed, name="event-messages"),
            )
        finally:
            self._cursor = None
            self._end_all()

    def _heard(self, _channel: str, message: bytes) -> None:
        if self._installation is None:
            self._missed()
            return
        try:
            told = from_message(message, self._installation)
        except ValueError:
            log.warning("event_not_understood", length=len(message))
            return
        if told is None:
            return
        if self._inbox_bytes >= INBOX_HOLDS_BYTES:
            self._empty_inbox()
            self._has_gap = True
        self._inbox.append(told)
        self._inbox_bytes += len(message)
        self._wake.set()

    def _missed(self) -> None:
        self._has_gap = True
        self._wake.set()

    async def _turn(self) -> None:
        if not self._inbox and not self._has_gap:
            # It was quiet for a whole interval.
            self._has_gap = True
            await self._warn()
        await self._follow()

    async def _follow(self) -> None:
        """Everything that is known of by now."""
        try:
            if self._cursor is None:
                newest = await self._store.newest()
                self._cursor, self._installation = newest.last_id, newest.installation
            await self._hand_out_inbox()
            if self._has_gap:
                # Before it is read: what comes meanwhile is a new one.
                self._has_gap = False
                await self._catch_up(self._cursor)
        except BaseException:
            self._has_gap = True
            raise

    async def _hand_out_inbox(self) -> None:
        handed_out = 0
        while self._inbox:
            told = self._inbox.popleft()
            if told.after > self.cursor:
                # Read from the database up to here and beyond: what is left in the inbox is in there as well.
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
            # Away for longer than events are kept, or the database is an older one: whoever follows must begin anew.
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
        # Last: what could not be handed out is read from the database.
        self._cursor = told.id

    def _end_unshared(self, told: EventMessage) -> None:
        """It is no longer theirs to see. They come again, and are told what is."""
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
        """It is quiet. Whether nothing happens, or nobody leads who would give ids to what does, only the database knows."""
        now = asyncio.get_running_loop().time()
        if now >= self._warn_at:
            self._warn_at = now + WARN_EVERY_S
            with contextlib.suppress(Unavailable):
                await self._store.warn_of_many()

    def _end_all(self) -> None:
        for stream in [one for among in self._streams.values() for one in among]:
            stream.end()
        # What was missed may have been just that.
        for news in [one for among in self._guests.values() for one in among]:
            news.set()
