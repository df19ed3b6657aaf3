"""Wait for a condition, with a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar, overload

Seen = TypeVar("Seen")

PATIENCE_S = 30.0
"""Enough for a busy machine; only a failing test waits this long."""
INTERVAL_S = 0.01


@overload
async def until(
    condition: Callable[[], Awaitable[Seen | None]],
    *,
    within_s: float = ...,
    every_s: float = ...,
    otherwise: Callable[[], str] = ...,
) -> Seen: ...
@overload
async def until(
    condition: Callable[[], Seen | None], *, within_s: float = ..., every_s: float = ..., otherwise: Callable[[], str] = ...
) -> Seen: ...
async def until(
    condition: Callable[[], object],
    *,
    within_s: float = PATIENCE_S,
    every_s: float = INTERVAL_S,
    otherwise: Callable[[], str] = str,
) -> object:
    """The first true result of a condition, which may be a coroutine. `otherwise` adds to the error."""
    try:
        async with asyncio.timeout(within_s) as limit:
            while True:
                answer = condition()
                if isawaitable(answer):
                    answer = await answer
                if answer:
                    return answer
                await asyncio.sleep(every_s)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise in_vain(condition, within_s, otherwise) from error


def wait_until(
    condition: Callable[[], Seen | None],
    *,
    within_s: float = PATIENCE_S,
    every_s: float = INTERVAL_S,
    otherwise: Callable[[], str] = str,
) -> Seen:
    """The same for tests without an event loop."""
    end = time.monotonic() + within_s
    while not (answer := condition()):
        if time.monotonic() >= end:
            raise in_vain(condition, within_s, otherwise)
        time.sleep(every_s)
    return answer


def in_vain(condition: Callable[[], object], within_s: float, otherwise: Callable[[], str]) -> TimeoutError:
    code = getattr(condition, "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return TimeoutError(f"the condition{place} was not true within {within_s:g} s\n{otherwise()}".strip())
