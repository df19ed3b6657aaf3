"""End requests that are served for long (streams, shells, open connections) when the caller loses the right to them.

Revocations arrive on the bus. Each right is also checked every RECHECK_S, so a lost message costs seconds.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from torpor.accounts.callers import Caller
from torpor.bus.revocations import Revocation, Revocations
from torpor.domain.errors import Refused, Unavailable

RECHECK_S = 30.0


async def wait_until_refused(
    check: Callable[[], Awaitable[object]], news: asyncio.Event, *, recheck_s: float | None = None
) -> None:
    """Return once `check` raises Refused. It is called when `news` is set, and every `recheck_s` (default: RECHECK_S)."""
    # This is not a loop of the control plane. It cannot lose a cancellation: `check` asks the store, which heeds it.
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECHECK_S if recheck_s is None else recheck_s):
                await news.wait()
        # Cleared before the check: news that arrives during the check causes another one.
        news.clear()
        try:
            await check()
        except Refused:
            return
        except Unavailable:
            pass  # callers that were admitted stay until the database can be asked


# Compared by identity: two watches of one caller are two.
@dataclass(eq=False, slots=True)
class _WatchedCaller:
    caller: Caller
    news: asyncio.Event = field(default_factory=asyncio.Event)


class RevocationWatch:
    def __init__(self, revocations: Revocations, check_rights: Callable[[Caller], Awaitable[Caller]]) -> None:
        """`check_rights`: raises Refused when the caller has lost a right."""
        self._revocations = revocations
        self._check_rights = check_rights
        self._recheck_s: float | None = None
        self._watched: set[_WatchedCaller] = set()

    async def run(self) -> None:
        """Listen for revocations until cancelled."""
        await self._revocations.listen(self._revoked, self._missed, name="people")

    async def until_ended(self, caller: Caller) -> None:
        """Return once this caller is signed out or has lost a right."""
        with self._watch(caller) as watched:
            # The right may have ended before the watch began.
            watched.news.set()
            await wait_until_refused(lambda: self._check_rights(caller), watched.news, recheck_s=self._recheck_s)

    @contextlib.contextmanager
    def _watch(self, caller: Caller) -> Iterator[_WatchedCaller]:
        watched = _WatchedCaller(caller)
        self._watched.add(watched)
        try:
            yield watched
        finally:
            self._watched.discard(watched)

    def _revoked(self, revoked: Revocation) -> None:
        for watched in self._watched:
            if revoked.concerns(watched.caller.credential_id, watched.caller.user.id):
                watched.news.set()

    def _missed(self) -> None:
        for watched in self._watched:
            watched.news.set()
