"""Who numbers what changed, and tells the bus of it?

The leader. What the bus does not take is not lost: whoever listens finds the gap and reads the database.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import structlog

from torpor import metrics
from torpor.domain.errors import Unavailable
from torpor.domain.events import channels, to_message
from torpor.domain.records import Workspace
from torpor.loops import TURN_S, report_progress
from torpor.ports import Feed
from torpor.store.events import EventBatch, Outbox, event_messages

log = structlog.get_logger()

BATCH = 500
# Sent to the bus at once; the events of a batch may be long.
AT_ONCE_BYTES = 4 * 2**20
PRUNE_EVERY_S = 300.0


class EventPublisher:
    name = "events"

    def __init__(
        self,
        outbox: Outbox,
        feed: Feed,
        *,
        encode: Callable[[Workspace], Mapping[str, Any]],
        retention_s: float,
        interval_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_s = interval_s
        self.turn_s = TURN_S
        self.wake = asyncio.Event()
        self._outbox = outbox
        self._feed = feed
        self._encode = encode
        self._retention_s = retention_s
        self._clock = clock
        self._prune_at = clock()

    def rest(self) -> None:
        """Nothing here is only a leader's."""

    async def do(self, term: int) -> None:
        is_heard, is_first = True, True
        # Part of one turn. Store and bus heed cancellation, so `_publish` cannot take one for an outage.
        while True:
            batch = await self._outbox.number(term, limit=BATCH)
            # Where the bus is out, waiting for it with each batch would keep those waiting who read the database instead.
            is_heard = is_heard and await self._publish(batch)
            if not batch.is_full:
                break
            report_progress()
            if is_first:
                await self._outbox.warn_of_many()
                is_first = False
        if self._clock() >= self._prune_at:
            await self._prune(term)

    async def _publish(self, batch: EventBatch) -> bool:
        try:
            for count, messages in _in_parts(self._messages(batch), AT_ONCE_BYTES):
                await self._feed.publish(messages)
                metrics.events_published_total.inc(count)
        except Unavailable as out:
            log.warning("events_not_published", count=len(batch.events), why=out.message)
            return False
        return True

    def _messages(self, batch: EventBatch) -> Iterator[tuple[tuple[str, str], bytes]]:
        for told in event_messages(batch.events, self._encode):
            yield channels(told), to_message(told, batch.installation)

    async def _prune(self, term: int) -> None:
        """One batch, a transaction of its own. What is new comes before the next: nobody waits for all that is old to go."""
        if await self._outbox.prune(term, older_than_s=self._retention_s, limit=BATCH) == BATCH:
            self.wake.set()
        else:
            self._prune_at = self._clock() + min(PRUNE_EVERY_S, self._retention_s)


def _in_parts(
    messages: Iterable[tuple[tuple[str, str], bytes]], at_once_bytes: int
) -> Iterator[tuple[int, list[tuple[str, bytes]]]]:
    """How many events, and what to say on which channel."""
    count, size_bytes, part = 0, 0, list[tuple[str, bytes]]()
    for channels_of_it, message in messages:
        count, size_bytes = count + 1, size_bytes + len(message)
        part += [(channel, message) for channel in channels_of_it]
        if size_bytes >= at_once_bytes:
            yield count, part
            count, size_bytes, part = 0, 0, []
    if part:
        yield count, part
