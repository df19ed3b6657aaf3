"""How does a controller hear at once that there is something to look at?"""

from collections.abc import Callable

from torpor.bus.redis import Bus
from torpor.bus.subscription import listen
from torpor.domain.errors import Unavailable
from torpor.domain.names import is_id

CHANNEL = "wc:wake"
SINGLY = 1000
"""How many ids a hint names; beyond that it says: look at everything."""


class RedisHints:
    """Implements ports.Hints. A message is ids with spaces between them, or empty: everything."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._ids: set[str] = set()
        self._is_everything = False
        self._is_publishing = False

    def wake(self, *workspace_ids: str) -> None:
        self._ids.update(workspace_ids)
        if not workspace_ids or len(self._ids) > SINGLY:
            self._is_everything = True
        if not self._is_publishing:
            self._is_publishing = True
            self._bus.in_background(self._publish())

    async def listen(self, on_hint: Callable[..., None]) -> None:
        def heard(channel: str, message: bytes) -> None:
            words = message.decode(errors="replace").split()
            ids = [word for word in words if is_id(word)]
            # Channels are open to whoever else uses this Redis: what names nothing of ours means nothing, not everything.
            if ids or not words:
                on_hint(*ids)

        await listen(self._bus, CHANNEL, heard, on_hint, name="hints")

    async def _publish(self) -> None:
        """One message at a time: what is said meanwhile goes with the next."""
        try:
            while self._ids or self._is_everything:
                message = "" if self._is_everything else " ".join(sorted(self._ids))
                self._ids.clear()
                self._is_everything = False
                await self._bus.ask(("PUBLISH", CHANNEL, message))
        except Unavailable:
            # Everyone who listens will look at everything once the bus is back; a hint from before is worth nothing then.
            self._ids.clear()
            self._is_everything = False
        finally:
            self._is_publishing = False
