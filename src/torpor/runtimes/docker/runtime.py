"""Run workspaces as containers of a Docker engine: the implementation of `torpor.ports.Runtime`."""

import asyncio
import contextlib
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from functools import partial

import structlog

from torpor.domain.disk import Disk
from torpor.domain.errors import Code, Failed, Refused, Unavailable
from torpor.domain.records import Marker, Observation, ObservedContainer, ObservedVolume, ProgramExit, Survey
from torpor.kit.manifest import Kit
from torpor.loops import stop
from torpor.ports import Container, Fence, Home, HomeJob, JobProgress, KeptLogs, Progress
from torpor.runtimes import record_changes
from torpor.runtimes.ability import Ability
from torpor.runtimes.agent_runtime import AgentRuntime
from torpor.runtimes.change_hints import ChangeHints
from torpor.runtimes.docker import engine_events, isolation
from torpor.runtimes.docker.confinement import abilities
from torpor.runtimes.docker.containers import MARKER_PATH, EngineContainers
from torpor.runtimes.docker.docker_client import DockerClient, EngineRefusal
from torpor.runtimes.docker.firewall import FirewallMissing
from torpor.runtimes.docker.homes import EngineHomes
from torpor.runtimes.docker.images import EngineImage, EngineImages
from torpor.runtimes.docker.isolation import NetworkIsolation
from torpor.runtimes.docker.jobs import EngineJobs
from torpor.runtimes.docker.kit_volume import KitVolume
from torpor.runtimes.docker.listing import EngineListing, ListedContainer, ListedHome
from torpor.runtimes.docker.options import DockerOptions
from torpor.runtimes.fencing import WorkspaceLocks
from torpor.runtimes.home_record import ABSENT, HomeRecord, RecordState
from torpor.runtimes.program_orders import orders
from torpor.runtimes.running_container import RunningContainer
from torpor.runtimes.timeouts import finish_despite_cancel

log = structlog.get_logger()

CHECK_RULES_S = 10.0
"""Between two checks of the firewall rules while workspaces run."""
MOST_HELD_AT_ONCE = 4
"""How many lost holders are created at the same time."""


class DockerRuntime(AgentRuntime):
    """Call `start` first and `close` last. Any number of processes can use one engine."""

    def __init__(
        self,
        options: DockerOptions,
        *,
        kit: Kit,
        installation_key: bytes,
        kept_logs: KeptLogs,
        on_change: Callable[[str], None] = lambda _workspace_id: None,
    ) -> None:
        """`on_change` is called with the workspace of each container that ends or becomes ready. It is only a hint."""
        self.name = options.name
        super().__init__(options.probe_s, kept_logs)
        self._options = options
        self._on_change = on_change
        self._engine = DockerClient(options.engine, options.call_s)
        self._homes = EngineHomes(self._engine, options.installation, options.user)
        self._kit = KitVolume(self._engine, self._homes, options.installation, kit)
        self._images = EngineImages(self._engine, kit, options.registry_credentials)
        self._containers = EngineContainers(self._engine, options, installation_key, self._kit, self._images)
        self._jobs = EngineJobs(self._engine, self._homes, options, installation_key, self._kit)
        self._isolation = NetworkIsolation(self._engine, options)
        self._hints = ChangeHints(partial(engine_events.changes, self._engine, options.installation), on_change)
        self._rules_checked_at = -math.inf
        self._epochs: dict[str, int] = {}
        self._locks = WorkspaceLocks()
        self._holding: dict[Home, asyncio.Task[None]] = {}
        self._holding_identity: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """All work in the background."""

    async def start(self) -> None:
        """Refused if workspaces cannot be confined on this machine."""
        self._engine.connect()
        try:
            await self._isolation.write_rules()
            with contextlib.suppress(Unavailable):  # every observation raises it, until the engine is available
                await self._homes.open_identity()
                await self._isolation.ensure()
                await self._isolation.prove_early()
        except FirewallMissing as missing:
            raise Refused("no_isolation", isolation.refusal(missing)) from missing
        self._in_background(self._hints.run())

    async def abilities(self) -> tuple[Ability, ...]:
        """What the engine confines; Unavailable if it does not answer. Works before `start`, and changes nothing."""
        self._engine.connect()
        return await abilities(self._engine, self._options, self._isolation)

    async def close(self) -> None:
        await stop(*self._tasks)
        await self._images.close()
        await self._engine.close()

    # ── observation ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def world(self) -> str:
        self._engine.connect()
        return f"{self.name}:{await self._homes.open_identity()}"

    async def observe(self, only: frozenset[str] | None = None) -> Survey:
        found = await self._homes.list(only)
        self._hold_again(found)
        self._check_rules()
        volumes: dict[str, set[ObservedVolume]] = {}
        for home, listed in found.homes.items():
            if (seen := listed.seen()) is not None:
                volumes.setdefault(home.workspace_id, set()).add(seen)
        observed = await asyncio.gather(*(self._observe_container(one, found) for one in found.containers.values()))
        containers = dict(zip(found.containers, observed, strict=True))
        self._remember(found, only)
        return Survey(
            {
                workspace_id: Observation(frozenset(volumes.get(workspace_id, ())), containers.get(workspace_id))
                for workspace_id in volumes.keys() | containers.keys()
            }
        )

    async def _observe_container(self, listed: ListedContainer, found: EngineListing) -> ObservedContainer:
        home = listed.home
        assert home is not None
        record = found.of(home).record
        revision = (record.revision if record is not None else None) or 0
        running = self._containers.running(listed)
        ready = running is not None and await self._containers.is_ready(running)
        if running is not None and not ready:
            listed = await self._containers.after_end(listed, running)
        ended = await self._end_of(listed) if listed.has_ended else None
        location = running.location if running is not None else None
        return ObservedContainer(home.generation, revision, ready, ended, location=location)

    async def _end_of(self, listed: ListedContainer) -> ProgramExit:
        """Its log is kept when the end is first seen: it may stay for long, and the API does not ask the engine."""
        is_new = not self._containers.knows_end(listed)
        ended = await self._containers.end_of(listed)
        if is_new and (said := await self._containers.last_log(listed)):
            await self._kept_logs.keep(listed.workspace_id, said)
        return ended

    def _remember(self, found: EngineListing, only: frozenset[str] | None) -> None:
        """Note which containers run, for verbs that do not ask the engine."""
        if only is None:
            self._containers.forget_all_but({listed.id for listed in found.containers.values()})
        self._running.observed({name: self._containers.running(one) for name, one in found.containers.items()}, only)

    def _hold_again(self, found: EngineListing) -> None:
        """Create lost holders again, a few at a time: without them a prune removes the homes.

        That of the identity is first: without the identity all homes are unavailable.
        """
        if not found.is_identity_held and (self._holding_identity is None or self._holding_identity.done()):
            self._holding_identity = self._in_background(self._hold_identity(found))
        lost = [home for home, one in found.homes.items() if one.lacks_holder and home not in self._holding]
        for home in lost[: max(0, MOST_HELD_AT_ONCE - len(self._holding))]:
            self._holding[home] = self._in_background(self._hold_one(home))
            self._holding[home].add_done_callback(partial(self._is_held, home))

    def _is_held(self, home: Home, _done: object) -> None:
        del self._holding[home]

    def _check_rules(self) -> None:
        """From time to time, because workspaces run for days, and a reload of the machine's firewall removes the rules."""
        now = asyncio.get_running_loop().time()
        if self._options.isolation and now - self._rules_checked_at > CHECK_RULES_S:
            self._rules_checked_at = now
            self._in_background(self._restore_rules())

    async def _restore_rules(self) -> None:
        try:
            await self._isolation.restore()
        except FirewallMissing as missing:  # the next check tries again
            log.exception("firewall_rules_missing", how=missing.how, remedy=missing.remedy)

    def _in_background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _hold_identity(self, found: EngineListing) -> None:
        with contextlib.suppress(Unavailable, Failed):  # the next observation tries again
            await self._homes.hold_identity(found)

    async def disk(self) -> Disk | None:
        """The disk is the engine's, and may be on another machine."""
        return None

    async def _hold_one(self, home: Home) -> None:
        async with self._locks.of(home.workspace_id):
            with contextlib.suppress(Unavailable, Failed):  # the next observation tries again
                found = await self._homes.list(frozenset({home.workspace_id}))
                await self._homes.hold(found.of(home), found)

    # ── volumes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ensure_volume(self, home: Home, fence: Fence) -> None:
        nonce, birth = _word(), _word()

        def decide(listed: ListedHome, found: EngineListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.made(listed, fence.epoch, nonce, birth)

        async with self._exclusive(home.workspace_id, fence) as found:
            listed = (await self._homes.change(home, decide, found)).of(home)
            if listed.record is not None and listed.record.state is RecordState.HALF_MADE:
                await self._homes.put_folders(listed)

    async def admit(self, workspace_id: str, fence: Fence) -> None:
        async with self._exclusive(workspace_id, fence):
            pass

    async def mark_volume(self, home: Home, marker: Marker, fence: Fence) -> None:
        nonce = _word()

        def decide(listed: ListedHome, found: EngineListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.marked(listed, marker, fence.epoch, nonce)

        async with self._exclusive(home.workspace_id, fence) as found:
            record_changes.marked(found.of(home), marker, fence.epoch, nonce)  # refuses before any file is written
            await self._homes.put_marker(found.of(home), marker)
            await self._homes.change(home, decide, found)

    async def ensure_no_volume(self, home: Home, fence: Fence, *, archived_revision: int | None) -> None:
        nonce = _word()

        def decide(listed: ListedHome, found: EngineListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.going(
                listed, fence.epoch, nonce, archived_revision=archived_revision, is_running=found.runs_on(home)
            )

        async with self._exclusive(home.workspace_id, fence) as found:
            await self._homes.remove(home, decide, found)

    async def ensure_no_half_made(self, home: Home, fence: Fence) -> None:
        nonce = _word()

        def decide(listed: ListedHome, found: EngineListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.discarded(listed, fence.epoch, nonce)

        async with self._exclusive(home.workspace_id, fence) as found:
            if found.of(home).is_half_made:
                await self._homes.remove(home, decide, found)

    async def run_at_home(self, home: Home, job: HomeJob, fence: Fence, progress: JobProgress) -> Mapping[str, object]:
        async with self._exclusive(home.workspace_id, fence) as found:
            listed = found.of(home)
            record_changes.permit_job(listed, writes=job.writes)
            begun = await finish_despite_cancel(self._jobs.begin(listed, job, fence))
        return await self._finish_job(home, begun, progress)

    async def _finish_job(self, home: Home, begun: str, progress: JobProgress) -> Mapping[str, object]:
        try:
            return await self._jobs.finish(begun, progress)
        except Failed as failure:
            if failure.code is Code.VOLUME_NOT_READY:  # the home was removed during the start
                await self._homes.remove_silent(home)
            raise

    async def home_bytes(self, home: Home) -> int | None:
        try:
            async with self._locks.of(home.workspace_id):
                listed = (await self._homes.list(frozenset({home.workspace_id}))).of(home)
                if listed.birth == ABSENT:
                    return None
                begun = await finish_despite_cancel(self._jobs.begin_measuring(listed))
            return int(str((await self._finish_job(home, begun, lambda _done, _total, _files=None: None))["bytes"]))
        except (Failed, EngineRefusal) as failure:
            raise Unavailable(f"the home of workspace {home.workspace_id} cannot be measured: {failure.message}") from failure

    # ── containers ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ensure_running(self, container: Container, fence: Fence, progress: Progress) -> None:
        home, nonce = container.home, _word()
        if container.program.packages:
            message = f"the template {container.program.template!r} installs packages, which the Docker runtime cannot do"
            raise Failed(Code.PROGRAM_INSTALL_FAILED, f"{message}; use a template with an image that contains them")

        def decide(listed: ListedHome, found: EngineListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.opened(listed, container.revision, fence.epoch, nonce)

        # Without the lock: a pull takes minutes, and changes nothing of the workspace.
        image = await self._images.ensure(container.program.image or self._options.image, progress)
        async with self._exclusive(home.workspace_id, fence) as found:
            record_changes.ready(found.of(home))  # refuses before anything is created
            await self._kit.ensure()
            if found.is_used(home.workspace_id):
                found = await self._homes.change(home, decide, found)
                if await self._runs_already(home, found):
                    return
                await self._jobs.end_all(found.homes_of(home.workspace_id))
            await self._start(container, fence, image, self._homes.change(home, decide, found))

    async def _runs_already(self, home: Home, found: EngineListing) -> bool:
        """Whether a program runs on this home. Any other container of the workspace is removed."""
        if (current := found.containers.get(home.workspace_id)) is None:
            return False
        running = self._containers.running(current)
        has_orders = running is not None and await self._containers.has_orders(running)
        if running is not None and has_orders and current.home == home:
            self._running.add(running)
            return True
        if running is None or has_orders is not False:
            await self._stop(current)
        else:  # no program runs in it
            await self._containers.remove(current.id)
        return False

    async def _start(
        self, container: Container, fence: Fence, image: EngineImage, opening: Coroutine[None, None, EngineListing]
    ) -> None:
        """Open the home while the container starts: its agent runs no program before it gets its orders."""
        home, running = container.home, None
        writing = asyncio.ensure_future(opening)
        try:
            running = await self._started(container, fence.epoch, image)
            found = await writing
            await self._jobs.end_all(found.homes_of(home.workspace_id))  # begun by a controller that was replaced meanwhile
            opened = found.of(home)
            await _side_by_side(self._containers.wait_for_agent(running), self._confined(self._isolation.prove()))
            await self._check(running, opened, fence)
            assert opened.record is not None
            await running.order(
                orders(container, opened.record, image.environment, marker_file=MARKER_PATH, grace_s=self._options.grace_s)
            )
        except (Failed, EngineRefusal):
            await asyncio.wait({writing})
            if running is not None:
                await finish_despite_cancel(self._containers.remove(running.id))
            await self._homes.remove_silent(home)
            raise
        finally:
            await stop(writing)
        self._running.add(running)
        self._in_background(self._report_ready(running))

    async def _started(self, container: Container, epoch: int, image: EngineImage) -> RunningContainer:
        """A new container that runs, behind the firewall rules. None is left if this fails."""
        creating = asyncio.ensure_future(self._containers.create(container, epoch, image))
        try:
            await _side_by_side(creating, self._confined(self._isolation.ensure()))
        except Failed:
            if creating.exception() is None:
                await finish_despite_cancel(self._containers.remove(creating.result().id))
            raise
        return await self._containers.start(creating.result())

    async def _report_ready(self, running: RunningContainer) -> None:
        """Call `on_change` when the program's port answers, so that callers need not poll."""
        if await running.becomes_ready(self._options.probe_s, self._options.ready_s):
            self._on_change(running.workspace_id)

    async def _confined(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except FirewallMissing as missing:
            raise Failed(Code.CONTAINER_START_FAILED, isolation.refusal(missing)) from missing

    async def _check(self, running: RunningContainer, opened: ListedHome, fence: Fence) -> None:
        """Before the orders: this container and this record are still the current ones."""
        found = await self._homes.list(frozenset({running.workspace_id}))
        self._admit(found, running.workspace_id, fence)
        now, current = found.of(opened.home), found.containers.get(running.workspace_id)
        if current is None or current.id != running.id or now.record != opened.record or now.birth != opened.birth:
            raise Failed(Code.CONTAINER_START_FAILED, "the home was changed by another controller during the start")

    async def ensure_no_container(self, workspace_id: str, fence: Fence) -> None:
        async with self._exclusive(workspace_id, fence) as found:
            if (current := found.containers.get(workspace_id)) is not None:
                await self._stop(current)

    async def _stop(self, current: ListedContainer) -> None:
        """Stop and remove it, and keep the end of its log."""
        self._running.remove(current.workspace_id)
        said = await self._containers.stop(current)
        if said:
            await self._kept_logs.keep(current.workspace_id, said)
        await self._containers.remove(current.id)

    async def _container_log(self, workspace_id: str, tail: int) -> bytes | None:
        current = (await self._homes.list(frozenset({workspace_id}))).containers.get(workspace_id)
        return await self._containers.log(current, tail) if current is not None else None

    async def stop_all(self) -> None:
        """Torpor ends; the containers keep running."""

    # ── locks and fences ──────────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def _exclusive(self, workspace_id: str, fence: Fence) -> AsyncIterator[EngineListing]:
        """Run one verb at a time for each workspace, and refuse a controller with an old epoch, now and from now on."""
        async with self._locks.of(workspace_id):
            try:
                found = await self._homes.list(frozenset({workspace_id}))
                self._admit(found, workspace_id, fence)
                for home in [one.home for one in found.homes_of(workspace_id) if one.epoch < fence.epoch]:
                    found = await self._note_epoch(home, fence)
                yield found
            except EngineRefusal as refusal:
                raise Failed(refusal.code(Code.INTERNAL), f"the engine refused a call: {refusal.message}") from refusal

    def _admit(self, found: EngineListing, workspace_id: str, fence: Fence) -> None:
        found.admit(workspace_id, fence, self._epochs.get(workspace_id, 0))
        if found.homes_of(workspace_id):  # without a home no epoch is needed, and the dictionary would grow with every id
            self._epochs[workspace_id] = fence.epoch
        else:
            self._epochs.pop(workspace_id, None)

    async def _note_epoch(self, home: Home, fence: Fence) -> EngineListing:
        nonce = _word()

        def decide(listed: ListedHome, found: EngineListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.admitted(listed, fence.epoch, nonce)

        return await self._homes.change(home, decide)


async def _side_by_side(*work: Awaitable[object]) -> None:
    """Wait for all of them. The first error is raised when all have ended, so that none of them makes anything after that."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _word() -> str:
    return secrets.token_hex(16)
