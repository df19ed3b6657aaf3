"""Use the fake engine from another process: implementations of the ports that call it through a socket."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torpor.domain.busy import Work
from torpor.domain.disk import Disk
from torpor.domain.errors import TorporError, Unavailable
from torpor.domain.records import ArchiveKey, FileCount, Marker, ProvenArchive, ProvenPack, Survey
from torpor.domain.usage import Usage
from torpor.loops import Loop, keep_cancellation, start_tasks, stop
from torpor.ports import (
    Address,
    Container,
    ExecResult,
    Fence,
    Home,
    HomeJob,
    JobProgress,
    ListedArchive,
    ListedPack,
    Progress,
    RootFacts,
    RunningCommand,
    Shell,
    TerminalSize,
    WorkspaceFilter,
    any_workspace,
)
from torpor.runtimes.framed_command import FramedCommand, FramedShell
from torpor.testing.fake_engine.programs import AGENT, PROGRAM, preamble, programs_path
from torpor.testing.fake_engine.protocol import (
    MAKES,
    Words,
    address_of,
    bytes_of,
    container_words,
    fence_words,
    frame,
    home_words,
    job_words,
    listed_of,
    marker_words,
    next_frame,
    proven_of,
    survey_of,
    text_of,
)
from torpor.testing.fake_runtime import FakeArchives, FakeWorld

LOOK_S = 10.0
"""How long a query may take before the engine counts as unavailable. Effects have no timeout."""
CANCELLED_S = 5.0
"""How long a cancelled call waits until the engine confirms the cancellation."""
AGAIN_S = 0.05


@dataclass(slots=True)
class EngineConnection:
    """One connection, and the calls that wait for an answer."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    waiting: dict[int, tuple[asyncio.Future[Any], Callable[..., None]]] = field(default_factory=dict)
    listening: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        why = "it closed the connection"
        try:
            while True:
                number, what, *said = await next_frame(self.reader)
                answer, progress = self.waiting.get(number, (None, None))
                if answer is None or progress is None or answer.done():
                    continue
                if what == "progress":
                    done, total, *files = said
                    progress(done, total, *(FileCount(*count) for count in files))
                elif what == "done":
                    answer.set_result(said[0])
                else:
                    kind, code, message, context = said
                    answer.set_exception(MAKES[kind](code, message, context))
        except EOFError:
            pass
        except (OSError, ValueError) as error:
            why = str(error)
        finally:
            self.writer.close()
            for answer, _ in self.waiting.values():
                if not answer.done():
                    answer.set_exception(Unavailable(f"the fake engine is unavailable: {why}"))


class EngineClient:
    """One connection for all calls, opened when needed and reopened when lost."""

    def __init__(self, path: Path, look_s: float = LOOK_S) -> None:
        self._path = path
        self._look_s = look_s
        self._numbers = itertools.count(1)
        self._link: EngineConnection | None = None
        self._dialling = asyncio.Lock()

    async def look(self, verb: str, *said: object) -> Any:
        """Like `ask`, but raise Unavailable if there is no answer in time."""
        try:
            async with asyncio.timeout(self._look_s):
                return await self.ask(verb, *said, cancelled_s=0.0)
        except TimeoutError as error:
            raise Unavailable(f"the fake engine at {self._path} has not answered for {self._look_s} s") from error

    async def ask(
        self, verb: str, *said: object, progress: Callable[..., None] = lambda *_: None, cancelled_s: float = CANCELLED_S
    ) -> Any:
        """Return or raise what the engine returns or raises; Unavailable if there is no engine."""
        link, number = await self._connected(), next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        link.waiting[number] = answer, progress
        try:
            link.writer.write(frame([number, verb, *said]))
            await link.writer.drain()
            return await asyncio.shield(answer)
        except OSError as error:
            raise Unavailable(f"the fake engine is unavailable: {error}") from error
        except asyncio.CancelledError:
            # The caller may start another operation next, so the engine must have ended this one first.
            self._take_back(link, number)
            await asyncio.wait([answer], timeout=cancelled_s)
            raise
        finally:
            del link.waiting[number]
            if answer.done():
                answer.exception()  # retrieved, since the caller may no longer wait for it

    def _take_back(self, link: EngineConnection, number: int) -> None:
        if not link.writer.is_closing():
            link.writer.write(frame([number, "cancel"]))

    async def _connected(self) -> EngineConnection:
        async with self._dialling:
            if self._link is None or self._link.writer.is_closing():
                try:
                    reader, writer = await asyncio.open_unix_connection(self._path)
                except OSError as error:
                    raise Unavailable(f"no fake engine answers at {self._path}: {error}") from error
                self._link = EngineConnection(reader, writer)
                self._link.listening = asyncio.create_task(self._link.listen(), name="fake engine")
            return self._link

    async def close(self) -> None:
        if self._link is not None and self._link.listening is not None:
            self._link.listening.cancel()
            await asyncio.gather(self._link.listening, return_exceptions=True)
        self._link = None


class RemoteFakeRuntime:
    """The runtime of a process that uses the engine; implements `torpor.ports.Runtime`."""

    name = "fake"

    def __init__(self, path: Path, *, look_s: float = LOOK_S) -> None:
        self._line = EngineClient(path, look_s)
        self._programs = str(programs_path(path))
        self._running: frozenset[str] = frozenset()
        self._elsewhere: Address | None = None
        self._known: Words | None = None
        self._heard = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Follow which containers run, for `address`. The engine may start later."""
        if self._following is None:
            [self._following] = start_tasks(Loop("fake-engine", self._follow, interval_s=AGAIN_S).run())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._heard.wait()

    async def close(self) -> None:
        if self._following is not None:
            await stop(self._following)
            self._following = None
        await self._line.close()

    async def _follow(self) -> float:
        """Update the set of running containers. Return the pause until the next call."""
        pause_s = 0.0
        try:
            with keep_cancellation():
                self._known, running = await self._line.ask("follow", self._known)
        except TorporError:
            self._known, running, pause_s = None, [], AGAIN_S
        self._running = frozenset(running)
        self._elsewhere = address_of(self._known[2]) if self._known else None
        self._heard.set()
        return pause_s

    async def world(self) -> str:
        return str(await self._line.look("world"))

    async def observe(self, only: frozenset[str] | None = None) -> Survey:
        return survey_of(await self._line.look("observe", None if only is None else list(only)))

    async def ensure_volume(self, home: Home, fence: Fence) -> None:
        await self._line.ask("ensure_volume", home_words(home), fence_words(fence))

    async def mark_volume(self, home: Home, marker: Marker, fence: Fence) -> None:
        await self._line.ask("mark_volume", home_words(home), marker_words(marker), fence_words(fence))

    async def run_at_home(self, home: Home, job: HomeJob, fence: Fence, progress: JobProgress) -> Mapping[str, object]:
        said = home_words(home), job_words(job), fence_words(fence)
        result: Mapping[str, object] = await self._line.ask("run_at_home", *said, progress=progress)
        return result

    async def ensure_no_volume(self, home: Home, fence: Fence, *, archived_revision: int | None) -> None:
        await self._line.ask("ensure_no_volume", home_words(home), fence_words(fence), archived_revision)

    async def ensure_no_half_made(self, home: Home, fence: Fence) -> None:
        await self._line.ask("ensure_no_half_made", home_words(home), fence_words(fence))

    async def ensure_running(self, container: Container, fence: Fence, progress: Progress) -> None:
        await self._line.ask("ensure_running", container_words(container), fence_words(fence), progress=progress)

    async def ensure_no_container(self, workspace_id: str, fence: Fence) -> None:
        await self._line.ask("ensure_no_container", workspace_id, fence_words(fence))

    async def admit(self, workspace_id: str, fence: Fence) -> None:
        await self._line.ask("admit", workspace_id, fence_words(fence))

    async def execute(self, workspace_id: str, command: Sequence[str], stdin: bytes) -> ExecResult:
        exit_code, stdout, stderr = await self._line.ask("execute", workspace_id, list(command), text_of(stdin))
        return ExecResult(exit_code, bytes_of(stdout), bytes_of(stderr))

    async def logs(self, workspace_id: str, *, tail: int) -> AsyncIterator[bytes]:
        for line in await self._line.look("logs", workspace_id, tail):
            yield bytes_of(line)

    async def append_log(self, workspace_id: str, lines: bytes) -> None:
        await self._line.look("append_log", workspace_id, text_of(lines))

    def address(self, workspace_id: str, port: int | None = None) -> Address | None:
        """From the last update (see `start`): the engine's own address, unless a test set another."""
        if workspace_id not in self._running:
            return None
        return self._elsewhere or Address(unix_path=self._programs, preamble=preamble(workspace_id, port or PROGRAM))

    async def shell(self, workspace_id: str, *, columns: int, rows: int) -> Shell:
        return FramedShell(*await self._connect(workspace_id), columns=columns, rows=rows)

    async def start_command(
        self, workspace_id: str, command: Sequence[str], *, terminal: TerminalSize | None = None
    ) -> RunningCommand:
        return FramedCommand(*await self._connect(workspace_id), command, terminal=terminal)

    async def _connect(self, workspace_id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        await self._line.look("require_running", workspace_id)
        try:
            reader, writer = await asyncio.open_unix_connection(self._programs)
        except OSError as error:
            raise Unavailable(f"no fake engine answers at {self._programs}: {error}") from error
        writer.write(preamble(workspace_id, AGENT))
        return reader, writer

    async def work(self, concerns: WorkspaceFilter = any_workspace) -> Mapping[str, Work]:
        found = await self._line.look("work")
        return {name: Work(template, cpu_s) for name, template, cpu_s in found if concerns(name)}

    async def usage(self, concerns: WorkspaceFilter = any_workspace) -> Mapping[str, Usage]:
        found = await self._line.look("usage")
        return {name: Usage(cpu_s, memory_bytes) for name, cpu_s, memory_bytes in found if concerns(name)}

    async def disk(self) -> Disk | None:
        said = await self._line.look("disk")
        return Disk(*said) if said is not None else None

    async def home_bytes(self, home: Home) -> int | None:
        size_bytes: int | None = await self._line.look("home_bytes", home_words(home))
        return size_bytes

    async def stop_all(self) -> None:
        """No effect: the engine keeps its containers."""


class RemoteFakeArchives:
    """The engine's archives; implements `torpor.ports.Archives`."""

    def __init__(self, path: Path, *, look_s: float = LOOK_S) -> None:
        self._line = EngineClient(path, look_s)
        jobs = FakeArchives(FakeWorld())  # a job is only a request, so it can be created here
        self.pack_job, self.unpack_job, self.proven = jobs.pack_job, jobs.unpack_job, jobs.proven

    async def close(self) -> None:
        await self._line.close()

    async def world(self) -> str:
        return str(await self._line.look("archives_world"))

    async def create_empty(self, key: ArchiveKey, home: Home, revision: int, *, format: int = 1) -> ProvenArchive:  # noqa: A002
        return proven_of(await self._line.ask("create_empty", str(key), home_words(home), revision, format))

    async def copy(self, source: ArchiveKey, target: ArchiveKey, progress: Progress) -> ProvenArchive:
        return proven_of(await self._line.ask("copy", str(source), str(target), progress=progress))

    async def manifest_root(self, key: ArchiveKey) -> str:
        return str(await self._line.look("manifest_root", str(key)))

    async def reachable(self) -> bool:
        try:
            return bool(await self._line.look("reachable"))
        except Unavailable:
            return False

    async def listing(self) -> AsyncIterator[ListedArchive | ListedPack]:
        for words in await self._line.look("listing"):
            yield listed_of(words)

    async def remove(self, key: ArchiveKey) -> None:
        await self._line.ask("remove", str(key))

    async def remove_pack(self, workspace_id: str, name: str) -> None:
        await self._line.ask("remove_pack", workspace_id, name)

    async def pack_size(self, workspace_id: str, name: str) -> int | None:
        size_bytes: int | None = await self._line.look("pack_size", workspace_id, name)
        return size_bytes

    async def root_packs(self, key: ArchiveKey) -> RootFacts:
        return RootFacts(*await self._line.look("root_packs", str(key)))

    async def prove_pack(self, workspace_id: str, name: str, size_bytes: int) -> ProvenPack:
        return ProvenPack(*await self._line.look("prove_pack", workspace_id, name, size_bytes))
