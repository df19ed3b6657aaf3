"""Has somebody's right ended while they were being served?

What has no end of its own (a stream of events, a shell) waits here for the end of the right it goes by. It hears of it at once;
besides, everybody is asked about again now and then, so that a message that was lost costs seconds.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from torpor.accounts.callers import Caller
from torpor.bus.revocations import Revocation, Revocations
from torpor.domain.errors import Refused, Unavailable

ASK_AGAIN_S = 30.0


# Each is one of its kind, whoever it is about.
@dataclass(eq=False, slots=True)
class _WatchedCaller:
    caller: Caller
    news: asyncio.Event = field(default_factory=asyncio.Event)


class RevocationWatch:
    def __init__(
        self,
        revocations: Revocations,
        recognise_again: Callable[[Caller], Awaitable[Caller]],
        *,
        ask_again_s: float = ASK_AGAIN_S,
    ) -> None:
        self._revocations = revocations
        self._recognise_again = recognise_again
        self._ask_again_s = ask_again_s
        self._watched: set[_WatchedCaller] = set()

    async def run(self) -> None:
        """Until cancelled."""
        await self._revocations.listen(self._heard, self._missed, name="people")

    async def until_ended(self, caller: Caller) -> None:
        """Returns once this caller may not be here any more, or may less than they could."""
        # Neither `recognise_again` (the store heeds cancellation) nor the wait can lose a cancellation.
        with self._watch(caller) as watched:
            while await self._is_good(caller):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._ask_again_s):
                        await watched.news.wait()
                watched.news.clear()

    async def _is_good(self, caller: Caller) -> bool:
        try:
            return not caller.has_lost(await self._recognise_again(caller))
        except Refused:
            return False
        except Unavailable:
            return True  # nobody can say, and whoever was let in stays until somebody can

    @contextlib.contextmanager
    def _watch(self, caller: Caller) -> Iterator[_WatchedCaller]:
        watched = _WatchedCaller(caller)
        self._watched.add(watched)
        try:
            yield watched
        finally:
            self._watched.discard(watched)

    def _heard(self, revoked: Revocation) -> None:
        for watched in self._watched:
            if revoked.concerns(watched.caller.credential_id, watched.caller.user.id):
                watched.news.set()

    def _missed(self) -> None:
        for watched in self._watched:
            watched.news.set()
