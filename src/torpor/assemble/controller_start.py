"""Start the controller of a process at once, or when its engine answers.

Without its engine a process still serves the API and the proxy. Workspaces wait, as in any outage.
"""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable

import structlog

from torpor.assemble.process import background
from torpor.domain.errors import TorporError, Unavailable
from torpor.ports import Runtime
from torpor.runtimes.docker.runtime import DockerRuntime
from torpor.runtimes.kubernetes.runtime import KubernetesRuntime

log = structlog.get_logger()

TRY_AGAIN_S = 1.0
SAY_AGAIN_S = 60.0

Start = Callable[[contextlib.AsyncExitStack], Awaitable[None]]


async def start_controller(start: Start, runtime: Runtime, stack: contextlib.AsyncExitStack) -> None:
    """`start` can be repeated after Unavailable. Only an engine is waited for: it is a service with a life of its own."""
    try:
        await _start_once(start, stack)
    except Unavailable as out:
        if not isinstance(runtime, DockerRuntime | KubernetesRuntime):
            raise
        _say_awaited(out)
        await stack.enter_async_context(background(_start_later(start), "engine"))


async def _start_once(start: Start, stack: contextlib.AsyncExitStack) -> None:
    async with contextlib.AsyncExitStack() as own:
        await start(own)
        stack.push_async_exit(own.pop_all())


async def _start_later(start: Start) -> None:
    loop = asyncio.get_running_loop()
    said_at = loop.time()
    async with contextlib.AsyncExitStack() as stack:
        while True:
            await asyncio.sleep(TRY_AGAIN_S)
            try:
                await _start_once(start, stack)
            except Unavailable as out:
                if loop.time() - said_at > SAY_AGAIN_S:
                    said_at = loop.time()
                    _say_awaited(out)
            except TorporError as error:
                print(f"torpor: {error.message}", file=sys.stderr, flush=True)
                raise
            else:
                break
        print("torpor: the engine answers, and the controller has started", file=sys.stderr, flush=True)
        log.info("engine_answers")
        await asyncio.Event().wait()


def _say_awaited(out: Unavailable) -> None:
    print(
        f"torpor: waiting for the engine: {out.message}. Until it answers, no workspace is started, stopped or archived. "
        "Start the engine, or correct TORPOR_ENGINE_URL",
        file=sys.stderr,
        flush=True,
    )
    log.warning("engine_awaited", why=out.message)
