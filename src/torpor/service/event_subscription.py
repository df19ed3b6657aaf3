"""Receive this installation's events from the bus.

The bus may lose and repeat messages. Event ids have no holes, so `has_gap` finds a lost message as soon as a later one
arrives; the receiver then reads from the database, or discards what it has cached.
"""

from collections.abc import Callable

import structlog

from torpor.domain.events import OF_ANY_WORKSPACE, EventMessage, from_message
from torpor.ports import Feed

log = structlog.get_logger()


class EventSubscription:
    def __init__(self, feed: Feed, on_event: Callable[[EventMessage, int], None], on_gap: Callable[[], None]) -> None:
        """`on_event` gets each message and its size in bytes; `on_gap` is called when messages may have been lost."""
        self.installation: str | None = None
        """Set it as soon as it is known. Until then every message counts as lost, because it may be another installation's."""
        self._feed = feed
        self._on_event = on_event
        self._on_gap = on_gap

    async def listen(self, *, name: str) -> None:
        """Until cancelled."""
        await self._feed.listen(OF_ANY_WORKSPACE, self._received, self._on_gap, name=name)

    def _received(self, _channel: str, message: bytes) -> None:
        if self.installation is None:
            self._on_gap()
            return
        try:
            event = from_message(message, self.installation)
        except ValueError:
            log.warning("event_not_understood", length=len(message))
            return
        if event is not None:
            self._on_event(event, len(message))


def has_gap(event: EventMessage, *, after: int) -> bool:
    """Whether events between the one with the id `after` and this one have been lost."""
    return event.after > after
