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

log = structlog.get_logger()

TRY_AGAIN_S = 1.0
SAY_AGAIN_S = 60.0
START_ENGINE = "Start the engine, or correct TORPOR_ENGINE_URL"
# The runtimes whose engine is waited for.
ADVICE = {
    "docker": START_ENGINE,
    "podman": START_ENGINE,
    "kubernetes": "Make the cluster available, or correct TORPOR_KUBERNETES_CONFIG",
}

Start = Callable[[contextlib.AsyncExitStack], Awaitable[None]]


async def start_controller(start: Start, runtime: Runtime, stack: contextlib.AsyncExitStack) -> None:
    """`start` can be repeated after Unavailable. Only an engine is waited for: it is a service with a life of its own."""
    try:
        await _start_once(start, stack)
    except Unavailable as out:
        if runtime.name not in ADVICE:
            raise
        _say_awaited(out, ADVICE[runtime.name])
        await stack.enter_async_context(background(_start_later(start, ADVICE[runtime.name]), "engine"))


async def _start_once(start: Start, stack: contextlib.AsyncExitStack) -> None:
    async with contextlib.AsyncExitStack() as own:
        await start(own)
        stack.push_async_exit(own.pop_all())


async def _start_later(start: Start, advice: str) -> None:
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
                    _say_awaited(out, advice)
            except TorporError as error:
                print(f"torpor: {error.message}", file=sys.stderr, flush=True)
                raise
            else:
                break
        print("torpor: the engine answers, and the controller has started", file=sys.stderr, flush=True)
        log.info("engine_answers")
        await asyncio.Event().wait()


def _say_awaited(out: Unavailable, advice: str) -> None:
    print(
        f"torpor: waiting for the engine: {out.message}. Until it answers, no workspace is started, stopped or archived. "
        f"{advice}",
        file=sys.stderr,
        flush=True,
    )
    log.warning("engine_awaited", why=out.message)
