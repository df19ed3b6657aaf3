"""Install the packages of a template (for example JupyterLab), also those of npm, once for all its workspaces.

Each installation is a virtual environment in `{data}/programs/{template}-{hash of the requirements}`, created under a temporary
name and renamed when it is complete. Its scripts find the interpreter beside them, so it can be mounted anywhere.
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
from torpor.runtimes.host_programs import find
from torpor.runtimes.process import npm_packages, sandbox
from torpor.runtimes.process.directory_tree import remove_tree
from torpor.runtimes.process.launch import parent_death_argv
from torpor.runtimes.process.paths import short
from torpor.runtimes.process.processes import MARK

# Only variables that say how to reach a package index: an installation may run code of a package.
PASSED_ON = re.compile(
    r"PATH|HOME|LANG|LC_\w+|TMPDIR|SSL_CERT_\w+|\w+_proxy|\w+_PROXY|PIP_\w+|UV_\w+"
    r"|(?i:npm_config_\w+)|NODE_EXTRA_CA_CERTS|NODE_USE_SYSTEM_CA"
)
TOTAL = re.compile(r"(?:Resolved|Prepared) (\d+) packages?|Installing collected packages: (.+)")
LAST_LINES = 20
SILENT_S = 600.0
"""An installer without output and without written files for so long hangs. A slow download does write files."""

# The start of a script whose interpreter has a path with a space, or one too long for the kernel's first line.
LONG_PATH = b"#!/bin/sh\n'''exec' "
RELOCATABLE = """#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python' "$0" "$@"
' '''
"""


# For any umask: workspaces read the installed files. A shell sets it, because not every event loop can.
READABLE = ("/bin/sh", "-c", 'umask 022 && exec "$@"', "sh")


class Programs:
    def __init__(self, directory: Path, mark: str) -> None:
        self._directory = directory
        self._mark = mark
        self._installing: dict[Path, tuple[asyncio.Task[None], list[Progress]]] = {}

    def target(self, program: Program) -> Path | None:
        if not program.packages:
            return None
        name = re.sub(r"[^a-z0-9-]", "-", program.template.lower())
        return self._directory / f"{name}-{short(chr(10).join((*program.packages, *program.npm, sys.version)), 12)}"

    async def ensure(self, program: Program, progress: Progress) -> Path | None:
        """Return the complete installation. Concurrent calls wait for the same one."""
        target = self.target(program)
        if target is None or await asyncio.to_thread(target.is_dir):
            return target
        if target not in self._installing:
            listeners: list[Progress] = []
            task = asyncio.ensure_future(self._install(target, program, listeners))
            self._installing[target] = (task, listeners)
            task.add_done_callback(lambda _: self._installing.pop(target, None))
        task, listeners = self._installing[target]
        listeners.append(progress)
        try:
            await asyncio.shield(task)
        finally:
            listeners.remove(progress)
        return target

    async def close(self) -> None:
        await stop(*(task for task, _ in self._installing.values()))

    def sweep(self) -> None:
        """Remove installations that an earlier run did not finish."""
        with contextlib.suppress(FileNotFoundError):
            for path in self._directory.iterdir():
                if path.name.startswith("."):
                    remove_tree(path)

    async def _install(self, target: Path, program: Program, listeners: list[Progress]) -> None:
        aside = self._directory / f".{target.name}.{uuid.uuid4().hex[:8]}"
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
            await asyncio.to_thread(self._directory.chmod, 0o755)  # for any umask: workspaces read in it
            await self._call(make, environment, listeners, aside)
            installed = await self._call([*fill, *program.packages], environment, listeners, aside)
            if program.npm:
                await self._install_npm(program.npm, environment, listeners, aside, installed)
            await asyncio.to_thread(make_relocatable, aside)
            # A directory with the final name counts as complete, so its content must be on disk before the rename.
            await asyncio.to_thread(atomic_file.sync_file_system, aside)
            await asyncio.to_thread(aside.rename, target)
            await asyncio.to_thread(atomic_file.sync_directory, self._directory)
        except OSError as error:
            raise Failed(Code.PROGRAM_INSTALL_FAILED, f"cannot install {program.template}: {error}") from error
        finally:
            await asyncio.to_thread(remove_tree, aside)
            await asyncio.to_thread(remove_tree, Path(environment["UV_CACHE_DIR"]))

    async def _install_npm(
        self, packages: tuple[str, ...], environment: dict[str, str], listeners: list[Progress], aside: Path, installed: int
    ) -> None:
        await asyncio.to_thread(npm_packages.link_node, aside)
        environment = npm_packages.npm_environment(environment, aside, Path(environment["UV_CACHE_DIR"]) / "npm")
        argv = npm_packages.install_argv(aside, packages)
        installed = await self._call(argv, environment, listeners, aside, before=installed)
        for folder, script in await asyncio.to_thread(npm_packages.script_calls, aside):
            installed = await self._call(script, environment, listeners, aside, before=installed, folder=folder)
        await asyncio.to_thread(npm_packages.use_own_node, aside)

    async def _call(
        self,
        argv: list[str],
        environment: dict[str, str],
        listeners: list[Progress],
        aside: Path,
        *,
        before: int = 0,
        folder: Path = Path("/"),
    ) -> int:
        """Run one command of the installation, and return how many packages are installed after it."""
        process = await asyncio.create_subprocess_exec(
            *parent_death_argv([*READABLE, *argv]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
            limit=1 << 20,
        )
        assert process.stdout is not None
        lines: deque[str] = deque(maxlen=LAST_LINES)
        total: int | None = None
        downloaded = installed = 0
        try:
            while said := await self._read_unless_idle(process.stdout.readline, Path(environment["UV_CACHE_DIR"]), aside):
                line = said.decode(errors="replace").rstrip()
                if not npm_packages.TRAFFIC.match(line):
                    lines.append(line)
                if found := TOTAL.search(line):
                    total = int(found[1]) if found[1] else found[2].count(",") + 1
                downloaded += "Downloaded " in line or line.startswith("Collecting ") or bool(npm_packages.FETCHED.search(line))
                installed = await asyncio.to_thread(lambda: sum(1 for _ in aside.glob("lib/python*/site-packages/*.dist-info")))
                for listener in list(listeners):
                    listener(min(max(downloaded, installed), total) if total else before + downloaded, total)
            code = await asyncio.wait_for(process.wait(), SILENT_S)
        except TimeoutError as error:
            last = "\n".join(lines)
            message = f"{Path(argv[0]).name} made no progress for {SILENT_S:g} s and was ended:\n{last}"
            raise Failed(Code.PROGRAM_INSTALL_FAILED, message) from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                await process.wait()
        if code != 0:
            last = "\n".join(lines)
            raise Failed(Code.PROGRAM_INSTALL_FAILED, f"{Path(argv[0]).name} ended with exit code {code}:\n{last}")
        return max(before + downloaded, installed)

    async def _read_unless_idle(self, read: Callable[[], Awaitable[bytes]], *written: Path) -> bytes:
        """The next line; TimeoutError if there is no output and the directories do not grow."""
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
    """The uv that is installed with Torpor, else the machine's."""
    if importlib.util.find_spec("uv") is not None:
        import uv

        with contextlib.suppress(FileNotFoundError):
            return str(uv.find_uv_bin())
    return find("uv")


def make_relocatable(environment: Path) -> None:
    """Replace the interpreter's path in scripts, since the environment is mounted at another path."""
    made_for = f"{environment}/bin/python".encode()
    for script in (environment / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        if content.startswith(b"#!" + made_for):
            script.write_bytes(RELOCATABLE.encode() + content.partition(b"\n")[2])
        elif content.startswith(LONG_PATH) and made_for in content.split(b"\n", 2)[1]:
            script.write_bytes(RELOCATABLE.encode() + content.split(b"\n", 3)[3])
