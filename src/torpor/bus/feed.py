"""Publish changes to the listeners of a channel."""

from collections.abc import Callable, Sequence

from torpor.bus.redis import Bus
from torpor.bus.subscription import listen


class RedisFeed:
    """Implements ports.Feed. A message may arrive twice when the connection broke while it was sent."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        if messages:
            await self._bus.ask(*(("PUBLISH", channel, message) for channel, message in messages))

    async def listen(
        self, pattern: str, on_message: Callable[[str, bytes], None], on_gap: Callable[[], None], *, name: str = "feed"
    ) -> None:
        await listen(self._bus, pattern, on_message, on_gap, name=name)
