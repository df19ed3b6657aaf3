"""What do the loops ask of the world?

Verbs name the end state and may be repeated. Every effect carries who asks (`Fence`), and names the generation it means,
so that a late one hits nothing that lives. An implementation translates foreign errors where they enter:
`Unavailable` when the provider as a whole cannot be asked, `Failed` with a `Code` when this one thing did not work.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol, TypeAlias

from torpor.domain.busy import Work
from torpor.domain.disk import Disk
from torpor.domain.records import ArchiveKey, Marker, Survey

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with (done so far, all there is or None when unknown), in bytes unless the verb says otherwise."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Who asks: a provider that has seen a newer epoch for this workspace refuses with STALE_EPOCH."""

    op_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Home:
    """One volume: the home of a workspace in one generation."""

    workspace_id: str
    generation: int


# What a template's command and environment may refer to in braces: only the runtime knows where things are inside.
PLACEHOLDERS: Mapping[str, str] = {
    "python": "the Python interpreter that Torpor itself runs on, without Torpor's packages",
    "inside": "the folder torpor/inside, for what Torpor brings along (the terminal, for one)",
    "site": "Torpor's site-packages, for PYTHONPATH of what is in {inside} and needs one of them",
    "programs": "the virtual environment that holds the template's packages",
    "port": "the port to listen on, on 127.0.0.1; the same as in PORT",
    "socket": "a Unix socket to listen on instead of the port, in a folder that only the workspace may enter",
    "home": "the workspace's home; the same as in HOME",
}


CPU_WEIGHT = 100
"""Of a workspace, unless its template says otherwise."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a container runs: taken from a template, filled in with what the workspace asked for."""

    template: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    """PyPI requirements that must be installed (once per template, shared, read-only) before it can run."""
    is_verbatim: bool = False
    """The command is a person's own, to the letter: braces in it are theirs, not placeholders."""
    cpu_weight: int = CPU_WEIGHT
    """Where the CPU is busy, two containers get it in the proportion of their weights."""


@dataclass(frozen=True, slots=True)
class Limits:
    memory_bytes: int
    processes: int


@dataclass(frozen=True, slots=True)
class Container:
    """The container a workspace should have."""

    home: Home
    revision: int
    program: Program
    limits: Limits


@dataclass(frozen=True, slots=True)
class HomeJob:
    """A program that must run where a home's files are: beside the volume, with nothing else of Torpor in sight.

    `argv` is started with the home's directory as its last argument and `stdin` on its standard input. It writes one JSON
    object a line to standard output: {"progress": [done, total]} any number of times, then {"result": {...}} or
    {"error": {"code": ..., "message": ..., "context": {...}}}.
    """

    argv: tuple[str, ...]
    stdin: bytes
    writes: bool
    """Whether it fills the home (a restore) or only reads it."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    exit_code: int
    stdout: bytes
    stderr: bytes


class Stream(IntEnum):
    """An output of a command, by its descriptor."""

    STDOUT = 1
    """Or all of a terminal."""
    STDERR = 2


@dataclass(frozen=True, slots=True)
class Output:
    stream: Stream
    data: bytes


@dataclass(frozen=True, slots=True)
class TerminalSize:
    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class Address:
    """Where something in a running workspace can be reached from here: a Unix socket, or a host and port."""

    unix_path: str | None = None
    host: str | None = None
    port: int | None = None
    preamble: bytes = b""
    """Whoever connects sends this before anything else; nothing is answered to it."""


class Shell(Protocol):
    """Somebody's terminal. It ends with its shell, and its shell with it: closing hangs up."""

    async def read(self) -> bytes:
        """What the terminal shows next; nothing once the shell has ended and all it wrote was read."""
        ...

    async def write(self, data: bytes) -> None:
        """What was typed. Waits while the terminal does not take it."""
        ...

    async def resize(self, *, columns: int, rows: int) -> None: ...

    async def exit_code(self) -> int:
        """Waits for the end."""
        ...

    async def close(self) -> None:
        """Hangs up; may be said again."""
        ...


SIGNALS = frozenset({"HUP", "INT", "QUIT", "TERM", "KILL", "USR1", "USR2", "STOP", "CONT", "TSTP", "WINCH"})
"""What can be sent to a command, by its name without SIG."""


class RunningCommand(Protocol):
    """A command inside a container, with its streams. Nothing is buffered beyond a fixed window in either direction."""

    async def read(self) -> Output | None:
        """The next output; None once the command has ended and all of its output was read. The command waits for the reader."""
        ...

    async def write(self, data: bytes) -> None:
        """Standard input. Waits while the command does not read it; returns at once after the command has ended."""
        ...

    async def end_input(self) -> None:
        """The end of standard input. At a terminal, which has none, nothing."""
        ...

    async def send_signal(self, name: str) -> None:
        """One of SIGNALS, to the command and its process group. Never waits for input or output."""
        ...

    async def resize(self, *, columns: int, rows: int) -> None:
        """Of its terminal, if it has one."""
        ...

    async def exit_code(self) -> int:
        """Waits for the end; Refused `not_running` when the container ended first."""
        ...

    async def close(self) -> None:
        """Ends the command and everything in its process group, if it still runs; may be called again."""
        ...


class Runtime(Protocol):
    """Containers and volumes. One contract suite (`tests/contracts/`) holds for every implementation and for the fake."""

    name: str

    async def observe(self, only: frozenset[str] | None = None) -> Survey:
        """Everything that is there, in one look (or what belongs to these workspaces); Unavailable when it cannot be told."""
        ...

    async def ensure_volume(self, home: Home, fence: Fence) -> None:
        """There is a volume of this generation. A new one is empty and carries no marker."""
        ...

    async def mark_volume(self, home: Home, marker: Marker, fence: Fence) -> None:
        """The volume carries this marker: it is ready from now on. Written last, durable on return.

        A marker that is missing or cannot be read is replaced. VOLUME_NOT_READY where there is no home to mark, or where the
        marker there names another workspace.
        """
        ...

    async def run_at_home(self, home: Home, job: HomeJob, fence: Fence, progress: Progress) -> Mapping[str, object]:
        """Run the job at the home and give back its result. Cancelling ends the job's whole process tree before returning.

        VOLUME_NOT_READY refuses a job that writes to a volume that is or was whole, and one that reads a volume without its
        marker.
        """
        ...

    async def ensure_no_volume(self, home: Home, fence: Fence, *, archived_revision: int | None) -> None:
        """There is no volume of this generation. Gone in one instant: a half-deleted volume is never seen as ready.

        With `archived_revision`, refuses (VOLUME_REOPENED) when a container was started on it with a later revision, or one is
        present now: somebody has worked there since the archive was made. None is for what its owner gave up.
        """
        ...

    async def ensure_no_half_made(self, home: Home, fence: Fence) -> None:
        """There is no half-made volume of this generation, and its space is free on return.

        A volume stays that carries its marker, or that was whole once, also when only the home itself is left of it.
        """
        ...

    async def ensure_running(self, container: Container, fence: Fence, progress: Progress) -> None:
        """There is one container of this workspace, started on this home. Starts it anew when the one there has ended.

        Refuses (VOLUME_NOT_READY) a volume without the marker of its generation. Returns when started; ready is observed.
        Progress counts the installation of the program's packages where that is needed.
        """
        ...

    async def ensure_no_container(self, workspace_id: str, fence: Fence) -> None:
        """There is no container: asked to end, given its grace, then killed, the whole tree; its remains are removed."""
        ...

    async def admit(self, workspace_id: str, fence: Fence) -> None:
        """Whoever comes with an older epoch is refused from now on, though nothing else is asked for."""
        ...

    async def execute(self, workspace_id: str, command: Sequence[str], stdin: bytes) -> ExecResult:
        """Run a command inside the running container, as its user, in its home. Refused `not_running` when there is none."""
        ...

    async def start_command(
        self, workspace_id: str, command: Sequence[str], *, terminal: TerminalSize | None = None
    ) -> RunningCommand:
        """The same as a stream, without limits; at a terminal of its own if a size is given.

        A command that cannot be started ends with exit code 127. Refused `not_running` when there is no running container.
        """
        ...

    def logs(self, workspace_id: str, *, tail: int) -> AsyncIterator[bytes]:
        """The last lines that the program wrote (of the present container or the last one)."""
        ...

    async def append_log(self, workspace_id: str, lines: bytes) -> None:
        """Add whole lines to what `logs` shows; nothing where there is no container. Never fails because a disk is full."""
        ...

    async def world(self) -> str:
        """What this runtime sees, told apart from any other: controllers of different worlds must not share a database."""
        ...

    def address(self, workspace_id: str, port: int | None = None) -> Address | None:
        """Where the running program answers, or whoever listens on this port of its loopback; None when there is no container.

        No waiting, no I/O beyond a look: whether anybody listens on the port shows when it is connected to.
        """
        ...

    async def shell(self, workspace_id: str, *, columns: int, rows: int) -> "Shell":
        """A login shell on a terminal of its own, inside the running container, as its user, in its home.

        Refused `not_running` when there is none.
        """
        ...

    async def work(self) -> Mapping[str, Work]:
        """What the processes of each running container do, by workspace. A container that cannot be looked at is missing."""
        ...

    async def disk(self) -> Disk | None:
        """The filesystem that new homes are made on; None where there is not one for all. Unavailable as for `observe`."""
        ...

    async def home_bytes(self, home: Home) -> int | None:
        """What this home takes on its disk, hard links once; None when there is none. At low priority, for minutes at most.

        Unavailable when it cannot be told.
        """
        ...

    async def stop_all(self) -> None:
        """Torpor is going away. Engines that hold containers by themselves leave them; the others end them."""
        ...


@dataclass(frozen=True, slots=True)
class Proven:
    """An archive that was written, read back and compared."""

    key: ArchiveKey
    manifest_root: str
    size_bytes: int
    home_bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class ListedArchive:
    """What lies in the store under an archive's key."""

    key: ArchiveKey
    is_whole: bool
    """It has its manifest: what has none was never finished, or is half removed."""


class Archives(Protocol):
    """Where homes sleep. Jobs run where the home is; what they write is immutable and named by (workspace, op_id).

    A store has an identity. From the first look of this process on, every verb is Unavailable where that is gone or another: a
    disk that is not mounted is no empty store.
    """

    async def world(self) -> str:
        """The store's identity; the first who asks gives it one."""
        ...

    def pack_job(self, key: ArchiveKey, home: Home, revision: int) -> HomeJob:
        """Write the home under this key, read it back, compare. Repeating it finds the finished archive and proves it again."""
        ...

    def proven(self, key: ArchiveKey, result: Mapping[str, object]) -> Proven:
        """What a pack job's result says."""
        ...

    def unpack_job(self, key: ArchiveKey) -> HomeJob:
        """Fill an empty home from this key. ARCHIVE_NOT_FOUND, CHECKSUM_MISMATCH when it cannot be had as it was."""
        ...

    async def create_empty(self, key: ArchiveKey, home: Home, revision: int) -> Proven:
        """Write the archive of an empty home, read back like any other."""
        ...

    async def manifest_root(self, key: ArchiveKey) -> str:
        """The root of a finished archive's manifest; Failed ARCHIVE_NOT_FOUND when there is none."""
        ...

    async def reachable(self) -> bool:
        """Whether the store as a whole answers."""
        ...

    def keys(self) -> AsyncIterator[ListedArchive]:
        """All that lies in the store, whole or not, whether the database knows it or not; Unavailable when it cannot be listed
        to its end."""
        ...

    async def remove(self, key: ArchiveKey) -> None:
        """There is no archive of this key. The manifest goes first: what is half removed is no archive."""
        ...


# ── the bus ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Hints(Protocol):
    """Something changed: look at once. A hint that is lost costs time, nothing else."""

    def wake(self, *workspace_ids: str) -> None:
        """Returns at once and never fails; without ids: look at everything."""
        ...

    async def listen(self, on_hint: Callable[..., None]) -> None:
        """Until cancelled: call it with the ids of every hint, and without any after the connection had been lost."""
        ...


@dataclass(frozen=True, slots=True)
class Use:
    """How a workspace is used just now, as far as the bus remembers."""

    connections: int = 0
    """Live ones: each has a lease that has not run out."""
    idle_timer_s: float | None = None
    """Seconds left; None: it has run out."""
    busy: str = ""
    """What its processes are busy with, in words for people; empty: with nothing."""


@dataclass(frozen=True, slots=True)
class ClosedConnection:
    """A connection that is no more."""

    workspace_id: str
    connection: str
    idle_s: float
    """How long its workspace may be idle from now on."""


class Activity(Protocol):
    """Who is being used. Every verb raises Unavailable when the bus cannot be asked: nobody sleeps because of that."""

    async def renew(self, leases: Mapping[str, frozenset[str]], *, lease_s: float) -> None:
        """These connections (by workspace) are live for another `lease_s`."""
        ...

    async def busy(self, with_what: Mapping[str, str], *, lease_s: float) -> None:
        """The processes of these workspaces are busy, for another `lease_s`."""
        ...

    async def release(self, closed: Sequence[ClosedConnection]) -> None:
        """These have no lease any more; where one was the last of its workspace the idle timer starts."""
        ...

    async def touch(self, idle_s: Mapping[str, float]) -> None:
        """These workspaces were used just now: their idle timers start anew, with so many seconds."""
        ...

    async def uses(self, workspace_ids: Sequence[str]) -> Mapping[str, Use]:
        """One answer for each that was asked for."""
        ...

    async def memory_s(self) -> float:
        """For how long the bus has forgotten nothing; 0 (and the count begins) when it has lost its memory."""
        ...


class Feed(Protocol):
    """What changed, to whoever listens now. What is lost here is read from the database."""

    async def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """(channel, message), in this order; Unavailable when the bus cannot be asked."""
        ...

    async def listen(
        self, pattern: str, on_message: Callable[[str, bytes], None], on_gap: Callable[[], None], *, name: str = "feed"
    ) -> None:
        """Until cancelled: call for each message with its channel; `on_gap` whenever some may have been missed.

        `name`: of this listener's loop, for health and metrics.
        """
        ...
