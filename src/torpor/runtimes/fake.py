"""What would a runtime be that keeps everything in memory?

It passes the same contract suite as the real ones, so it may stand in for them in simulations and benchmarks. A home is a
mapping of names to bytes; jobs are words between it and `FakeArchives`.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torpor.domain.errors import Code, Failed, Refused, Unavailable
from torpor.domain.records import ArchiveKey, Ended, Marker, Observation, SeenContainer, SeenVolume, Survey
from torpor.ports import Address, Container, Executed, Fence, Home, HomeJob, Progress, Proven

Files = dict[str, bytes]


@dataclass
class FakeVolume:
    files: Files = field(default_factory=dict)
    marker: Marker | None = None
    is_illegible: bool = False
    opened_revision: int = 0
    epoch: int = 0


@dataclass
class FakeContainer:
    container: Container
    epoch: int
    ready: bool = True
    ended: Ended | None = None


async def _no_interference(_verb: str, _workspace_id: str) -> None:
    return None


@dataclass
class FakeWorld:
    """Everything that is there. Tests change it from outside, as fate does."""

    volumes: dict[Home, FakeVolume] = field(default_factory=dict)
    containers: dict[str, FakeContainer] = field(default_factory=dict)
    archives: dict[str, tuple[Files, str]] = field(default_factory=dict)
    starts_ready: bool = True
    runtime_out: bool = False
    archives_out: bool = False
    observed_slowly_s: float = 0.0
    interfere: Callable[[str, str], Awaitable[None]] = _no_interference
    """Awaited before every effect, with its verb and workspace: it may wait, or raise."""
    done: list[tuple[str, str]] = field(default_factory=list)
    """(verb, workspace) of every effect that changed something, in order."""


def tree_root(files: Files) -> str:
    return hashlib.sha256(json.dumps(sorted((name, data.hex()) for name, data in files.items())).encode()).hexdigest()


class FakeRuntime:
    name = "fake"

    def __init__(self, world: FakeWorld) -> None:
        self.world = world

    async def observe(self, only: frozenset[str] | None = None) -> Survey:
        await asyncio.sleep(self.world.observed_slowly_s)
        self._require_provider()
        volumes: dict[str, set[SeenVolume]] = {}
        for home, volume in self.world.volumes.items():
            if only is None or home.workspace_id in only:
                marker = None if volume.is_illegible else volume.marker
                seen = SeenVolume(home.generation, marker, is_illegible=volume.is_illegible)
                volumes.setdefault(home.workspace_id, set()).add(seen)
        containers = {
            workspace_id: SeenContainer(
                held.container.home.generation, held.container.revision, held.ready and held.ended is None, held.ended
            )
            for workspace_id, held in self.world.containers.items()
            if only is None or workspace_id in only
        }
        return Survey(
            {
                workspace_id: Observation(frozenset(volumes.get(workspace_id, ())), containers.get(workspace_id))
                for workspace_id in volumes.keys() | containers.keys()
            }
        )

    async def ensure_volume(self, home: Home, fence: Fence) -> None:
        await self._enter("ensure_volume", home.workspace_id)
        if home in self.world.volumes:
            self._refuse_stale(home, fence)
            return
        self.world.volumes[home] = FakeVolume(epoch=fence.epoch)
        self._note("ensure_volume", home.workspace_id)

    async def mark_volume(self, home: Home, marker: Marker, fence: Fence) -> None:
        await self._enter("mark_volume", home.workspace_id)
        volume = self._volume(home, fence)
        if volume.marker != marker:
            volume.marker = marker
            self._note("mark_volume", home.workspace_id)

    async def run_at_home(self, home: Home, job: HomeJob, fence: Fence, progress: Progress) -> Mapping[str, object]:
        await self._enter("run_at_home", home.workspace_id)
        volume = self._volume(home, fence)
        if job.writes and volume.marker is not None:
            raise Failed(Code.VOLUME_NOT_READY, "the volume carries its marker already; nothing may fill it again")
        if not job.writes and volume.marker is None:
            raise Failed(Code.VOLUME_NOT_READY, "the volume does not carry its marker; it is half-made")
        progress(0, None)
        asked = json.loads(job.stdin)
        if job.writes:
            if asked["key"] not in self.world.archives:
                raise Failed(Code.ARCHIVE_NOT_FOUND, f"there is no archive {asked['key']}")
            files, root = self.world.archives[asked["key"]]
            volume.files = dict(files)
        else:
            files = dict(volume.files)
            root = tree_root(files)
            self.world.archives[asked["key"]] = (files, root)
        self._note("unpack" if job.writes else "pack", home.workspace_id)
        size = sum(len(data) for data in files.values())
        progress(size, size)
        return {"manifest_root": root, "size_bytes": size, "home_bytes": size, "files": len(files)}

    async def ensure_no_volume(self, home: Home, fence: Fence, *, archived_revision: int | None) -> None:
        await self._enter("ensure_no_volume", home.workspace_id)
        if home not in self.world.volumes:
            return
        self._refuse_stale(home, fence)
        if archived_revision is not None:
            held = self.world.containers.get(home.workspace_id)
            if self.world.volumes[home].opened_revision > archived_revision or (held is not None and held.ended is None):
                raise Failed(Code.VOLUME_REOPENED, "somebody has worked in this home since its archive was made")
        del self.world.volumes[home]
        self._note("ensure_no_volume", home.workspace_id)

    async def ensure_running(self, container: Container, fence: Fence, progress: Progress) -> None:
        workspace_id = container.home.workspace_id
        await self._enter("ensure_running", workspace_id)
        volume = self._volume(container.home, fence)
        if volume.marker is None or volume.marker.generation != container.home.generation:
            raise Failed(Code.VOLUME_NOT_READY, "the volume does not carry its marker; it is half-made")
        held = self.world.containers.get(workspace_id)
        if held is not None and held.ended is None and held.container.home == container.home:
            held.container = replace(held.container, revision=max(held.container.revision, container.revision))
            volume.opened_revision = max(volume.opened_revision, container.revision)
            return
        volume.opened_revision = max(volume.opened_revision, container.revision)
        self.world.containers[workspace_id] = FakeContainer(container, fence.epoch, ready=self.world.starts_ready)
        self._note("ensure_running", workspace_id)

    async def ensure_no_container(self, workspace_id: str, fence: Fence) -> None:
        await self._enter("ensure_no_container", workspace_id)
        held = self.world.containers.get(workspace_id)
        if held is None:
            return
        if held.epoch > fence.epoch:
            raise Failed(Code.STALE_EPOCH, f"epoch {fence.epoch} was overtaken by {held.epoch}")
        del self.world.containers[workspace_id]
        self._note("ensure_no_container", workspace_id)

    async def execute(self, workspace_id: str, command: Sequence[str], stdin: bytes) -> Executed:
        held = self.world.containers.get(workspace_id)
        if held is None or held.ended is not None:
            raise Refused("not_running", "the workspace is not running")
        return Executed(0, b"", b"")

    async def logs(self, workspace_id: str, *, tail: int) -> AsyncIterator[bytes]:
        held = self.world.containers.get(workspace_id)
        if held is not None and held.ended is not None:
            yield held.ended.last_lines.encode()

    def address(self, workspace_id: str) -> Address | None:
        return None

    async def stop_all(self) -> None:
        self.world.containers.clear()

    async def _enter(self, verb: str, workspace_id: str) -> None:
        await asyncio.sleep(0)
        self._require_provider()
        await self.world.interfere(verb, workspace_id)

    def _require_provider(self) -> None:
        if self.world.runtime_out:
            raise Unavailable("the fake runtime is out")

    def _volume(self, home: Home, fence: Fence) -> FakeVolume:
        if home not in self.world.volumes:
            raise Failed(Code.VOLUME_NOT_READY, f"there is no volume of generation {home.generation}")
        self._refuse_stale(home, fence)
        return self.world.volumes[home]

    def _refuse_stale(self, home: Home, fence: Fence) -> None:
        volume = self.world.volumes[home]
        if volume.epoch > fence.epoch:
            raise Failed(Code.STALE_EPOCH, f"epoch {fence.epoch} was overtaken by {volume.epoch}")
        volume.epoch = fence.epoch

    def _note(self, verb: str, workspace_id: str) -> None:
        self.world.done.append((verb, workspace_id))


class FakeArchives:
    def __init__(self, world: FakeWorld) -> None:
        self.world = world

    def pack_job(self, key: ArchiveKey, home: Home, revision: int) -> HomeJob:
        return HomeJob(("fake",), json.dumps({"key": str(key)}).encode(), writes=False)

    def proven(self, key: ArchiveKey, result: Mapping[str, object]) -> Proven:
        return replace(
            _EMPTY,
            key=key,
            manifest_root=str(result["manifest_root"]),
            size_bytes=int(str(result["size_bytes"])),
            home_bytes=int(str(result["home_bytes"])),
            files=int(str(result["files"])),
        )

    def unpack_job(self, key: ArchiveKey) -> HomeJob:
        return HomeJob(("fake",), json.dumps({"key": str(key)}).encode(), writes=True)

    async def create_empty(self, key: ArchiveKey, home: Home, revision: int) -> Proven:
        await self._enter("create_empty", key.workspace_id)
        root = tree_root({})
        self.world.archives[str(key)] = ({}, root)
        self.world.done.append(("create_empty", key.workspace_id))
        return replace(_EMPTY, key=key, manifest_root=root)

    async def manifest_root(self, key: ArchiveKey) -> str:
        await self._enter("manifest_root", key.workspace_id)
        if str(key) not in self.world.archives:
            raise Failed(Code.ARCHIVE_NOT_FOUND, f"there is no archive {key}")
        return self.world.archives[str(key)][1]

    async def reachable(self) -> bool:
        return not self.world.archives_out

    async def _enter(self, verb: str, workspace_id: str) -> None:
        await asyncio.sleep(0)
        if self.world.archives_out:
            raise Unavailable("the fake archive store is out")
        await self.world.interfere(verb, workspace_id)


_EMPTY = Proven(ArchiveKey("", ""), "", 0, 0, 0)
