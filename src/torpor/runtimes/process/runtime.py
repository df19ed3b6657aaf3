"""How do the verbs of the port become processes and directories of this machine?"""

import asyncio
import contextlib
import fcntl
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
from torpor.loops import start_tasks, stop
from torpor.ports import Address, Container, ExecResult, Fence, Home, HomeJob, Progress, RunningCommand, Shell, TerminalSize
from torpor.runtimes.process import agent_client, cgroups, home_size, logs, package_indexes, processes
from torpor.runtimes.process import confinement as abilities
from torpor.runtimes.process.cgroups import Cgroups
from torpor.runtimes.process.confinement import Ability, Confinement, NetworkMode
from torpor.runtimes.process.directory_tree import remove_tree
from torpor.runtimes.process.disk_guard import DiskGuard
from torpor.runtimes.process.host_programs import ToolFailed
from torpor.runtimes.process.jobs import Job
from torpor.runtimes.process.network import VethNetwork
from torpor.runtimes.process.options import ProcessOptions
from torpor.runtimes.process.paths import make_run_directory, runtime_paths, short
from torpor.runtimes.process.programs import Programs
from torpor.runtimes.process.supervisor import ContainerSetup, Supervisor
from torpor.runtimes.process.timeouts import finish_despite_cancel
from torpor.runtimes.process.volume_files import UnreadableFile
from torpor.runtimes.process.volumes import Volumes

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")

LOOK_S = 10.0
"""How long looking through the volumes may take before the disk counts as gone."""


class ProcessRuntime:
    """The embedded default. `start` before anything else, `close` at the end; one per data directory at a time."""

    name = "process"

    def __init__(
        self,
        data_dir: Path,
        *,
        options: ProcessOptions | None = None,
        on_change: Callable[[str], None] = lambda _workspace_id: None,
    ) -> None:
        """`on_change` is told of each container that has ended, or begun to answer: a hint to look, nothing more."""
        self.places = runtime_paths(data_dir)
        self._options = options or ProcessOptions()
        self._on_change = on_change
        self._volumes = Volumes(self.places)
        self._programs = Programs(self.places.programs, f"{self.places.run.name}/install")
        self._equipment: ContainerSetup | None = None
        self._examined: tuple[Confinement, tuple[Ability, ...]] | None = None
        self._lock: int | None = None
        self._containers: dict[str, Supervisor] = {}
        self._jobs: dict[Home, set[Job]] = defaultdict(set)
        self._numbers = itertools.count(1)
        # A door is there while somebody stands in it or before it.
        self._doors: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._fire = ThreadPoolExecutor(1, "burn")
        self._burning: set[asyncio.Future[None]] = set()
        self._stuck: asyncio.Future[dict[str, frozenset[ObservedVolume]]] | None = None
        self._guard: asyncio.Task[None] | None = None

    # ── from first to last ────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Take the data directory, end whatever an earlier life left running, and learn what this machine can confine."""
        if self._equipment is not None:
            return
        self._take()
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
                pass  # every look says so, until it is there again
            else:
                self._burn(None)
        except BaseException as error:
            await finish_despite_cancel(asyncio.to_thread(self._leave_nothing))
            self._give_back()
            if isinstance(error, OSError | ToolFailed):
                raise Hopeless(f"the process runtime cannot start in {self.places.data}: {error}") from error
            raise
        self._equipment = ContainerSetup(self.places, self._options, confinement, groups, veths, notices)
        if self._options.disk_reserve_bytes:
            guard = DiskGuard(
                self._volumes.disk,
                self._options.disk_reserve_bytes,
                self._containers,
                self._on_change,
                ballast=self.places.ballast if self._volumes.is_beside_data() else None,
            )
            [self._guard] = start_tasks(guard.run())

    async def close(self) -> None:
        """Everything ended, nothing left in the machine's network and groups; homes stay."""
        if self._guard is not None:
            await stop(self._guard)
            self._guard = None
        try:
            await self.stop_all()
        except Unavailable as error:
            log.warning("not_all_stopped", why=error.message)  # the next start sweeps
        await self._programs.close()
        await asyncio.gather(*(job.end() for jobs in list(self._jobs.values()) for job in list(jobs)))
        await asyncio.gather(*self._burning, return_exceptions=True)
        self._fire.shutdown(wait=False)
        self._fire = ThreadPoolExecutor(1, "burn")
        if (equipment := self._equipment) is not None:
            if equipment.veths is not None:
                await equipment.veths.remove()
            await asyncio.to_thread(self._leave_nothing)
            self._equipment = None
        self._examined = None
        self._give_back()

    async def abilities(self) -> tuple[Ability, ...]:
        """For `torpor doctor`, the rule about users and the message at the start; may be asked without `start`."""
        _, found = await self._examine()
        return found

    async def _examine(self) -> tuple[Confinement, tuple[Ability, ...]]:
        """Once for each life: what decides how many users may come is what workspaces are started with."""
        if self._examined is None:
            try:
                self._examined = await abilities.examine(self._options, self.places)
            except (OSError, ToolFailed) as error:
                message = f"Torpor could not find out how workspaces can be confined here: {error}"
                raise Hopeless(message) from error
        return self._examined

    def _take(self) -> None:
        """The sweep ends every container of this data directory, so there must be nobody else who owns them."""
        self.places.data.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.places.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise Hopeless(f"another Torpor runs workspaces in {self.places.data}; stop it first") from error
        self._lock = lock

    def _give_back(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _sweep(self) -> None:
        """By group, by what was recorded, by mark: whichever of them this machine had when they were started."""
        # A workspace's user passes through it to the socket of its program; all else in it is closed to others.
        make_run_directory(self.places.run, 0o711)
        self.places.records.mkdir(mode=0o700, exist_ok=True)
        found = cgroups.find()
        if found is not None:
            with contextlib.suppress(OSError):
                Cgroups(found, self.places.tag).sweep()
        processes.sweep(self.places.records)
        processes.end_marked(f"{self.places.run.name}/")
        for path in self.places.run.iterdir():
            if path != self.places.records:
                remove_tree(path)
        self._programs.sweep()

    def _leave_nothing(self) -> None:
        """Of this boot; what is in the data directory stays."""
        if (found := cgroups.find()) is not None:
            Cgroups(found, self.places.tag).remove()
        remove_tree(self.places.run)

    async def _prepare_groups(self, confinement: Confinement) -> Cgroups | None:
        if confinement.hierarchies is None:
            return None
        groups = Cgroups(confinement.hierarchies, self.places.tag)
        try:
            await asyncio.to_thread(groups.prepare)
        except OSError as error:  # looking alone could not tell
            poorer = abilities.without_cgroups(error)
            log.warning("no_cgroups", why=poorer.how)
            self._correct(poorer, abilities.weights_ability(None))
            return None
        if not groups.has_weights:
            self._correct(abilities.weights_ability(groups.hierarchies))
        return groups

    def _correct(self, *poorer: Ability) -> None:
        """What was tried counts, not what looking had found."""
        assert self._examined is not None
        confinement, found = self._examined
        tried = {one.what: one for one in poorer}
        self._examined = confinement, tuple(tried.get(one.what, one) for one in found)

    async def _prepare_network(self, confinement: Confinement) -> VethNetwork | None:
        if confinement.network is not NetworkMode.VETH:
            return None
        veths = VethNetwork(
            self.places.tag,
            confinement.nameservers,
            blocked=self._options.blocked_networks,
            allowed=self._options.allowed_networks,
            closes_published=confinement.closes_published,
        )
        await veths.prepare()
        return veths

    async def _closed_indexes(self, confinement: Confinement) -> tuple[str, ...]:
        """What users should know of the package indexes that this machine is set up with."""
        if confinement.network is NetworkMode.SHARED:
            return ()
        hosts = package_indexes.configured_hosts(os.environ, package_indexes.pip_files(os.environ))
        blocked, allowed = self._options.blocked_networks, self._options.allowed_networks
        found = await package_indexes.unreachable_indexes(hosts, blocked=blocked, allowed=allowed)
        for one in found:
            log.warning("package_index_closed", host=one.host, why=str(one))
        return tuple(map(str, found))

    def _ready(self) -> ContainerSetup:
        if self._equipment is None:
            raise Unavailable("the process runtime has not been started")
        return self._equipment

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def world(self) -> str:
        """May be asked before `start`, so that nobody sweeps before it is known whose volumes these are."""
        try:
            await self._on_disk(self._volumes.open_root)
        except OSError as error:
            raise Unavailable(f"the volumes at {self.places.volumes} cannot be reached: {error}") from error
        return f"{self.name}:{self._volumes.identity}"

    async def observe(self, only: frozenset[str] | None = None) -> Survey:
        self._ready()
        volumes = await self._look(only)
        wanted = [name for name in self._containers if only is None or name in only]
        containers = dict(zip(wanted, await asyncio.gather(*map(self._look_at, wanted)), strict=True))
        return Survey(
            {
                workspace_id: Observation(volumes.get(workspace_id, frozenset()), containers.get(workspace_id))
                for workspace_id in volumes.keys() | {name for name, container in containers.items() if container is not None}
            }
        )

    async def _look(self, only: frozenset[str] | None) -> dict[str, frozenset[ObservedVolume]]:
        """A disk that hangs holds one thread, not one more for every tick."""
        if self._stuck is not None and not self._stuck.done():
            raise Unavailable(f"{self.places.volumes} does not answer")
        looking = asyncio.ensure_future(asyncio.to_thread(self._volumes.all, only))
        try:
            return await asyncio.wait_for(asyncio.shield(looking), LOOK_S)
        except TimeoutError as error:
            self._stuck = looking
            raise Unavailable(f"{self.places.volumes} does not answer") from error

    async def _look_at(self, workspace_id: str) -> ObservedContainer | None:
        supervisor = self._containers[workspace_id]
        ready = supervisor.is_running and await self._answers(supervisor)
        if self._containers.get(workspace_id) is not supervisor:
            return None if workspace_id not in self._containers else await self._look_at(workspace_id)
        if not supervisor.is_running and supervisor.ended is None:
            return None  # ended at our wish, and whoever wished it has not yet come to forget it
        wanted = supervisor.container
        is_paused = supervisor.is_paused and supervisor.ended is None
        return ObservedContainer(
            wanted.home.generation, wanted.revision, ready and supervisor.ended is None, supervisor.ended, is_paused
        )

    async def _answers(self, supervisor: Supervisor) -> bool:
        """A program that is paused is as it was: nothing is to be concluded from its silence."""
        if not supervisor.is_paused:
            ready = await agent_client.port_answers(supervisor.control, self._options.probe_s)
            if not supervisor.is_paused:  # meanwhile
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
        for line in await asyncio.to_thread(logs.tail, self.places.log(workspace_id), tail):
            yield line

    async def append_log(self, workspace_id: str, lines: bytes) -> None:
        if (supervisor := self._containers.get(workspace_id)) is not None:
            await supervisor.append_log(lines)

    # ── volumes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ensure_volume(self, home: Home, fence: Fence) -> None:
        equipment = self._ready()
        async with self._at(home.workspace_id, fence):
            await self._on_disk(self._volumes.ensure, home, equipment.confinement.user_of(home.workspace_id))
            await self._on_disk(self._volumes.admit, home.workspace_id, fence)

    async def admit(self, workspace_id: str, fence: Fence) -> None:
        async with self._at(workspace_id, fence):
            pass

    async def mark_volume(self, home: Home, marker: Marker, fence: Fence) -> None:
        async with self._at(home.workspace_id, fence):
            await self._on_disk(self._volumes.mark, home, marker)

    async def ensure_no_volume(self, home: Home, fence: Fence, *, archived_revision: int | None) -> None:
        async with self._at(home.workspace_id, fence):
            supervisor = self._containers.get(home.workspace_id)
            present = supervisor is not None and supervisor.is_running and supervisor.container.home == home
            if archived_revision is not None:
                opened = await self._on_disk(self._volumes.opened, home)
                if isinstance(opened, UnreadableFile):
                    message = f"whether the home was opened after revision {archived_revision} was archived is not known, since"
                    message += f" {opened.path} cannot be read ({opened.why}); start the workspace once, or purge it"
                    raise Failed(Code.VOLUME_REOPENED, message, archived=archived_revision)
                if present or opened > archived_revision:
                    message = f"the volume was opened with revision {opened}, the archive is of {archived_revision}"
                    raise Failed(Code.VOLUME_REOPENED, message, opened=opened, archived=archived_revision, container=present)
            if present and supervisor is not None:
                await supervisor.kill()  # its owner gave the home up, and a container implies its volume
            await asyncio.gather(*(job.end() for job in list(self._jobs.get(home, ()))))
            self._burn(await self._throw_away(home))

    async def ensure_no_half_made(self, home: Home, fence: Fence) -> None:
        async with self._at(home.workspace_id, fence):
            seen = await self._on_disk(self._volumes.seen, home)
            if seen.marker is not None or seen.is_illegible:
                return
            await asyncio.gather(*(job.end() for job in list(self._jobs.get(home, ()))))
            burning = self._burn(await self._throw_away(home), at_once=True)
        await asyncio.shield(burning)  # the caller waits for the space; when it is cancelled, the removal goes on

    async def _throw_away(self, home: Home) -> Path:
        """The volume is in the grave, if there was one. The grave is also burned when this fails or is cancelled."""
        grave = self._volumes.grave_of(home)
        try:
            await self._on_disk(self._volumes.throw_away, home, grave)
            if not await self._on_disk(self._volumes.all, frozenset({home.workspace_id})):
                await self._on_disk(logs.remove, self.places.log(home.workspace_id))
                await self._on_disk(self._forget, home.workspace_id)
        except BaseException:
            self._burn(grave)
            raise
        return grave

    async def run_at_home(self, home: Home, job: HomeJob, fence: Fence, progress: Progress) -> Mapping[str, object]:
        equipment = self._ready()
        async with self._at(home.workspace_id, fence):
            seen = await self._on_disk(self._volumes.seen, home)
            was_whole = seen.marker is not None or seen.is_illegible
            if (was_whole or not seen.has_home) if job.writes else seen.marker is None:
                why = "it was whole already" if job.writes and was_whole else seen.fault
                raise Failed(Code.VOLUME_NOT_READY, f"no job runs at the volume of generation {home.generation}: {why}")
            name = f"job-{short(home.workspace_id, 16)}-{next(self._numbers)}"
            run = Job(name, f"{self.places.run.name}/{name}", self.places.records, equipment.cgroups)
            self._jobs[home].add(run)
        try:
            return await run.run(job, self._volumes.home_path(home), progress)
        finally:
            self._jobs[home].discard(run)
            if not self._jobs[home]:
                del self._jobs[home]

    # ── containers ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ensure_running(self, container: Container, fence: Fence, progress: Progress) -> None:
        equipment = self._ready()
        home = container.home
        async with self._at(home.workspace_id, fence):
            await self._require_marker(home)
        # Outside the lock: an installation takes minutes, and a wish to stop must not wait for it.
        programs = await self._programs.ensure(container.program, progress)
        async with self._at(home.workspace_id, fence):
            await self._require_marker(home)
            await self._on_disk(self._volumes.open, home, container.revision)
            current = self._containers.get(home.workspace_id)
            if current is not None and current.is_running and current.container.home == home:
                current.reopened(container.revision)
                return
            if current is not None:
                await current.stop(self._options.grace_s)
                self._containers.pop(home.workspace_id, None)
            await self._own(home, equipment.confinement.user_of(home.workspace_id))
            supervisor = Supervisor(equipment, container, self._volumes.home_path(home), programs, self._on_change)
            await supervisor.start()
            self._containers[home.workspace_id] = supervisor

    async def _own(self, home: Home, user: int | None) -> None:
        """A million files take minutes: when the caller is cancelled, the rest is left to the next start."""
        given_up = threading.Event()
        await finish_despite_cancel(asyncio.to_thread(self._volumes.own, home, user, given_up.is_set), on_cancel=given_up.set)

    async def _require_marker(self, home: Home) -> None:
        seen = await self._on_disk(self._volumes.seen, home)
        if seen.marker is None:
            raise Failed(Code.VOLUME_NOT_READY, f"the volume of generation {home.generation} is not ready: {seen.fault}")

    async def ensure_no_container(self, workspace_id: str, fence: Fence) -> None:
        async with self._at(workspace_id, fence):
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

    async def work(self) -> Mapping[str, Work]:
        supervisors = dict(self._containers)
        found = await asyncio.to_thread(lambda: {name: supervisor.work() for name, supervisor in supervisors.items()})
        return {name: work for name, work in found.items() if work is not None}

    async def disk(self) -> Disk | None:
        try:
            return await asyncio.to_thread(self._volumes.disk)
        except OSError as error:
            raise Unavailable(f"the disk of {self.places.volumes} cannot be asked: {error}") from error

    async def home_bytes(self, home: Home) -> int | None:
        try:
            await asyncio.to_thread(self._volumes.require_root)
            return await home_size.measure(self._volumes.home_path(home))
        except OSError as error:
            raise Unavailable(f"the home of workspace {home.workspace_id} cannot be measured: {error}") from error

    async def stop_all(self) -> None:
        async def stop_one(workspace_id: str) -> None:
            async with self._door(workspace_id):
                if (supervisor := self._containers.get(workspace_id)) is not None:
                    await supervisor.stop(self._options.grace_s)
                    self._containers.pop(workspace_id, None)

        outcomes = await asyncio.gather(*map(stop_one, list(self._containers)), return_exceptions=True)
        for error in outcomes:
            if error is not None:
                raise error

    # ── how the verbs take turns ──────────────────────────────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def _at(self, workspace_id: str, fence: Fence) -> AsyncIterator[None]:
        """One verb at a time for one workspace, and none for a controller whose time is over."""
        self._ready()
        async with self._door(workspace_id):
            await self._on_disk(self._volumes.require_root)
            await self._on_disk(self._volumes.admit, workspace_id, fence)
            yield

    def _door(self, workspace_id: str) -> asyncio.Lock:
        door = self._doors.get(workspace_id)
        if door is None:
            door = self._doors[workspace_id] = asyncio.Lock()
        return door

    def _forget(self, workspace_id: str) -> None:
        """Nothing is remembered of a workspace of which nothing is here."""
        if workspace_id not in self._containers:
            self._volumes.forget(workspace_id)

    async def _on_disk(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """In a thread, and to its end: half a rename helps nobody."""
        return await finish_despite_cancel(asyncio.to_thread(work, *arguments, **named))

    def _burn(self, grave: Path | None, *, at_once: bool = False) -> "asyncio.Future[None]":
        """In a thread of its own, which removes one tree after the other: a large one takes minutes. `at_once`: not there."""
        executor = None if at_once else self._fire
        burning = asyncio.get_running_loop().run_in_executor(executor, self._volumes.burn, grave)
        self._burning.add(burning)
        burning.add_done_callback(self._burning.discard)
        return burning
