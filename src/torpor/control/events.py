"""Number the events and publish them on the bus. A duty of the leader.

An event that the bus does not accept is not lost: subscribers detect the gap and read the database.
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
# The limit for one send to the bus; events can be long.
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
        """There is no state of the leader."""

    async def do(self, term: int) -> None:
        is_heard, is_first = True, True
        # Part of one turn. Store and bus react to cancellation, so `_publish` cannot mistake one for an outage.
        while True:
            batch = await self._outbox.number(term, limit=BATCH)
            # During an outage of the bus, a timeout for each batch would delay clients that read the database.
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
        """Remove one batch in its own transaction. New events come before the next batch, so they do not wait for the
        removal."""
        if await self._outbox.prune(term, older_than_s=self._retention_s, limit=BATCH) == BATCH:
            self.wake.set()
        else:
            self._prune_at = self._clock() + min(PRUNE_EVERY_S, self._retention_s)


def _in_parts(
    messages: Iterable[tuple[tuple[str, str], bytes]], at_once_bytes: int
) -> Iterator[tuple[int, list[tuple[str, bytes]]]]:
    """Yield the number of events, and pairs of channel and message."""
    count, size_bytes, part = 0, 0, list[tuple[str, bytes]]()
    for its_channels, message in messages:
        count, size_bytes = count + 1, size_bytes + len(message)
        part += [(channel, message) for channel in its_channels]
        if size_bytes >= at_once_bytes:
            yield count, part
            count, size_bytes, part = 0, 0, []
    if part:
        yield count, part
