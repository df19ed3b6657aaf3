"""Run workspaces as processes and directories of this machine: the implementation of `torpor.ports.Runtime`."""

import asyncio
import contextlib
import itertools
import os
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

import structlog

from torpor.domain.busy import Work
from torpor.domain.disk import Disk
from torpor.domain.errors import Code, Failed, Hopeless, Refused, Unavailable
from torpor.domain.records import Marker, Observation, ObservedContainer, ObservedVolume, Survey
from torpor.domain.usage import Usage
from torpor.file_lock import PidLock
from torpor.loops import start_tasks, stop
from torpor.ports import (
    Address,
    Container,
    ExecResult,
    Fence,
    Home,
    HomeJob,
    JobProgress,
    Progress,
    RunningCommand,
    Shell,
    TerminalSize,
    WorkspaceFilter,
    any_workspace,
)
from torpor.runtimes import agent_client
from torpor.runtimes.ability import Ability
from torpor.runtimes.host_programs import ToolFailed
from torpor.runtimes.process import cgroups, home_size, logs, package_indexes, processes
from torpor.runtimes.process.cgroups import Cgroups
from torpor.runtimes.process.confinement import Confinement, NetworkMode, examine, weights_ability, without_cgroups
from torpor.runtimes.process.directory_tree import remove_tree
from torpor.runtimes.process.disk_guard import DiskGuard
from torpor.runtimes.process.jobs import Job
from torpor.runtimes.process.network import VethNetwork
from torpor.runtimes.process.options import ProcessOptions
from torpor.runtimes.process.paths import make_run_directory, runtime_paths, short
from torpor.runtimes.process.programs import Programs
from torpor.runtimes.process.supervisor import ContainerSetup, Supervisor
from torpor.runtimes.process.volume_files import UnreadableFile
from torpor.runtimes.process.volumes import Volumes
from torpor.runtimes.timeouts import finish_despite_cancel

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")

LIST_TIMEOUT_S = 10.0
"""How long listing the volumes may take before the disk counts as unavailable."""


class ProcessRuntime:
    """The default runtime. Call `start` first and `close` last; a data directory has at most one at a time."""

    name = "process"

    def __init__(
        self,
        data_dir: Path,
        *,
        options: ProcessOptions,
        on_change: Callable[[str], None] = lambda _workspace_id: None,
    ) -> None:
        """`on_change` is called with the workspace of each container that ends or becomes ready. It is only a hint."""
        self.paths = runtime_paths(data_dir)
        self._options = options
        self._on_change = on_change
        self._volumes = Volumes(self.paths)
        self._programs = Programs(self.paths.programs, f"{self.paths.run.name}/install")
        self._setup: ContainerSetup | None = None
        self._examined: tuple[Confinement, tuple[Ability, ...]] | None = None
        self._lock_file: PidLock | None = None
        self._containers: dict[str, Supervisor] = {}
        self._jobs: dict[Home, set[Job]] = defaultdict(set)
        self._numbers = itertools.count(1)
        # A lock exists only while a call holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._removal_thread = ThreadPoolExecutor(1, "removal")
        self._removals: set[asyncio.Future[None]] = set()
        self._hanging: asyncio.Future[dict[str, frozenset[ObservedVolume]]] | None = None
        self._guard: asyncio.Task[None] | None = None

    # ── start and close ───────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Lock the data directory, end processes of an earlier run, and examine what this machine can confine."""
        if self._setup is not None:
            return
        self._take_lock()
        try:
            await asyncio.to_thread(self._sweep)
            confinement, _ = await self._examine()
            groups = await self._prepare_groups(confinement)
            if groups is None:
                confinement = replace(confinement, hierarchies=None)
            veths = await self._prepare_network(confinement)
            notices = await self._closed_indexes(confinement)
            try:
                await asyncio.to_thread(self._volumes.open_root)
            except Unavailable:
                pass  # every observation raises it, until the root is available
            else:
                self._remove_later(None)
        except BaseException as error:
            await finish_despite_cancel(asyncio.to_thread(self._remove_run_state))
            self._release_lock()
            if isinstance(error, OSError | ToolFailed):
                raise Hopeless(f"the process runtime cannot start in {self.paths.data}: {error}") from error
            raise
        self._setup = ContainerSetup(self.paths, self._options, confinement, groups, veths, notices)
        if self._options.disk_reserve_bytes:
            guard = DiskGuard(
                self._volumes.disk,
                self._options.disk_reserve_bytes,
                self._containers,
                self._on_change,
                ballast=self.paths.ballast if self._volumes.is_beside_data() else None,
            )
            [self._guard] = start_tasks(guard.run())

    async def close(self) -> None:
        """End all processes, and remove everything from the machine's network and cgroups. Homes stay."""
        if self._guard is not None:
            await stop(self._guard)
            self._guard = None
        try:
            await self.stop_all()
        except Unavailable as error:
            log.warning("not_all_stopped", why=error.message)  # the next start ends them
        await self._programs.close()
        await asyncio.gather(*(job.end() for jobs in list(self._jobs.values()) for job in list(jobs)))
        await asyncio.gather(*self._removals, return_exceptions=True)
        self._removal_thread.shutdown(wait=False)
        self._removal_thread = ThreadPoolExecutor(1, "removal")
        if (setup := self._setup) is not None:
            if setup.veths is not None:
                await setup.veths.remove()
            await asyncio.to_thread(self._remove_run_state)
            self._setup = None
        self._examined = None
        self._release_lock()

    async def abilities(self) -> tuple[Ability, ...]:
        """For `torpor doctor`, the limit on users and the message at the start. Works without `start`."""
        _, found = await self._examine()
        return found

    async def _examine(self) -> tuple[Confinement, tuple[Ability, ...]]:
        """Examine once per run, so that the limit on users is decided by the confinement that workspaces start with."""
        if self._examined is None:
            try:
                self._examined = await examine(self._options, self.paths)
            except (OSError, ToolFailed) as error:
                message = f"Torpor could not find out how workspaces can be confined on this machine: {error}"
                raise Hopeless(message) from error
        return self._examined

    def _take_lock(self) -> None:
        """Lock the data directory: the sweep ends every container in it, so no other Torpor may own one."""
        self.paths.data.mkdir(parents=True, exist_ok=True)
        lock = PidLock(self.paths.lock)
        if not lock.take():
            lock.close()
            raise Hopeless(f"another Torpor runs workspaces in {self.paths.data}; stop it first")
        self._lock_file = lock

    def _release_lock(self) -> None:
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def _sweep(self) -> None:
        """End processes of an earlier run: by cgroup, by record and by mark, since each may be missing on some machines."""
        # A workspace's user traverses it to the socket of its program. Other users can read none of its content.
        make_run_directory(self.paths.run, 0o711)
        self.paths.records.mkdir(mode=0o700, exist_ok=True)
        found = cgroups.find()
        if found is not None:
            with contextlib.suppress(OSError):
                Cgroups(found, self.paths.tag).sweep()
        processes.sweep(self.paths.records)
        processes.end_marked(f"{self.paths.run.name}/")
        for path in self.paths.run.iterdir():
            if path != self.paths.records:
                remove_tree(path)
        self._programs.sweep()

    def _remove_run_state(self) -> None:
        """Remove what belongs to this boot. The data directory stays."""
        if (found := cgroups.find()) is not None:
            Cgroups(found, self.paths.tag).remove()
        remove_tree(self.paths.run)

    async def _prepare_groups(self, confinement: Confinement) -> Cgroups | None:
        if confinement.hierarchies is None:
            return None
        groups = Cgroups(confinement.hierarchies, self.paths.tag)
        try:
            await asyncio.to_thread(groups.prepare)
        except OSError as error:  # `examine` changes nothing, so it could not find this
            poorer = without_cgroups(error)
            log.warning("no_cgroups", why=poorer.how)
            self._correct_abilities(poorer, weights_ability(None))
            return None
        if not groups.has_weights:
            self._correct_abilities(weights_ability(groups.hierarchies))
        return groups

    def _correct_abilities(self, *poorer: Ability) -> None:
        """Replace abilities that `examine` found by those that the start found."""
        assert self._examined is not None
        confinement, found = self._examined
        tried = {one.what: one for one in poorer}
        self._examined = confinement, tuple(tried.get(one.what, one) for one in found)

    async def _prepare_network(self, confinement: Confinement) -> VethNetwork | None:
        if confinement.network is not NetworkMode.VETH:
            return None
        veths = VethNetwork(
            self.paths.tag,
            confinement.nameservers,
            blocked=self._options.blocked_networks,
            allowed=self._options.allowed_networks,
            closes_published=confinement.closes_published,
        )
        await veths.prepare()
        return veths

    async def _closed_indexes(self, confinement: Confinement) -> tuple[str, ...]:
        """Notices for users about configured package indexes that workspaces cannot reach."""
        if confinement.network is NetworkMode.SHARED:
            return ()
        hosts = package_indexes.configured_hosts(os.environ, package_indexes.index_files(os.environ))
        blocked, allowed = self._options.blocked_networks, self._options.allowed_networks
        found = await package_indexes.unreachable_indexes(hosts, blocked=blocked, allowed=allowed)
        for one in found:
            log.warning("package_index_closed", host=one.host, why=str(one))
        return tuple(map(str, found))

    def _started_setup(self) -> ContainerSetup:
        if self._setup is None:
            raise Unavailable("the process runtime has not been started")
        return self._setup

    # ── observation ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def world(self) -> str:
        """Works before `start`, so that the caller can check whose volumes these are before the sweep."""
        try:
            await self._on_disk(self._volumes.open_root)
        except OSError as error:
            raise Unavailable(f"the volumes at {self.paths.volumes} cannot be reached: {error}") from error
        return f"{self.name}:{self._volumes.identity}"

    async def observe(self, only: frozenset[str] | None = None) -> Survey:
        self._started_setup()
        volumes = await self._list_volumes(only)
        wanted = [name for name in self._containers if only is None or name in only]
        containers = dict(zip(wanted, await asyncio.gather(*map(self._observe_container, wanted)), strict=True))
        return Survey(
            {
                workspace_id: Observation(volumes.get(workspace_id, frozenset()), containers.get(workspace_id))
                for workspace_id in volumes.keys() | {name for name, container in containers.items() if container is not None}
            }
        )

    async def _list_volumes(self, only: frozenset[str] | None) -> dict[str, frozenset[ObservedVolume]]:
        """A disk that hangs blocks one thread, not one more for every observation."""
        if self._hanging is not None and not self._hanging.done():
            raise Unavailable(f"the disk of {self.paths.volumes} does not respond")
        listing = asyncio.ensure_future(asyncio.to_thread(self._volumes.all, only))
        try:
            return await asyncio.wait_for(asyncio.shield(listing), LIST_TIMEOUT_S)
        except TimeoutError as error:
            self._hanging = listing
            raise Unavailable(f"the disk of {self.paths.volumes} does not respond") from error

    async def _observe_container(self, workspace_id: str) -> ObservedContainer | None:
        supervisor = self._containers[workspace_id]
        ready = supervisor.is_running and await self._is_ready(supervisor)
        if self._containers.get(workspace_id) is not supervisor:
            return None if workspace_id not in self._containers else await self._observe_container(workspace_id)
        if not supervisor.is_running and supervisor.ended is None:
            return None  # stopped on request; the caller of `stop` has not removed it from the list yet
        wanted = supervisor.container
        is_paused = supervisor.is_paused and supervisor.ended is None
        return ObservedContainer(
            wanted.home.generation, wanted.revision, ready and supervisor.ended is None, supervisor.ended, is_paused
        )

    async def _is_ready(self, supervisor: Supervisor) -> bool:
        """A paused program keeps its last readiness, since it cannot answer."""
        if not supervisor.is_paused:
            ready = await agent_client.port_answers(supervisor.control, self._options.probe_s)
            if not supervisor.is_paused:  # it may have been paused during the probe
                supervisor.was_ready = ready
        return supervisor.was_ready

    def address(self, workspace_id: str, port: int | None = None) -> Address | None:
        supervisor = self._containers.get(workspace_id)
        if supervisor is None or not supervisor.is_running:
            return None
        if port is None:
            return supervisor.address
        return Address(unix_path=supervisor.ports, preamble=b"%d\n" % port)

    async def logs(self, workspace_id: str, *, tail: int) -> AsyncIterator[bytes]:
        for line in await asyncio.to_thread(logs.tail, self.paths.log(workspace_id), tail):
            yield line

    async def append_log(self, workspace_id: str, lines: bytes) -> None:
        if (supervisor := self._containers.get(workspace_id)) is not None:
            await supervisor.append_log(lines)

    # ── volumes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ensure_volume(self, home: Home, fence: Fence) -> None:
        setup = self._started_setup()
        async with self._exclusive(home.workspace_id, fence):
            await self._on_disk(self._volumes.ensure, home, setup.confinement.user_of(home.workspace_id))
            await self._on_disk(self._volumes.admit, home.workspace_id, fence)

    async def admit(self, workspace_id: str, fence: Fence) -> None:
        async with self._exclusive(workspace_id, fence):
            pass

    async def mark_volume(self, home: Home, marker: Marker, fence: Fence) -> None:
        async with self._exclusive(home.workspace_id, fence):
            await self._on_disk(self._volumes.mark, home, marker)

    async def ensure_no_volume(self, home: Home, fence: Fence, *, archived_revision: int | None) -> None:
        async with self._exclusive(home.workspace_id, fence):
            supervisor = self._containers.get(home.workspace_id)
            present = supervisor is not None and supervisor.is_running and supervisor.container.home == home
            if archived_revision is not None:
                opened = await self._on_disk(self._volumes.opened, home)
                if isinstance(opened, UnreadableFile):
                    message = f"cannot check whether the home was opened after revision {archived_revision} was archived:"
                    message += f" {opened.path} cannot be read ({opened.why}); start the workspace once, or purge it"
                    raise Failed(Code.VOLUME_REOPENED, message, archived=archived_revision)
                if present or opened > archived_revision:
                    message = f"the volume was opened with revision {opened}, the archive is of {archived_revision}"
                    raise Failed(Code.VOLUME_REOPENED, message, opened=opened, archived=archived_revision, container=present)
            if present and supervisor is not None:
                await supervisor.kill()  # the home is given up, and a container needs its volume
            await asyncio.gather(*(job.end() for job in list(self._jobs.get(home, ()))))
            self._remove_later(await self._move_to_trash(home))

    async def ensure_no_half_made(self, home: Home, fence: Fence) -> None:
        async with self._exclusive(home.workspace_id, fence):
            seen = await self._on_disk(self._volumes.seen, home)
            if seen.marker is not None or seen.is_illegible:
                return
            await asyncio.gather(*(job.end() for job in list(self._jobs.get(home, ()))))
            removal = self._remove_later(await self._move_to_trash(home), at_once=True)
        await asyncio.shield(removal)  # the caller waits for the space; when it is cancelled, the removal goes on

    async def _move_to_trash(self, home: Home) -> Path:
        """Move the volume to the trash, if it exists. Its removal is also scheduled if this fails or is cancelled."""
        trashed = self._volumes.trash_path(home)
        try:
            await self._on_disk(self._volumes.move_to_trash, home, trashed)
            if not await self._on_disk(self._volumes.all, frozenset({home.workspace_id})):
                await self._on_disk(logs.remove, self.paths.log(home.workspace_id))
                await self._on_disk(self._forget, home.workspace_id)
        except BaseException:
            self._remove_later(trashed)
            raise
        return trashed

    async def run_at_home(self, home: Home, job: HomeJob, fence: Fence, progress: JobProgress) -> Mapping[str, object]:
        setup = self._started_setup()
        async with self._exclusive(home.workspace_id, fence):
            seen = await self._on_disk(self._volumes.seen, home)
            was_whole = seen.marker is not None or seen.is_illegible
            if (was_whole or not seen.has_home) if job.writes else seen.marker is None:
                why = "it is already complete" if job.writes and was_whole else seen.fault
                raise Failed(Code.VOLUME_NOT_READY, f"no job runs at the volume of generation {home.generation}: {why}")
            name = f"job-{short(home.workspace_id, 16)}-{next(self._numbers)}"
            run = Job(name, f"{self.paths.run.name}/{name}", self.paths.records, setup.cgroups)
            self._jobs[home].add(run)
        try:
            return await run.run(job, self._volumes.home_path(home), progress)
        finally:
            self._jobs[home].discard(run)
            if not self._jobs[home]:
                del self._jobs[home]

    # ── containers ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ensure_running(self, container: Container, fence: Fence, progress: Progress) -> None:
        setup = self._started_setup()
        home = container.home
        async with self._exclusive(home.workspace_id, fence):
            await self._require_marker(home)
        # Outside the lock: an installation takes minutes, and a stop must not wait for it.
        programs = await self._programs.ensure(container.program, progress)
        async with self._exclusive(home.workspace_id, fence):
            await self._require_marker(home)
            await self._on_disk(self._volumes.open, home, container.revision)
            current = self._containers.get(home.workspace_id)
            if current is not None and current.is_running and current.container.home == home:
                current.reopened(container.revision)
                return
            if current is not None:
                await current.stop(self._options.grace_s)
                self._containers.pop(home.workspace_id, None)
            await self._own(home, setup.confinement.user_of(home.workspace_id))
            supervisor = Supervisor(setup, container, self._volumes.home_path(home), programs, self._on_change)
            await supervisor.start()
            self._containers[home.workspace_id] = supervisor

    async def _own(self, home: Home, user: int | None) -> None:
        """A million files take minutes. If the caller is cancelled, the next start continues."""
        given_up = threading.Event()
        await finish_despite_cancel(asyncio.to_thread(self._volumes.own, home, user, given_up.is_set), on_cancel=given_up.set)

    async def _require_marker(self, home: Home) -> None:
        seen = await self._on_disk(self._volumes.seen, home)
        if seen.marker is None:
            raise Failed(Code.VOLUME_NOT_READY, f"the volume of generation {home.generation} is not ready: {seen.fault}")

    async def ensure_no_container(self, workspace_id: str, fence: Fence) -> None:
        async with self._exclusive(workspace_id, fence):
            if (supervisor := self._containers.get(workspace_id)) is not None:
                await supervisor.stop(self._options.grace_s)
                self._containers.pop(workspace_id, None)
                await self._on_disk(self._forget, workspace_id)

    async def execute(self, workspace_id: str, command: Sequence[str], stdin: bytes) -> ExecResult:
        most = self._options.execute_output_bytes
        return await agent_client.execute(self._running(workspace_id).control, command, stdin, most_bytes=most)

    async def start_command(
        self, workspace_id: str, command: Sequence[str], *, terminal: TerminalSize | None = None
    ) -> RunningCommand:
        return await agent_client.start_command(self._running(workspace_id).control, command, terminal=terminal)

    async def shell(self, workspace_id: str, *, columns: int, rows: int) -> Shell:
        return await agent_client.shell(self._running(workspace_id).control, columns=columns, rows=rows)

    def _running(self, workspace_id: str) -> Supervisor:
        supervisor = self._containers.get(workspace_id)
        if supervisor is None or not supervisor.is_running:
            raise Refused("not_running", f"workspace {workspace_id} has no running container")
        return supervisor

    async def work(self, concerns: WorkspaceFilter = any_workspace) -> Mapping[str, Work]:
        supervisors = {name: supervisor for name, supervisor in self._containers.items() if concerns(name)}
        found = await asyncio.to_thread(lambda: {name: supervisor.work() for name, supervisor in supervisors.items()})
        return {name: work for name, work in found.items() if work is not None}

    async def usage(self, concerns: WorkspaceFilter = any_workspace) -> Mapping[str, Usage]:
        supervisors = {name: supervisor for name, supervisor in self._containers.items() if concerns(name)}
        found = await asyncio.to_thread(lambda: {name: supervisor.usage() for name, supervisor in supervisors.items()})
        return {name: usage for name, usage in found.items() if usage is not None}

    async def disk(self) -> Disk | None:
        try:
            return await asyncio.to_thread(self._volumes.disk)
        except OSError as error:
            raise Unavailable(f"cannot read the free space of {self.paths.volumes}: {error}") from error

    async def home_bytes(self, home: Home) -> int | None:
        try:
            await asyncio.to_thread(self._volumes.require_root)
            return await home_size.measure(self._volumes.home_path(home))
        except OSError as error:
            raise Unavailable(f"the home of workspace {home.workspace_id} cannot be measured: {error}") from error

    async def stop_all(self) -> None:
        async def stop_one(workspace_id: str) -> None:
            async with self._lock_of(workspace_id):
                if (supervisor := self._containers.get(workspace_id)) is not None:
                    await supervisor.stop(self._options.grace_s)
                    self._containers.pop(workspace_id, None)

        outcomes = await asyncio.gather(*map(stop_one, list(self._containers)), return_exceptions=True)
        for error in outcomes:
            if error is not None:
                raise error

    # ── locks and threads ─────────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def _exclusive(self, workspace_id: str, fence: Fence) -> AsyncIterator[None]:
        """Run one verb at a time for each workspace, and refuse a controller with an old epoch."""
        self._started_setup()
        async with self._lock_of(workspace_id):
            await self._on_disk(self._volumes.require_root)
            await self._on_disk(self._volumes.admit, workspace_id, fence)
            yield

    def _lock_of(self, workspace_id: str) -> asyncio.Lock:
        lock = self._locks.get(workspace_id)
        if lock is None:
            lock = self._locks[workspace_id] = asyncio.Lock()
        return lock

    def _forget(self, workspace_id: str) -> None:
        """Drop the epoch of a workspace that has neither a container nor a volume."""
        if workspace_id not in self._containers:
            self._volumes.forget(workspace_id)

    async def _on_disk(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run in a thread, to the end even if the caller is cancelled, so that the disk stays consistent."""
        return await finish_despite_cancel(asyncio.to_thread(work, *arguments, **named))

    def _remove_later(self, trashed: Path | None, *, at_once: bool = False) -> "asyncio.Future[None]":
        """Remove trees one after the other in a separate thread: a large one takes minutes. `at_once` does not queue."""
        executor = None if at_once else self._removal_thread
        removal = asyncio.get_running_loop().run_in_executor(executor, self._volumes.empty_trash, trashed)
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)
        return removal
