"""How is something brought to its end though whoever waits for it is cancelled?"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def finish_despite_cancel(work: Awaitable[T], on_cancel: Callable[[], None] = lambda: None) -> T:
    """Finish it though we are cancelled meanwhile; the cancellation is raised afterwards. `on_cancel` may cut it short."""
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
            task.exception()  # looked at; the cancellation is what is told
        raise cancelled
    return task.result()
