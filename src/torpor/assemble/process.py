"""How do the parts of one process run side by side, and end in their order?"""

import asyncio
import contextlib
import fcntl
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import structlog
import uvicorn

from torpor import socket_folders
from torpor.domain.errors import Hopeless, Refused, TorporError
from torpor.loops import stop
from torpor.proxy.server import ProxyServer
from torpor.store.database import Database, Role

log = structlog.get_logger()


def run(start: Callable[[contextlib.AsyncExitStack], Awaitable[str]], *, alone_in: Path | None = None) -> int:
    """Start everything, say that it is ready, and go on until Ctrl-C or TERM; the exit code.

    `start` gives back what is said when it is ready. `alone_in`: nobody else may run on this data directory.
    """
    raise_file_limit()
    try:
        with (
            only_one(alone_in) if alone_in is not None else contextlib.nullcontext(),
            asyncio.Runner(loop_factory=event_loop_factory()) as runner,
        ):
            runner.run(_until_stopped(start))
    except TorporError as error:
        print(f"torpor: {error.message}", file=sys.stderr)
        return 1
    return 0


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop carries twice the requests; there is none for some platforms, and then asyncio's own does it all as well."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _until_stopped(start: Callable[[contextlib.AsyncExitStack], Awaitable[str]]) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    living = asyncio.ensure_future(_run_parts(start, stop, ready))

    def heard() -> None:
        # The first time it stops in its order; the second time, or before it is ready, at once.
        if stop.is_set() or not ready.is_set():
            living.cancel()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heard)
    with contextlib.suppress(asyncio.CancelledError):
        await living


async def _run_parts(
    start: Callable[[contextlib.AsyncExitStack], Awaitable[str]], stop: asyncio.Event, ready: asyncio.Event
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        said = await start(stack)
        ready.set()
        print(said, flush=True)
        await stop.wait()
        print("torpor is stopping", flush=True)


def raise_file_limit() -> None:
    """Every connection and every workspace costs descriptors; the soft limit is there for programs that use select."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def only_one(data: Path) -> Iterator[None]:
    """One `up` for one data directory; the lock is the kernel's, so that a kill -9 leaves none behind."""
    try:
        # Where bubblewrap is missing a workspace's own user must find the way to its home; what lies beside it is closed.
        data.mkdir(mode=0o711 if os.getuid() == 0 else 0o700, parents=True, exist_ok=True)
        held = (data / "torpor.pid").open("a+", encoding="utf-8")
    except OSError as error:
        raise Refused("bad_data", f"the data directory {data} cannot be used: {error.strerror}") from error
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.seek(0)
            raise Refused(
                "already_up",
                f"torpor is already running on {data} (process {held.read().strip() or 'unknown'}); "
                "stop it first, or choose another --data",
            ) from None
        held.truncate(0)
        held.write(f"{os.getpid()}\n")
        held.flush()
        yield
        held.truncate(0)


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


async def _watched(work: Any, name: str) -> None:
    """A part that goes on for ever has ended: without it the rest is not what it says it is, so all of it stops."""
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
        os.kill(os.getpid(), signal.SIGTERM)


class _Server(uvicorn.Server):
    """Signals are ours: the whole product stops, in its order, not this part of it."""

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
        # Who has stopped reading for a while (a shell in a pager) answers no ping, and is not gone for that.
        ws_ping_timeout=None,
        ws_per_message_deflate=False,
        # A client sends small pieces; one large message would be held in memory as a whole.
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
    """A private folder whose sockets have short names; those of processes that were killed are removed first."""
    await asyncio.to_thread(socket_folders.sweep)
    return stack.enter_context(await socket_folders.hold_new()).folder
