"""Tell controllers at once which workspaces to reconcile."""

from collections.abc import Callable

from torpor.bus.redis import Bus
from torpor.bus.subscription import listen
from torpor.domain.errors import Unavailable
from torpor.domain.names import is_id

CHANNEL = "wc:wake"
MOST_IDS = 1000
"""How many ids a hint can contain; with more, it asks for a full resync."""


class RedisHints:
    """Implements ports.Hints. A message is ids separated by spaces; an empty one asks for a full resync."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._ids: set[str] = set()
        self._is_everything = False
        self._is_publishing = False

    def wake(self, *workspace_ids: str) -> None:
        self._ids.update(workspace_ids)
        if not workspace_ids or len(self._ids) > MOST_IDS:
            self._is_everything = True
        if not self._is_publishing:
            self._is_publishing = True
            self._bus.in_background(self._publish())

    async def listen(self, on_hint: Callable[..., None]) -> None:
        def on_message(channel: str, message: bytes) -> None:
            words = message.decode(errors="replace").split()
            ids = [word for word in words if is_id(word)]
            # Other users of this Redis can write to the channel: a message that contains no workspace id is ignored.
            if ids or not words:
                on_hint(*ids)

        await listen(self._bus, CHANNEL, on_message, on_hint, name="hints")

    async def _publish(self) -> None:
        """One message at a time: ids that arrive meanwhile go into the next one."""
        try:
            while self._ids or self._is_everything:
                message = "" if self._is_everything else " ".join(sorted(self._ids))
                self._ids.clear()
                self._is_everything = False
                await self._bus.ask(("PUBLISH", CHANNEL, message))
        except Unavailable:
            # Every listener does a full resync once the bus is back, so an earlier hint is not needed.
            self._ids.clear()
            self._is_everything = False
        finally:
            self._is_publishing = False
