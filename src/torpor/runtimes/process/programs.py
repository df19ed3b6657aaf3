"""How does what a template needs (JupyterLab, say) come onto this machine, once for all its workspaces?

Into `{data}/programs/{template}-{hash of the requirements}`, a virtual environment made aside and renamed when it is whole.
Scripts in it find their interpreter beside themselves, so it may be mounted anywhere.
"""

import asyncio
import contextlib
import importlib.util
import os
import re
import sys
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from torpor import atomic_file
from torpor.domain.errors import Code, Failed
from torpor.loops import stop
from torpor.ports import Program, Progress
from torpor.runtimes.process import sandbox
from torpor.runtimes.process.directory_tree import remove_tree
from torpor.runtimes.process.host_programs import find
from torpor.runtimes.process.launch import parent_death_argv
from torpor.runtimes.process.paths import short
from torpor.runtimes.process.processes import MARK

# Whatever says how to reach a package index, and nothing else of ours: installing may run a package's own code.
PASSED_ON = re.compile(r"PATH|HOME|LANG|LC_\w+|TMPDIR|SSL_CERT_\w+|\w+_proxy|\w+_PROXY|PIP_\w+|UV_\w+")
TOTAL = re.compile(r"(?:Resolved|Prepared) (\d+) packages?|Installing collected packages: (.+)")
LAST_LINES = 20
SILENT_S = 600.0
"""An installer that neither says nor writes anything for so long hangs; a large download on a thin line does write."""

# How installers begin a script whose interpreter's path is too long for the kernel's first line, or has a space in it.
LONG_PATH = b"#!/bin/sh\n'''exec' "
RELOCATABLE = """#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python' "$0" "$@"
' '''
"""


# Whatever our umask is: workspaces read what is installed. By a shell, because not every event loop can set it.
READABLE = ("/bin/sh", "-c", 'umask 022 && exec "$@"', "sh")


class Programs:
    def __init__(self, directory: Path, mark: str) -> None:
        self._directory = directory
        self._mark = mark
        self._under_way: dict[Path, tuple[asyncio.Task[None], list[Progress]]] = {}

    def place(self, program: Program) -> Path | None:
        if not program.packages:
            return None
        name = re.sub(r"[^a-z0-9-]", "-", program.template.lower())
        return self._directory / f"{name}-{short(chr(10).join((*program.packages, sys.version)), 12)}"

    async def ensure(self, program: Program, progress: Progress) -> Path | None:
        """Whole on return. Whoever comes while it is being made waits for the same one."""
        place = self.place(program)
        if place is None or await asyncio.to_thread(place.is_dir):
            return place
        if place not in self._under_way:
            listeners: list[Progress] = []
            task = asyncio.ensure_future(self._install(place, program, listeners))
            self._under_way[place] = (task, listeners)
            task.add_done_callback(lambda _: self._under_way.pop(place, None))
        task, listeners = self._under_way[place]
        listeners.append(progress)
        try:
            await asyncio.shield(task)
        finally:
            listeners.remove(progress)
        return place

    async def close(self) -> None:
        await stop(*(task for task, _ in self._under_way.values()))

    def sweep(self) -> None:
        """What an earlier life did not finish."""
        with contextlib.suppress(FileNotFoundError):
            for path in self._directory.iterdir():
                if path.name.startswith("."):
                    remove_tree(path)

    async def _install(self, place: Path, program: Program, listeners: list[Progress]) -> None:
        aside = self._directory / f".{place.name}.{uuid.uuid4().hex[:8]}"
        environment = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
        environment |= {"UV_CACHE_DIR": str(self._directory / f"{aside.name}.cache"), "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
        environment |= {MARK: self._mark, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}
        python = str(sandbox.interpreter())
        uv = find_uv()
        make = [uv, "venv", "--no-project", "--python", python, str(aside)] if uv else [python, "-m", "venv", str(aside)]
        inner = str(aside / "bin" / "python")
        fill = [uv, "pip", "install", "--python", inner] if uv else [inner, "-m", "pip", "install"]
        try:
            await asyncio.to_thread(self._directory.mkdir, mode=0o755, exist_ok=True)
            await asyncio.to_thread(self._directory.chmod, 0o755)  # whatever our umask is: workspaces read in it
            await self._call(make, environment, listeners, aside)
            await self._call([*fill, *program.packages], environment, listeners, aside)
            await asyncio.to_thread(make_relocatable, aside)
            # What is there under its name counts as whole, so its contents come to the disk before the name does.
            await asyncio.to_thread(atomic_file.sync_file_system, aside)
            await asyncio.to_thread(aside.rename, place)
            await asyncio.to_thread(atomic_file.sync_directory, self._directory)
        except OSError as error:
            raise Failed(Code.PROGRAM_INSTALL_FAILED, f"cannot install {program.template}: {error}") from error
        finally:
            await asyncio.to_thread(remove_tree, aside)
            await asyncio.to_thread(remove_tree, Path(environment["UV_CACHE_DIR"]))

    async def _call(self, argv: list[str], environment: dict[str, str], listeners: list[Progress], aside: Path) -> None:
        process = await asyncio.create_subprocess_exec(
            *parent_death_argv([*READABLE, *argv]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            cwd="/",
            start_new_session=True,
            limit=1 << 20,
        )
        assert process.stdout is not None
        lines: deque[str] = deque(maxlen=LAST_LINES)
        total: int | None = None
        downloaded = 0
        try:
            while said := await self._patiently(process.stdout.readline, Path(environment["UV_CACHE_DIR"]), aside):
                line = said.decode(errors="replace").rstrip()
                lines.append(line)
                if found := TOTAL.search(line):
                    total = int(found[1]) if found[1] else found[2].count(",") + 1
                downloaded += "Downloaded " in line or line.startswith("Collecting ")
                installed = await asyncio.to_thread(lambda: sum(1 for _ in aside.glob("lib/python*/site-packages/*.dist-info")))
                for listener in list(listeners):
                    listener(min(max(downloaded, installed), total) if total else downloaded, total)
            code = await asyncio.wait_for(process.wait(), SILENT_S)
        except TimeoutError as error:
            last = "\n".join(lines)
            message = f"{Path(argv[0]).name} did nothing for {SILENT_S:g} s and was ended:\n{last}"
            raise Failed(Code.PROGRAM_INSTALL_FAILED, message) from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                await process.wait()
        if code != 0:
            last = "\n".join(lines)
            raise Failed(Code.PROGRAM_INSTALL_FAILED, f"{Path(argv[0]).name} ended with exit code {code}:\n{last}")

    async def _patiently(self, read: Callable[[], Awaitable[bytes]], *written: Path) -> bytes:
        """What it says next; TimeoutError when it neither says anything nor fills its directories."""
        reading = asyncio.ensure_future(read())
        try:
            before: int | None = None
            while not (await asyncio.wait([reading], timeout=SILENT_S / 2))[0]:
                now = await asyncio.to_thread(size_of, written)
                if now == before:
                    raise TimeoutError
                before = now
            return await reading
        finally:
            reading.cancel()


def size_of(directories: Iterable[Path]) -> int:
    found = 0
    for directory in directories:
        for path, _, files in os.walk(directory):
            for name in files:
                with contextlib.suppress(OSError):
                    found += os.lstat(os.path.join(path, name)).st_size  # noqa: PTH118 - there are many
    return found


def find_uv() -> str | None:
    """Torpor's own, then the machine's."""
    if importlib.util.find_spec("uv") is not None:
        import uv

        with contextlib.suppress(FileNotFoundError):
            return str(uv.find_uv_bin())
    return find("uv")


def make_relocatable(environment: Path) -> None:
    """Scripts name the interpreter by the path at which they were made; ours is mounted elsewhere."""
    made_for = f"{environment}/bin/python".encode()
    for script in (environment / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        if content.startswith(b"#!" + made_for):
            script.write_bytes(RELOCATABLE.encode() + content.partition(b"\n")[2])
        elif content.startswith(LONG_PATH) and made_for in content.split(b"\n", 2)[1]:
            script.write_bytes(RELOCATABLE.encode() + content.split(b"\n", 3)[3])
