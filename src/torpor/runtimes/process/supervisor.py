"""How does one container begin, live and end?"""

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, NamedTuple

import structlog

from torpor.domain.busy import Work
from torpor.domain.errors import Code, Failed, Unavailable
from torpor.domain.records import ProgramExit
from torpor.inside.program import AgentOptions
from torpor.ports import Address, Container
from torpor.runtimes.process import agent_client, cpu_weight, pasta, pipes, processes, sandbox, user_access
from torpor.runtimes.process.cgroups import Cgroups
from torpor.runtimes.process.confinement import Confinement, NetworkMode
from torpor.runtimes.process.directory_tree import remove_tree
from torpor.runtimes.process.host_programs import ToolFailed
from torpor.runtimes.process.launch import SpawnedProcess, join_cgroups_argv
from torpor.runtimes.process.logs import ContainerLog
from torpor.runtimes.process.network import VethNetwork
from torpor.runtimes.process.options import ProcessOptions
from torpor.runtimes.process.paths import RuntimePaths, make_run_directory, short
from torpor.runtimes.process.placeholders import Placeholders, uses_placeholder
from torpor.runtimes.process.process_activity import cpu_and_foregrounds
from torpor.runtimes.process.timeouts import finish_despite_cancel

log = structlog.get_logger()

PORT_INSIDE = 7007
"""Of a container with a network of its own: one that no development server takes by default."""
BORN_WITHIN_S = 10.0
GONE_WITHIN_S = 20.0
"""After everything was killed. Longer is what the kernel itself holds (a dead network disk), and nobody can say how long."""
KILL_AGAIN_S = 1.0
BACKLOG = 128


@dataclass(frozen=True, slots=True)
class ContainerSetup:
    """What every container of this runtime is started with."""

    places: RuntimePaths
    options: ProcessOptions
    confinement: Confinement
    cgroups: Cgroups | None
    veths: VethNetwork | None
    notices: tuple[str, ...] = ()
    """What the log of each container begins with."""


class AgentSockets(NamedTuple):
    """The descriptors that the agent is handed, see `torpor.inside.agent`."""

    bridge: int
    ports: int
    control: int


class Supervisor:
    """One container from its start to its remains. `ended` is set when it ended by itself."""

    def __init__(
        self,
        equipment: ContainerSetup,
        container: Container,
        home: Path,
        programs: Path | None,
        on_change: Callable[[str], None],
    ) -> None:
        self.container = container
        self.ended: ProgramExit | None = None
        self._equipment = equipment
        self._on_change = on_change
        self._home = home
        self._programs = programs
        self._id = container.home.workspace_id
        self._name = short(self._id, 16)
        self._directory = equipment.places.container(self._id)
        self._program = equipment.places.program(self._id)
        self._log = ContainerLog(equipment.places.log(self._id), equipment.options.log_bytes)
        self._log_turn = asyncio.Lock()
        self._spawned: SpawnedProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._agent: processes.ProcessIdentity | None = None
        self._paused: set[processes.ProcessIdentity] = set()
        self._pausing = threading.Lock()
        self.was_ready = False
        """At the last look at which no process of it was paused."""
        self._gone = asyncio.Event()
        self.bridge = str(self._directory / "bridge")
        self.address = Address(unix_path=self.bridge)
        self.ports = str(self._directory / "ports")
        self.control = str(self._directory / "control")

    @property
    def is_running(self) -> bool:
        return self._spawned is not None and not self._gone.is_set()

    # ── beginning ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException as error:
            await finish_despite_cancel(self._remove_remains())
            if isinstance(error, OSError | ToolFailed):
                message = f"cannot start the container: {error}\n{self._log.last_lines}".strip()
                raise Failed(Code.CONTAINER_START_FAILED, message) from error
            raise

    async def _start(self) -> None:
        confinement = self._equipment.confinement
        user = confinement.user_of(self._id)
        await asyncio.to_thread(self._prepare, user)
        port = PORT_INSIDE if confinement.network is not NetworkMode.SHARED else free_port()
        with contextlib.ExitStack() as opened:
            bridge = opened.enter_context(listening(self.bridge))
            ports = opened.enter_context(listening(self.ports))
            control = opened.enter_context(listening(self.control))
            info, info_end = (opened.enter_context(os.fdopen(end, "rb", 0)) for end in os.pipe())
            sockets = AgentSockets(bridge.fileno(), ports.fileno(), control.fileno())
            spawned = self._spawned = SpawnedProcess(
                join_cgroups_argv(self._doors(), self._argv(user, info_end.fileno())),
                environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", processes.MARK: self._mark},
                pass_fds=(*sockets, info_end.fileno()),
            )
            info_end.close()
            processes.record(self._equipment.places.records, self._name, spawned.pid)
            self._tasks = [asyncio.ensure_future(self._keep_log(spawned)), asyncio.ensure_future(self._watch(spawned))]
            if self._equipment.cgroups is None or not self._equipment.cgroups.has_weights:
                self._tasks.append(asyncio.ensure_future(cpu_weight.make_nice(spawned, self._cpu_weight)))
            agent: int | None = spawned.pid
            if confinement.bubblewrap is not None:
                agent = await read_agent_pid(info)
                if confinement.network is NetworkMode.PASTA:  # the number is one of pasta's PID namespace
                    agent = await asyncio.to_thread(processes.first_of_namespace, spawned.pid, agent)
                elif self._equipment.veths is not None:
                    await self._equipment.veths.connect(self._id, agent)
            self._agent = processes.identify(agent) if agent is not None else None
            spawned.tell(self._orders(user, port, sockets).line())
            self._tasks.append(asyncio.ensure_future(self._tell_when_ready()))

    def _prepare(self, user: int | None) -> None:
        self._remove_directories()
        make_run_directory(self._directory)
        confinement = self._equipment.confinement
        if confinement.bubblewrap is None:  # a sandbox has this folder in its own memory
            make_run_directory(self._program)
            if user is not None:
                os.chown(self._program, user, user)
        etc = self._directory / "etc"
        etc.mkdir()
        files = sandbox.etc_files(os.getuid() if user is None else user, confinement.nameservers)
        if confinement.network is NetworkMode.SHARED:
            files["resolv.conf"] = sandbox.own_resolvers()
        for name, text in files.items():
            if text:
                (etc / name).write_text(text)
                (etc / name).chmod(0o644)
        self._log.begin()
        for notice in self._equipment.notices:
            self._log.write(f"torpor: {notice}\n".encode())

    def _remove_directories(self) -> None:
        for path in (self._directory, self._program):
            remove_tree(path)

    def _doors(self) -> list[Path]:
        cgroups = self._equipment.cgroups
        return cgroups.make(self._name, self.container.limits, cpu_weight=self._cpu_weight) if cgroups else []

    @property
    def _cpu_weight(self) -> int:
        return self.container.program.cpu_weight

    def _argv(self, user: int | None, info_fd: int) -> list[str]:
        confinement, options = self._equipment.confinement, self._equipment.options
        if confinement.bubblewrap is None:
            return user_access.agent_argv("start.py")
        room = sandbox.SandboxSpec(
            home=self._home,
            etc=self._directory / "etc",
            programs=self._programs,
            user=os.getuid() if user is None else user,
            own_user_namespace=confinement.own_user_namespace,
            own_network=confinement.network is NetworkMode.VETH,
            tmp_bytes=options.tmp_bytes if confinement.bounded_tmp else 0,
        )
        argv = sandbox.argv(
            confinement.bubblewrap,
            room,
            [*sandbox.python_argv(), f"{sandbox.INSIDE}/start.py"],
            mark=self._mark,
            info_fd=info_fd,
        )
        if confinement.network is not NetworkMode.PASTA:
            return argv
        blocked, allowed = options.blocked_networks, options.allowed_networks
        return pasta.argv(argv, nameservers=confinement.nameservers, blocked=blocked, allowed=allowed)

    def _orders(self, user: int | None, port: int, sockets: AgentSockets) -> AgentOptions:
        program, confinement = self.container.program, self._equipment.confinement
        alone = confinement.bubblewrap is not None
        known = Placeholders(
            python=str(sandbox.interpreter()),
            inside=sandbox.INSIDE if alone else str(sandbox.inside_folder()),
            site=sandbox.SITE if alone else str(sandbox.site_folder()),
            programs=sandbox.PROGRAMS if alone else str(self._programs or ""),
            port=port,
            socket=f"{sandbox.PROGRAM if alone else self._program}/socket",
            home=sandbox.HOME if alone else str(self._home),
        )
        words = () if program.is_verbatim else (*program.command, *program.environment.values())
        given = {name: known.fill(value) for name, value in program.environment.items()}
        last = [f"{known.programs}/bin"] if self._programs else []
        last += [str(sandbox.interpreter().parent)]
        environment = sandbox.environment(given, home=known.home, port=port, last_in_path=last)
        if not alone:
            environment[processes.MARK] = self._mark
        return AgentOptions(
            bridge_fd=sockets.bridge,
            ports_fd=sockets.ports,
            control_fd=sockets.control,
            port=port,
            socket=known.socket if uses_placeholder("socket", words) else "",
            home=known.home,
            command=program.command if program.is_verbatim else tuple(map(known.fill, program.command)),
            environment=environment,
            user=user,
            alone=alone,
            own_network=confinement.network is not NetworkMode.SHARED,
            limits=self._resource_limits(alone=alone),
            shown=user_access.needed_directories(self._home, self._programs) if confinement.shows_folders else (),
        )

    def _resource_limits(self, *, alone: bool) -> dict[str, int]:
        """Where no cgroup bounds the whole: each process, and the number of the user's processes."""
        if self._equipment.cgroups is not None:
            return {}
        limits = self.container.limits
        others = 0 if alone or os.getuid() == 0 else processes.count_of_user(os.getuid())
        return {"RLIMIT_DATA": limits.memory_bytes, "RLIMIT_NPROC": others + limits.processes}

    @property
    def _mark(self) -> str:
        return f"{self._equipment.places.run.name}/{self._name}"

    # ── living ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _keep_log(self, spawned: SpawnedProcess) -> None:
        output = await spawned.output()
        while data := await output.read(1 << 16):
            self._log.remember(data)
            await self.append_log(data)

    async def append_log(self, data: bytes) -> None:
        async with self._log_turn:
            await asyncio.to_thread(self._log.write, data)

    async def _tell_when_ready(self) -> None:
        """Whoever waits for its port to answer need not look for that again and again."""
        answers = agent_client.port_answers(
            self.control, self._equipment.options.probe_s, waits_s=self._equipment.options.ready_s
        )
        if await answers and self.is_running:
            self._on_change(self._id)

    async def _watch(self, spawned: SpawnedProcess) -> None:
        """When its first process ends, all of it ends; what it said last is kept."""
        code = await spawned.wait()
        try:
            while not await self._end_tree():  # until it is really gone, the container is there
                await asyncio.sleep(KILL_AGAIN_S)
            await asyncio.wait(self._tasks[:1], timeout=1.0)
            await self._tidy()
        finally:
            if not self._stopping:
                self.ended = ProgramExit(code, self._log.last_lines)
            self._gone.set()
            self._on_change(self._id)

    def work(self) -> Work | None:
        """What its processes have done so far; None when it does not run. Blocks: call it in a thread."""
        spawned, cgroups = self._spawned, self._equipment.cgroups
        if spawned is None or not self.is_running:
            return None
        if cgroups is not None:
            pids = cgroups.members(self._name)
        elif self._equipment.confinement.bubblewrap is not None:
            identity = processes.identify(spawned.pid)
            pids = {one.pid for one in processes.tree(identity)} if identity is not None else set()
        else:
            pids = {one.pid for one in processes.find_marked(self._mark)}
        cpu_s, foregrounds = cpu_and_foregrounds(pids)
        counted_s = cgroups.cpu_s(self._name) if cgroups is not None else None
        used_s = cpu_s if counted_s is None else counted_s
        return Work(self.container.program.template, used_s, foregrounds, self.is_paused)

    # ── pausing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_paused(self) -> bool:
        return bool(self._paused)

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @property
    def agent(self) -> processes.ProcessIdentity | None:
        """Its parents and itself are ours and are never paused: commands and the end of the workspace go through it."""
        return self._agent if self.is_running else None

    def pause(self, pids: Iterable[int]) -> None:
        """Stop these, parents first. Also one that was stopped before and then continued from inside. Blocks, but not for
        long."""
        found = [known for pid in pids if (known := processes.identify(pid)) is not None]
        with self._pausing:
            self._paused.update(one for one in sorted(found, key=lambda known: known.start_time) if processes.suspend(one))

    def go_on(self) -> None:
        """Continue what was paused, children first; nothing that others have stopped. Blocks, but not for long."""
        with self._pausing:
            for one in sorted(self._paused, key=lambda known: known.start_time, reverse=True):
                processes.resume(one)
            self._paused.clear()

    def reopened(self, revision: int) -> None:
        """Asked for again while it runs: it is the container of this revision now."""
        self.container = replace(self.container, revision=max(revision, self.container.revision))

    # ── ending ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def stop(self, grace_s: float) -> None:
        """Ask, wait, kill. Repeating it is harmless, and so is cancelling it: the next call goes on."""
        if self._spawned is None:
            return
        self._stopping = self._stopping or not self._gone.is_set()
        if not self._gone.is_set():
            # What is paused could not end in good order.
            self.go_on()
            self._spawned.tell(f"stop {grace_s}\n".encode())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._gone.wait(), grace_s + 1.0)
        if not self._gone.is_set():
            await finish_despite_cancel(self._end_tree())
            try:
                await asyncio.wait_for(self._gone.wait(), GONE_WITHIN_S)
            except TimeoutError as error:
                raise Unavailable(f"processes of workspace {self._id} were killed and do not end") from error

    async def kill(self) -> None:
        await self.stop(0.0)

    async def _end_tree(self) -> bool:
        """Every process of the container, whatever it did to get away; whether none is left."""
        equipment, spawned = self._equipment, self._spawned
        gone = True
        if spawned is not None and (identity := processes.identify(spawned.pid)) is not None and spawned.exit_code is None:
            gone = await asyncio.to_thread(processes.end_tree, identity)
        if equipment.cgroups is not None:
            gone &= await asyncio.to_thread(equipment.cgroups.end, self._name)
        else:
            gone &= await asyncio.to_thread(processes.end_marked, self._mark)
        if not gone:
            log.warning("container_not_gone", workspace=self._id)
        return gone

    async def _tidy(self) -> None:
        if self._spawned is not None:
            self._spawned.let_go()
        if self._equipment.veths is not None:
            await self._equipment.veths.disconnect(self._id)
        await asyncio.to_thread(self._remove_directories)
        processes.forget(self._equipment.places.records, self._name)

    async def _remove_remains(self) -> None:
        """Of a start that failed half-way."""
        self._stopping = True
        await self._end_tree()
        if self._tasks:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._gone.wait(), GONE_WITHIN_S)
            # One that does not end is left to the next sweep: what watches it must not strike its successor.
            for task in self._tasks:
                task.cancel()
            if self._spawned is not None:
                self._spawned.let_go()
        else:
            await self._tidy()


@contextlib.contextmanager
def listening(path: str) -> Iterator[socket.socket]:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind(path)
        server.listen(BACKLOG)
        yield server
    finally:
        server.close()


async def read_agent_pid(info: IO[bytes]) -> int:
    """The process id of the agent, as bubblewrap tells it once the namespaces stand."""
    reader, transport = await pipes.reader(info)
    try:
        told = await asyncio.wait_for(reader.readuntil(b"}"), BORN_WITHIN_S)
        return int(json.loads(told)["child-pid"])
    except asyncio.IncompleteReadError as error:
        raise ToolFailed("bubblewrap ended before the container was there") from error
    except TimeoutError as error:
        raise ToolFailed(f"bubblewrap did not start the container within {BORN_WITHIN_S:g} s") from error
    finally:
        transport.close()


def free_port() -> int:
    """Free just now; where the network is shared there is no better promise."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
