"""May somebody go on who is being served for long?

Where a workspace is taken from them they hear of it at once (`event_fanout`). Besides, it is looked again now and then, so that
a message that was lost costs seconds.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from torpor.domain.errors import Refused, Unavailable

LOOK_AGAIN_S = 30.0


async def until_refused(look: Callable[[], Awaitable[object]], news: asyncio.Event) -> None:
    """Returns once `look` is refused; it is asked when there is news, and else now and then."""
    # Not a loop of the control plane, and it cannot lose a cancellation: `look` asks the store, which heeds it.
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_S):
                await news.wait()
        # Before it looks: what comes meanwhile is news again.
        news.clear()
        try:
            await look()
        except Refused:
            return
        except Unavailable:
            pass  # whoever was let in stays until somebody can say
