"""A runtime and an archive store that keep everything in memory.

They pass the same contract suites as the real ones, so simulations and benchmarks can use them instead. A home is a mapping of
names to bytes; a job is a JSON request that `FakeArchives` writes and `FakeRuntime` reads.
"""

import asyncio
import hashlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torpor.domain.busy import Work
from torpor.domain.disk import Disk
from torpor.domain.errors import Code, Failed, Refused, Unavailable
from torpor.domain.names import pack_op_id, volume_name
from torpor.domain.records import (
    Archive,
    ArchiveKey,
    Marker,
    Observation,
    ObservedContainer,
    ObservedVolume,
    ProgramExit,
    ProvenArchive,
    ProvenPack,
    Survey,
)
from torpor.domain.usage import Usage
from torpor.ports import (
    Address,
    ArchiveBase,
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
from torpor.testing.fake_command import FakeCommand
from torpor.testing.fake_shell import FakeShell

Files = dict[str, bytes]

# The command of a program that runs and never listens.
SILENT = ("silent",)


@dataclass
class FakeVolume:
    files: Files = field(default_factory=dict)
    marker: Marker | None = None
    is_illegible: bool = False
    opened_revision: int = 0
    is_half_made: bool = False
    """It was created and never marked."""

    @property
    def legible_marker(self) -> Marker | None:
        return None if self.is_illegible else self.marker

    def is_foreign_to(self, home: Home) -> bool:
        return self.legible_marker is not None and self.legible_marker.workspace_id != home.workspace_id

    def lose_small_files(self) -> None:
        """Remove everything except the home."""
        self.marker, self.is_illegible, self.opened_revision, self.is_half_made = None, False, 0, False

    def seen(self, home: Home) -> ObservedVolume:
        place = f"fake:{volume_name(home.workspace_id, home.generation)}"
        if self.is_foreign_to(home):
            fault = f"its marker names another workspace: {place}/marker"
            return ObservedVolume(home.generation, None, True, fault, f"{place}/home", has_home=False)
        if self.legible_marker is not None:
            return ObservedVolume(home.generation, self.legible_marker)
        fault = f"its marker cannot be read: {place}/marker"
        return ObservedVolume(home.generation, None, not self.is_half_made, fault, f"{place}/home")


@dataclass
class FakeContainer:
    container: Container
    epoch: int
    """The epoch of the controller that started it."""
    ready: bool = True
    ended: ProgramExit | None = None
    is_paused: bool = False


class FakeLogEntry(NamedTuple):
    """One effect that made a change: time, verb, workspace, and the caller's epoch and operation."""

    at_s: float
    verb: str
    workspace_id: str
    epoch: int
    op_id: str


async def _no_interference(_verb: str, _workspace_id: str) -> None:
    return None


@dataclass
class FakeWorld:
    """The state of the fake runtime and archives. Tests change it directly, to simulate external events."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    volumes: dict[Home, FakeVolume] = field(default_factory=dict)
    containers: dict[str, FakeContainer] = field(default_factory=dict)
    archives: dict[str, tuple[Files, str]] = field(default_factory=dict)
    archived: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The (generation, revision) of each archive."""
    archive_packs: dict[str, dict[str, int]] = field(default_factory=dict)
    """The packs of each archive of format 2, with their sizes: its root."""
    packs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """The content of each pack, by workspace and name. A pack holds one file, or the names of all files."""
    archive_store: str | None = None
    """The identity of the archive store; the first call creates it."""
    epochs: dict[str, int] = field(default_factory=dict)
    """The newest epoch that was seen for each workspace; older epochs are refused."""
    address: Address | None = None
    """The address of every running container."""
    starts_ready: bool = True
    work: dict[str, Work] = field(default_factory=dict)
    """The activity that is reported for each workspace's processes."""
    usage: dict[str, Usage] = field(default_factory=dict)
    """The CPU time and memory of a container, by workspace."""
    disk: Disk | None = None
    """The disk that is reported for homes."""
    logs: dict[str, list[bytes]] = field(default_factory=dict)
    """The lines that were appended to the log of a workspace's current or last container."""
    runtime_out: bool = False
    archives_out: bool = False
    observed_slowly_s: float = 0.0
    effects_s: float = 0.0
    """The duration of every effect."""
    interfere: Callable[[str, str], Awaitable[None]] = _no_interference
    """Awaited before every effect, with its verb and workspace. It may wait or raise."""
    done: list[tuple[str, str]] = field(default_factory=list)
    """(verb, workspace) of every effect that made a change, in order."""
    log: list[FakeLogEntry] = field(default_factory=list)
    """The same effects with time, epoch and operation: tests use it to prove that no workspace was started twice."""
    overtaken: list[FakeLogEntry] = field(default_factory=list)
    """Effects that were refused because of an old epoch."""
    clock: Callable[[], float] = time.monotonic


def tree_root(files: Files) -> str:
    return hashlib.sha256(json.dumps(sorted((name, data.hex()) for name, data in files.items())).encode()).hexdigest()


class FakeRuntime:
    name = "fake"

    def __init__(self, world: FakeWorld) -> None:
        self._world = world

    async def world(self) -> str:
        await asyncio.sleep(0)
        self._require_provider()
        return f"{self.name}:{self._world.id}"

    async def observe(self, only: frozenset[str] | None = None) -> Survey:
        await asyncio.sleep(self._world.observed_slowly_s)
        self._require_provider()
        volumes: dict[str, set[ObservedVolume]] = {}
        for home, volume in self._world.volumes.items():
            if only is None or home.workspace_id in only:
                volumes.setdefault(home.workspace_id, set()).add(volume.seen(home))
        containers = {
            workspace_id: ObservedContainer(
                held.container.home.generation,
                held.container.revision,
                held.ready and held.ended is None,
                held.ended,
                held.is_paused,
            )
            for workspace_id, held in self._world.containers.items()
            if only is None or workspace_id in only
        }
        return Survey(
            {
                workspace_id: Observation(frozenset(volumes.get(workspace_id, ())), containers.get(workspace_id))
                for workspace_id in volumes.keys() | containers.keys()
            }
        )

    async def ensure_volume(self, home: Home, fence: Fence) -> None:
        await self._enter("ensure_volume", home.workspace_id, fence)
        if home in self._world.volumes:
            return
        self._world.volumes[home] = FakeVolume(is_half_made=True)
        self._note("ensure_volume", home.workspace_id, fence)

    async def mark_volume(self, home: Home, marker: Marker, fence: Fence) -> None:
        await self._enter("mark_volume", home.workspace_id, fence)
        volume = self._volume(home)
        if volume.is_foreign_to(home):
            raise Failed(Code.VOLUME_NOT_READY, "the volume has the marker of another workspace")
        if volume.legible_marker != marker:
            volume.marker, volume.is_illegible, volume.is_half_made = marker, False, False
            self._note("mark_volume", home.workspace_id, fence)

    async def run_at_home(self, home: Home, job: HomeJob, fence: Fence, progress: JobProgress) -> Mapping[str, object]:
        await self._enter("run_at_home", home.workspace_id, fence)
        volume = self._volume(home)
        if job.writes and not volume.is_half_made:
            raise Failed(Code.VOLUME_NOT_READY, "the volume is already complete and cannot be filled again")
        if not job.writes and volume.legible_marker is None:
            raise Failed(Code.VOLUME_NOT_READY, "the volume has no marker; it is incomplete")
        progress(0, None)
        if self._world.archives_out:
            raise Failed(Code.S3_ACCESS_ERROR, "the fake archive store is out")
        asked = json.loads(job.stdin)
        if job.writes:
            if asked["key"] not in self._world.archives:
                raise Failed(Code.ARCHIVE_NOT_FOUND, f"there is no archive {asked['key']}")
            files, root = self._world.archives[asked["key"]]
            _check_packs(self._world, ArchiveKey.parse(asked["key"]))
            if asked["manifest_root"] not in (None, root):
                raise Failed(Code.CHECKSUM_MISMATCH, f"the archive {asked['key']} has another manifest root")
            volume.files = dict(files)
            written: Mapping[str, object] = {}
        else:
            files, root = _keep(self._world, asked["key"], (asked["generation"], asked["revision"]), volume.files)
            written = _keep_packs(self._world, ArchiveKey.parse(asked["key"]), files, asked)
        self._note("unpack" if job.writes else "pack", home.workspace_id, fence)
        size = sum(len(data) for data in files.values())
        progress(size, size)
        return {"manifest_root": root, "size_bytes": size, "home_bytes": size, "bytes": size, "files": len(files), **written}

    async def ensure_no_volume(self, home: Home, fence: Fence, *, archived_revision: int | None) -> None:
        await self._enter("ensure_no_volume", home.workspace_id, fence)
        if home not in self._world.volumes:
            return
        if archived_revision is not None:
            held = self._world.containers.get(home.workspace_id)
            if self._world.volumes[home].opened_revision > archived_revision or (held is not None and held.ended is None):
                raise Failed(Code.VOLUME_REOPENED, "the home was opened after its archive was written")
        del self._world.volumes[home]
        self._note("ensure_no_volume", home.workspace_id, fence)

    async def ensure_no_half_made(self, home: Home, fence: Fence) -> None:
        await self._enter("ensure_no_half_made", home.workspace_id, fence)
        if home in self._world.volumes and self._world.volumes[home].is_half_made:
            del self._world.volumes[home]
            self._note("ensure_no_half_made", home.workspace_id, fence)

    async def ensure_running(self, container: Container, fence: Fence, progress: Progress) -> None:
        workspace_id = container.home.workspace_id
        await self._enter("ensure_running", workspace_id, fence)
        volume = self._volume(container.home)
        if volume.legible_marker is None or volume.legible_marker.generation != container.home.generation:
            raise Failed(Code.VOLUME_NOT_READY, "the volume has no marker; it is incomplete")
        held = self._world.containers.get(workspace_id)
        if held is not None and held.ended is None and held.container.home == container.home:
            held.container = replace(held.container, revision=max(held.container.revision, container.revision))
            volume.opened_revision = max(volume.opened_revision, container.revision)
            return
        volume.opened_revision = max(volume.opened_revision, container.revision)
        is_ready = self._world.starts_ready and container.program.command != SILENT
        self._world.containers[workspace_id] = FakeContainer(container, fence.epoch, ready=is_ready)
        self._world.logs.pop(workspace_id, None)
        self._note("ensure_running", workspace_id, fence)

    async def ensure_no_container(self, workspace_id: str, fence: Fence) -> None:
        await self._enter("ensure_no_container", workspace_id, fence)
        if self._world.containers.pop(workspace_id, None) is not None:
            self._note("ensure_no_container", workspace_id, fence)

    async def admit(self, workspace_id: str, fence: Fence) -> None:
        await self._enter("admit", workspace_id, fence)

    async def execute(self, workspace_id: str, command: Sequence[str], stdin: bytes) -> ExecResult:
        self.require_running(workspace_id)
        return ExecResult(0, b"", b"")

    async def logs(self, workspace_id: str, *, tail: int) -> AsyncIterator[bytes]:
        held = self._world.containers.get(workspace_id)
        if held is not None and held.ended is not None:
            yield held.ended.last_lines.encode()
        for line in self._world.logs.get(workspace_id, [])[-tail:]:
            yield line

    async def append_log(self, workspace_id: str, lines: bytes) -> None:
        if workspace_id in self._world.containers:
            self._world.logs.setdefault(workspace_id, []).extend(lines.splitlines(keepends=True))

    def address(self, workspace_id: str, port: int | None = None) -> Address | None:
        """The same address for every port: the test that sets it provides the server."""
        held = self._world.containers.get(workspace_id)
        return self._world.address if held is not None and held.ended is None else None

    async def shell(self, workspace_id: str, *, columns: int, rows: int) -> Shell:
        return FakeShell(self._runs_on(workspace_id), columns=columns, rows=rows)

    async def start_command(
        self, workspace_id: str, command: Sequence[str], *, terminal: TerminalSize | None = None
    ) -> RunningCommand:
        return FakeCommand(self._runs_on(workspace_id), command, terminal=terminal)

    def _runs_on(self, workspace_id: str) -> Callable[[], bool]:
        """Return a function that tells whether the current container is still running."""
        held = self.require_running(workspace_id)
        return lambda: self._world.containers.get(workspace_id) is held and held.ended is None

    async def work(self, concerns: WorkspaceFilter = any_workspace) -> Mapping[str, Work]:
        """Its containers have no processes; the result comes from `FakeWorld.work`."""
        self._require_provider()
        running = {name: held for name, held in self._world.containers.items() if held.ended is None and concerns(name)}
        idle = {name: Work(held.container.program.template, 0.0) for name, held in running.items()}
        return {name: self._world.work.get(name, work) for name, work in idle.items()}

    async def usage(self, concerns: WorkspaceFilter = any_workspace) -> Mapping[str, Usage]:
        """Its containers have no processes; `FakeWorld.usage` sets what they use."""
        self._require_provider()
        running = [name for name, held in self._world.containers.items() if held.ended is None and concerns(name)]
        return {name: self._world.usage.get(name, Usage(0.0, 0)) for name in running}

    async def disk(self) -> Disk | None:
        self._require_provider()
        return self._world.disk

    async def home_bytes(self, home: Home) -> int | None:
        self._require_provider()
        volume = self._world.volumes.get(home)
        return sum(len(data) for data in volume.files.values()) if volume is not None else None

    async def stop_all(self) -> None:
        self._world.containers.clear()

    async def _enter(self, verb: str, workspace_id: str, fence: Fence) -> None:
        """Check the fence, wait, and check it again. The caller then makes its change without another await."""
        await asyncio.sleep(0)
        self._require_provider()
        self._admit(verb, workspace_id, fence)
        await asyncio.sleep(self._world.effects_s)
        await self._world.interfere(verb, workspace_id)
        self._admit(verb, workspace_id, fence)

    def _admit(self, verb: str, workspace_id: str, fence: Fence) -> None:
        newest = self._world.epochs.get(workspace_id, 0)
        if fence.epoch < newest:
            self._world.overtaken.append(FakeLogEntry(self._world.clock(), verb, workspace_id, fence.epoch, fence.op_id))
            raise Failed(Code.STALE_EPOCH, f"epoch {fence.epoch} was overtaken by {newest}", seen=newest)
        self._world.epochs[workspace_id] = fence.epoch

    def _require_provider(self) -> None:
        if self._world.runtime_out:
            raise Unavailable("the fake runtime is out")

    def require_running(self, workspace_id: str) -> FakeContainer:
        held = self._world.containers.get(workspace_id)
        if held is None or held.ended is not None:
            raise Refused("not_running", "the workspace is not running")
        return held

    def _volume(self, home: Home) -> FakeVolume:
        if home not in self._world.volumes:
            raise Failed(Code.VOLUME_NOT_READY, f"there is no volume of generation {home.generation}")
        return self._world.volumes[home]

    def _note(self, verb: str, workspace_id: str, fence: Fence) -> None:
        self._world.done.append((verb, workspace_id))
        self._world.log.append(FakeLogEntry(self._world.clock(), verb, workspace_id, fence.epoch, fence.op_id))


def _keep(world: FakeWorld, key: str, state: tuple[int, int], files: Files) -> tuple[Files, str]:
    """Store the archive of a home under this key. An existing archive is never replaced."""
    if key in world.archives and world.archived.get(key, state) != state:
        raise Failed(Code.READBACK_MISMATCH, f"read back {key}: it is of {world.archived[key]}, not of {state}")
    world.archived[key] = state
    return world.archives.setdefault(key, (dict(files), tree_root(files)))


def _keep_packs(world: FakeWorld, key: ArchiveKey, files: Files, asked: Mapping[str, Any]) -> Mapping[str, object]:
    """Store the packs of a home under this key, except those that its base has. Return the result of the job."""
    if asked["format"] == 1:
        return {}
    base = asked["base"]
    taken_over = world.archive_packs[base["key"]] if base is not None else {}
    lost = [
        name
        for name in taken_over
        if name not in base["unusable"]
        and ((key.workspace_id, name) not in world.packs or (name not in base["trusted"] and not _is_good(world, key, name)))
    ]
    usable = {name.rpartition("-")[2]: name for name in taken_over if name not in base["unusable"] and name not in lost}
    packs: list[ProvenPack] = []
    for content in {json.dumps(sorted(files)).encode(), *files.values()}:
        digest = hashlib.sha256(content).hexdigest()
        name = usable.get(digest, f"{key.op_id}-{digest}")
        is_new = digest not in usable
        if is_new:
            world.packs[key.workspace_id, name] = content
        packs.append(ProvenPack(name, len(content), "1", is_read_back=is_new or name not in base["trusted"]))
    world.archive_packs[str(key)] = {pack.name: pack.size_bytes for pack in packs}
    return {
        "format": 2,
        "size_bytes": sum(pack.size_bytes for pack in packs),
        "new_bytes": sum(pack.size_bytes for pack in packs if pack_op_id(pack.name) == key.op_id),
        "packs": [[pack.name, pack.size_bytes, pack.store_version, pack.is_read_back] for pack in packs],
        "lost": lost,
    }


def put_root(world: FakeWorld, key: ArchiveKey, home: Home, names: Sequence[str]) -> None:
    """There is an archive of format 2 of an empty home, which names these packs."""
    _keep(world, str(key), (home.generation, 0), {})
    world.archive_packs[str(key)] = {name: len(world.packs[key.workspace_id, name]) for name in names}


def _check_packs(world: FakeWorld, key: ArchiveKey) -> None:
    """Raise if the archive lacks a pack. Its name says what it must contain."""
    for name in world.archive_packs.get(str(key), {}):
        path = f"{key.workspace_id}/packs/{name}"
        if (key.workspace_id, name) not in world.packs:
            raise Failed(Code.ARCHIVE_NOT_FOUND, f"the pack {name} of {key} is missing", object=path)
        if not _is_good(world, key, name):
            raise Failed(Code.CHECKSUM_MISMATCH, f"the pack {name} of {key} is damaged", object=path)


def _is_good(world: FakeWorld, key: ArchiveKey, name: str) -> bool:
    return hashlib.sha256(world.packs[key.workspace_id, name]).hexdigest() == name.rpartition("-")[2]


class FakeArchives:
    def __init__(self, world: FakeWorld) -> None:
        self._world = world
        self._known: str | None = None

    async def world(self) -> str:
        await self._enter("world", "")
        self._world.archive_store = self._world.archive_store or str(uuid.uuid4())
        self._known = self._world.archive_store
        return self._known

    def pack_job(
        self,
        key: ArchiveKey,
        home: Home,
        revision: int,
        *,
        format: int = 1,  # noqa: A002
        base: ArchiveBase | None = None,
    ) -> HomeJob:
        _check(key, home)
        known = base and {"key": str(base.key), "trusted": dict(base.trusted), "unusable": sorted(base.unusable)}
        order = {"key": str(key), "generation": home.generation, "revision": revision, "format": format, "base": known}
        return HomeJob(("fake",), json.dumps(order).encode(), writes=False)

    def proven(self, key: ArchiveKey, home: Home, revision: int, result: Mapping[str, object]) -> ProvenArchive:
        said: Mapping[str, Any] = result
        archive = Archive(key, home.generation, revision, said["manifest_root"])
        numbers = said["size_bytes"], said["home_bytes"], said["files"], said.get("format", 1), said.get("new_bytes")
        packs = tuple(ProvenPack(*pack) for pack in said.get("packs", ()))
        return ProvenArchive(archive, *numbers, packs, tuple(said.get("lost", ())))

    def unpack_job(self, key: ArchiveKey, manifest_root: str | None = None) -> HomeJob:
        return HomeJob(("fake",), json.dumps({"key": str(key), "manifest_root": manifest_root}).encode(), writes=True)

    async def create_empty(self, key: ArchiveKey, home: Home, revision: int, *, format: int = 1) -> ProvenArchive:  # noqa: A002
        _check(key, home)
        await self._enter("create_empty", key.workspace_id)
        await asyncio.sleep(self._world.effects_s)
        _, root = _keep(self._world, str(key), (home.generation, revision), {})
        packed = _keep_packs(self._world, key, {}, {"format": format, "base": None})
        self._world.done.append(("create_empty", key.workspace_id))
        facts = {"manifest_root": root, "size_bytes": 0, "home_bytes": 0, "files": 0}
        return self.proven(key, home, revision, {**facts, **packed})

    async def copy(self, source: ArchiveKey, target: ArchiveKey, progress: Progress) -> ProvenArchive:
        await self._enter("copy", target.workspace_id)
        await asyncio.sleep(self._world.effects_s)
        found = target if str(target) in self._world.archives else source
        self._find(found)
        _check_packs(self._world, found)
        files, root = _keep(self._world, str(target), (0, 0), self._world.archives[str(found)][0])
        format = 2 if str(found) in self._world.archive_packs else 1  # noqa: A001
        packed = _keep_packs(self._world, target, files, {"format": format, "base": None})
        size = sum(map(len, files.values()))
        progress(size, size)
        facts = {"manifest_root": root, "size_bytes": size, "home_bytes": size, "files": len(files)}
        self._world.done.append(("copy", target.workspace_id))
        return self.proven(target, Home(target.workspace_id, 0), 0, {**facts, **packed})

    async def manifest_root(self, key: ArchiveKey) -> str:
        await self._enter("manifest_root", key.workspace_id)
        self._find(key)
        for name, size_bytes in self._world.archive_packs.get(str(key), {}).items():
            self._pack(key.workspace_id, name, size_bytes)
        return self._world.archives[str(key)][1]

    async def reachable(self) -> bool:
        return not self._world.archives_out and self._is_recognised()

    async def listing(self) -> AsyncIterator[ListedArchive | ListedPack]:
        await self._enter("listing", "")
        for text in sorted(self._world.archives):
            key = ArchiveKey.parse(text)
            yield ListedArchive(key, is_whole=True)
            await self._enter("listing", key.workspace_id)
        for workspace_id, name in sorted(self._world.packs):
            yield ListedPack(workspace_id, name, len(self._world.packs[workspace_id, name]))

    async def remove(self, key: ArchiveKey) -> None:
        await self._enter("remove", key.workspace_id)
        self._world.archived.pop(str(key), None)
        self._world.archive_packs.pop(str(key), None)
        if self._world.archives.pop(str(key), None) is not None:
            self._world.done.append(("remove", key.workspace_id))

    async def remove_pack(self, workspace_id: str, name: str) -> None:
        await self._enter("remove_pack", workspace_id)
        if self._world.packs.pop((workspace_id, name), None) is not None:
            self._world.done.append(("remove_pack", workspace_id))

    async def pack_size(self, workspace_id: str, name: str) -> int | None:
        await self._enter("pack_size", workspace_id)
        content = self._world.packs.get((workspace_id, name))
        return None if content is None else len(content)

    async def root_packs(self, key: ArchiveKey) -> RootFacts:
        await self._enter("root_packs", key.workspace_id)
        if str(key) not in self._world.archive_packs:
            raise Failed(Code.ARCHIVE_NOT_FOUND, f"there is no root of the archive {key}")
        return RootFacts(self._world.archives[str(key)][1], dict(self._world.archive_packs[str(key)]))

    async def prove_pack(self, workspace_id: str, name: str, size_bytes: int) -> ProvenPack:
        await self._enter("prove_pack", workspace_id)
        content = self._pack(workspace_id, name, size_bytes)
        if hashlib.sha256(content).hexdigest() != name.rpartition("-")[2]:
            path = f"{workspace_id}/packs/{name}"
            raise Failed(Code.CHECKSUM_MISMATCH, f"the content of {path} differs from its name", object=path)
        return ProvenPack(name, size_bytes, "1", is_read_back=True)

    def _find(self, key: ArchiveKey) -> None:
        if str(key) not in self._world.archives:
            raise Failed(Code.ARCHIVE_NOT_FOUND, f"there is no archive {key}")

    def _pack(self, workspace_id: str, name: str, size_bytes: int) -> bytes:
        content = self._world.packs.get((workspace_id, name))
        path = f"{workspace_id}/packs/{name}"
        if content is None:
            raise Failed(Code.ARCHIVE_NOT_FOUND, f"{path} is missing", object=path)
        if len(content) != size_bytes:
            raise Failed(Code.CHECKSUM_MISMATCH, f"{path} has {len(content)} bytes, expected {size_bytes}", object=path)
        return content

    async def _enter(self, verb: str, workspace_id: str) -> None:
        await asyncio.sleep(0)
        if self._world.archives_out:
            raise Unavailable("the fake archive store is out")
        if not self._is_recognised():
            raise Unavailable("the fake archive store is not the same as before")
        await self._world.interfere(verb, workspace_id)

    def _is_recognised(self) -> bool:
        self._known = self._known or self._world.archive_store
        return self._known == self._world.archive_store


def _check(key: ArchiveKey, home: Home) -> None:
    if key.workspace_id != home.workspace_id:
        raise Refused("wrong_workspace", f"an archive of {home.workspace_id} cannot be stored under {key}")
