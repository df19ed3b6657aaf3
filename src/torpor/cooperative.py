"""Iterate over a long sequence without blocking the event loop."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

Item = TypeVar("Item")

PORTION = 200


async def cooperative_iteration(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Yield each item; after every `PORTION` items other tasks (a heartbeat, a request) can run."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % PORTION == 0:
            await asyncio.sleep(0)
