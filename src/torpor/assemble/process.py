"""Run the parts of one process until it is stopped, and end them in order."""

import asyncio
import contextlib
import inspect
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import structlog
import uvicorn

from torpor import socket_folders
from torpor.domain.errors import Hopeless, Refused, TorporError
from torpor.file_lock import PidLock
from torpor.loops import stop
from torpor.paths import PID_FILE
from torpor.proxy.server import ProxyServer
from torpor.store.database import Database, Role

log = structlog.get_logger()

_ended_parts: ContextVar[list[str] | None] = ContextVar("ended_parts", default=None)
"""Of the process that `run` runs, which is stopped then."""


def run(start: Callable[[contextlib.AsyncExitStack], Awaitable[str]], *, alone_in: Path | None = None) -> int:
    """Start everything, print that it is ready, and run until Ctrl-C or SIGTERM; return the exit code: 1 if a part ended.

    `start` returns the text to print. `alone_in`: the data directory that no other process can use meanwhile.
    """
    raise_file_limit()
    try:
        with (
            data_directory_lock(alone_in) if alone_in is not None else contextlib.nullcontext(),
            asyncio.Runner(loop_factory=event_loop_factory()) as runner,
        ):
            ended = runner.run(_until_stopped(start))
    except TorporError as error:
        print(f"torpor: {error.message}", file=sys.stderr)
        return 1
    return 1 if ended else 0


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop handles twice the requests. On platforms without it, asyncio's own loop is used."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _until_stopped(start: Callable[[contextlib.AsyncExitStack], Awaitable[str]]) -> list[str]:
    """The parts that ended by themselves."""
    ended: list[str] = []
    _ended_parts.set(ended)
    stop, ready = asyncio.Event(), asyncio.Event()
    running = asyncio.ensure_future(_run_parts(start, stop, ready))

    def on_signal() -> None:
        # The first signal stops everything in order; a second one, or one before it is ready, stops it at once.
        if stop.is_set() or not ready.is_set():
            running.cancel()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return ended


async def _run_parts(
    start: Callable[[contextlib.AsyncExitStack], Awaitable[str]], stop: asyncio.Event, ready: asyncio.Event
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        text = await start(stack)
        ready.set()
        print(text, flush=True)
        await stop.wait()
        print("torpor is stopping", flush=True)


def raise_file_limit() -> None:
    """Every connection and every workspace needs descriptors; the low soft limit exists only for programs that use select."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def data_directory_lock(data: Path) -> Iterator[None]:
    """One `torpor up` for each data directory."""
    try:
        # Without bubblewrap, a workspace's own user must be able to reach its home; the other folders are closed.
        data.mkdir(mode=0o711 if os.getuid() == 0 else 0o700, parents=True, exist_ok=True)
        # Other users may read which process runs here.
        lock = PidLock(data / PID_FILE, mode=0o644)
    except OSError as error:
        raise Refused("bad_data", f"the data directory {data} cannot be used: {error.strerror}") from error
    try:
        if not lock.take():
            raise Refused(
                "already_up",
                f"torpor is already running in {data} (process {lock.holder or 'unknown'}); "
                "stop it first, or choose another --data",
            )
        yield
    finally:
        lock.close()


@contextlib.asynccontextmanager
async def running_front(front: ProxyServer, grace_s: float = 5) -> AsyncIterator[None]:
    await front.start()
    try:
        yield
    finally:
        await front.stop(grace_s)


@contextlib.asynccontextmanager
async def open_database(url: str, role: Role) -> AsyncIterator[Database]:
    database = await Database.open(url, role)
    try:
        yield database
    finally:
        await database.close()


@contextlib.asynccontextmanager
async def background(work: Any, name: str) -> AsyncIterator[None]:
    task = asyncio.create_task(_watched(work, name), name=name)
    try:
        yield
    finally:
        await stop(task)
        if inspect.iscoroutine(work):
            work.close()  # it may not have begun: a start can be refused at once


async def _watched(work: Any, name: str) -> None:
    """Stop the whole process when a part that must run forever ends: the rest would not work without it."""
    task = asyncio.current_task()
    try:
        await work
    except asyncio.CancelledError:
        if task is None or task.cancelling():
            raise
        log.exception("part_broke", part=name)
    except Exception:
        log.exception("part_broke", part=name)
    if task is None or not task.cancelling():
        log.error("part_ended", part=name)
        if (ended := _ended_parts.get()) is not None:
            ended.append(name)
        os.kill(os.getpid(), signal.SIGTERM)


class _Server(uvicorn.Server):
    """Leaves signals to this module, which stops the whole product in order, not only this server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serve_app(app: Any, path: Path) -> AsyncIterator[None]:
    config = uvicorn.Config(
        app,
        uds=str(path),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=5,
        proxy_headers=True,
        forwarded_allow_ips="*",
        # A client that has stopped reading for a while (a shell in a pager) answers no ping, but is still connected.
        ws_ping_timeout=None,
        ws_per_message_deflate=False,
        # Clients send small pieces; a large message would be kept in memory as a whole.
        ws_max_size=1 << 20,
    )
    server = _Server(config)
    serve = asyncio.create_task(server.serve(), name="api server")
    try:
        while not server.started:
            if serve.done():
                serve.result()
                raise Hopeless("the API ended before it was ready")
            await asyncio.sleep(0.01)
        async with background(asyncio.shield(serve), "api"):
            yield
    finally:
        server.should_exit = True
        await asyncio.gather(serve, return_exceptions=True)


async def short_folder(stack: contextlib.AsyncExitStack) -> Path:
    """A private folder with a short path for sockets. The folders of killed processes are removed first."""
    await asyncio.to_thread(socket_folders.sweep)
    return stack.enter_context(await socket_folders.hold_new()).folder
