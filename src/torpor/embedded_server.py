"""Run a private server, such as PostgreSQL or Valkey, that ends together with this process.

The server keeps everything in one folder and listens only on a Unix socket there: no TCP port can collide, and no other user
of the machine can connect. A lock in the folder makes sure that one process supervises it.
"""

import abc
import asyncio
import contextlib
import hashlib
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from torpor import child_launcher, socket_folders
from torpor.domain.errors import Hopeless, Unavailable
from torpor.file_lock import PidLock

SOCKET_NAME_LIMIT_BYTES = 107  # sun_path, without its closing zero
LAST_LINES = 20
LOCK_TIMEOUT_S = 5.0
LOOK_AGAIN_S = 0.02


class ServerStartError(Exception):
    """The server ended before it was ready."""

    def __init__(self, server: str, code: int, output: str) -> None:
        super().__init__(f"{server} ended at once with code {code}; its last lines:\n{output}")
        self.code = code


def package_folders(package: str) -> list[Path]:
    """Where an installed package lies. Finding a package does not import it: its own code never runs."""
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in (spec and spec.submodule_search_locations) or ()]


def socket_folder(data_dir: Path, socket_name: str, prefix: str) -> Path:
    """`socket` in data_dir, or, if that path is too long for a socket, a folder with a short path; always the same one."""
    inside = data_dir / "socket"
    if len(os.fsencode(inside / socket_name)) <= SOCKET_NAME_LIMIT_BYTES:
        return inside
    return socket_folders.root() / f"{prefix}{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:20]}"


def is_running(pid: str) -> bool:
    return bool(pid) and Path("/proc", pid).exists()


def kill(pids: Collection[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class EmbeddedServer(abc.ABC):
    """One private server. Start it from a thread that lives on: the server ends with the thread that started it."""

    name: ClassVar[str]
    programs: ClassVar[frozenset[str]]
    """The file names of its executables."""
    stop_signals: ClassVar[Sequence[tuple[signal.Signals, float]]]
    """Sent in this order, with the seconds to wait after each; SIGKILL follows."""

    def __init__(self, data_dir: Path, work_dir: str) -> None:
        """`work_dir`: the folder in data_dir that is the working directory of every process of the server."""
        self.data_dir = Path(os.path.realpath(data_dir))
        self.work_dir = self.data_dir / work_dir
        self._lock: PidLock | None = None
        self._held_folder: socket_folders.SocketFolder | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    @classmethod
    def processes_in(cls, work_dir: Path) -> list[int]:
        """Every process of the server that runs in this working directory."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if (entry / "cwd").readlink() == work_dir and (entry / "exe").readlink().name in cls.programs:
                        found.append(int(entry.name))
        return found

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """Where clients connect."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> str:
        """Run the server and return its URL once it accepts connections. A running server is not started again."""
        if self._process is None:
            try:
                await self._lock_folder()
                await self._start()
            except BaseException:
                await self.stop()
                raise
        return self.url

    async def stop(self) -> None:
        """Stop the server with all its processes. May be called again."""
        try:
            if self._process:
                await self._end(self._process)
        finally:
            self._process = None
            if self._held_folder is not None:
                self._held_folder.release()
                self._held_folder = None
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    async def wait(self) -> int:
        """Return the exit code when the server ends, stopped or not."""
        assert self._process, "not started"
        return await self._process.wait()

    # ── what each server does ─────────────────────────────────────────────────────────────────────────────────────────

    @abc.abstractmethod
    async def _start(self) -> None:
        """Prepare the folder, which is locked, launch the server and wait until it is ready."""

    @abc.abstractmethod
    async def _answers(self) -> bool:
        """Whether it is ready; Hopeless when it never will be."""

    @abc.abstractmethod
    async def _last_output(self) -> str:
        """The last lines that it wrote."""

    def _check_folder(self) -> None:  # noqa: B027 - most servers have nothing to check
        """Hopeless when data_dir holds something else."""

    # ── the steps they share ──────────────────────────────────────────────────────────────────────────────────────────

    async def _lock_folder(self) -> None:
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._check_folder()
            lock = self._lock = PidLock(self.data_dir / "lock")
        except OSError as error:
            raise Hopeless(f"{self.name} cannot use the folder {self.data_dir}: {error.strerror}") from error
        until = time.monotonic() + LOCK_TIMEOUT_S
        while not lock.take():
            # The holder may be dead: a child that it was starting when it was killed keeps the lock for a moment.
            if is_running(lock.holder) or time.monotonic() > until:
                raise Hopeless(
                    f"{self.data_dir} is already in use by the process {lock.holder or 'unknown'}; stop that one first"
                )
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _end_predecessor(self, steps: Sequence[tuple[signal.Signals | None, float]]) -> None:
        """After kill -9 of an earlier Torpor its server may still be shutting down, or may not have noticed.

        `steps`: the signals to send in turn, with the seconds to wait after each; None waits only.
        """
        for number, timeout_s in steps:
            left = self.processes_in(self.work_dir)
            if number:
                kill(left, number)
            until = time.monotonic() + timeout_s
            while left and time.monotonic() < until:
                await asyncio.sleep(LOOK_AGAIN_S)
                left = self.processes_in(self.work_dir)
            if not left:
                return
        raise Unavailable(
            f"an earlier {self.name} in {self.work_dir} is still running: processes {left}. End them, then start again"
        )

    async def _ensure_socket_folder(self, folder: Path, owners: frozenset[int] | None = None) -> None:
        if folder.parent == self.data_dir:
            socket_folders.make_private(folder, owners)
        else:
            self._held_folder = await socket_folders.hold(folder, owners)

    async def _launch(
        self,
        program: Path,
        *arguments: str,
        mode: str,
        death_signal: signal.Signals,
        directory: Path,
        environ: Mapping[str, str],
        output: int = asyncio.subprocess.PIPE,
    ) -> asyncio.subprocess.Process:
        """Start a program that gets `death_signal` when this process ends; `mode` is one of `child_launcher`."""
        launcher = (sys.executable, "-I", "-S", child_launcher.__file__)
        return await asyncio.create_subprocess_exec(
            *(*launcher, mode, death_signal.name, str(os.getpid()), str(directory), str(program), *arguments),
            env={**environ, "LC_ALL": "C", "TZ": "UTC"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal is for Torpor, which then stops the server in its order
        )

    async def _wait_until_ready(self, timeout_s: float) -> None:
        """ServerStartError when the server ends instead."""
        assert self._process
        until = time.monotonic() + timeout_s
        while not await self._answers():
            if self._process.returncode is not None:
                raise ServerStartError(self.name, self._process.returncode, await self._last_output())
            if time.monotonic() > until:
                raise Unavailable(f"{self.name} was not ready within {timeout_s:.0f} s:\n{await self._last_output()}")
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        for number, timeout_s in self.stop_signals:
            if process.returncode is None:
                process.send_signal(number)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await process.wait()
        if process.returncode is None:
            kill({process.pid, *self.processes_in(self.work_dir)}, signal.SIGKILL)
            await process.wait()
