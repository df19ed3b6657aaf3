"""Finish work even if the caller is cancelled."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def finish_despite_cancel(work: Awaitable[T], on_cancel: Callable[[], None] = lambda: None) -> T:
    """Finish the work, then raise a cancellation that arrived meanwhile. `on_cancel` may shorten the work."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
            on_cancel()
        except BaseException:
            break
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved, but the cancellation is raised
        raise cancelled
    return task.result()
