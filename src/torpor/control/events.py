"""Who numbers what changed, and tells the bus of it?

The leader. What the bus does not take is not lost: whoever listens finds the gap and reads the database.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from torpor import metrics
from torpor.domain.errors import Unavailable
from torpor.domain.events import Event, channels, tell, to_message
from torpor.domain.records import Workspace
from torpor.ports import Feed
from torpor.store.events import Outbox

log = structlog.get_logger()

BATCH = 500
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
        self.wake = asyncio.Event()
        self._outbox = outbox
        self._feed = feed
        self._encode = encode
        self._retention_s = retention_s
        self._clock = clock
        self._prune_at = clock()

    async def do(self, term: int) -> None:
        is_heard = True
        while True:
            batch = await self._outbox.number(term, limit=BATCH)
            # Where the bus is out, waiting for it with each batch would keep those waiting who read the database instead.
            is_heard = is_heard and await self._publish(batch.events)
            if not batch.is_full:
                break
        if self._clock() >= self._prune_at:
            await self._prune(term)
            self._prune_at = self._clock() + min(PRUNE_EVERY_S, self._retention_s)

    async def _publish(self, events: Sequence[Event]) -> bool:
        if not events:
            return True
        told = [tell(event, self._encode(event.workspace)) for event in events]
        messages = [(channel, message) for one in told for message in (to_message(one),) for channel in channels(one)]
        try:
            await self._feed.publish(messages)
        except Unavailable as out:
            log.warning("events_not_published", count=len(events), why=out.message)
            return False
        metrics.events_published_total.inc(len(events))
        return True

    async def _prune(self, term: int) -> None:
        """In batches, each a transaction of its own: nobody waits long for the counter."""
        pruned = BATCH
        while pruned == BATCH:
            pruned = await self._outbox.prune(term, older_than_s=self._retention_s, limit=BATCH)
