"""How is a long sequence worked through without keeping everybody else waiting?"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

Item = TypeVar("Item")

PORTION = 200


async def cooperative_iteration(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Each of them; after every few the event loop may see to others (a heartbeat, a request)."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % PORTION == 0:
            await asyncio.sleep(0)
