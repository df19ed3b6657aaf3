"""Supervise one container: start it, keep its log, pause and stop its processes."""

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

from torpor.domain.busy import Foreground, Work
from torpor.domain.errors import Code, Failed, Unavailable
from torpor.domain.records import ProgramExit
from torpor.domain.usage import Usage
from torpor.inside.process_activity import cpu_and_foregrounds, resident_bytes
from torpor.inside.program import AgentOptions
from torpor.ports import Address, Container
from torpor.runtimes import agent_client
from torpor.runtimes.host_programs import ToolFailed
from torpor.runtimes.placeholders import Placeholders, uses_placeholder
from torpor.runtimes.process import cpu_weight, pasta, pipes, processes, sandbox, user_access
from torpor.runtimes.process.cgroups import Cgroups
from torpor.runtimes.process.confinement import Confinement, NetworkMode
from torpor.runtimes.process.directory_tree import remove_tree
from torpor.runtimes.process.launch import SpawnedProcess, join_cgroups_argv
from torpor.runtimes.process.logs import ContainerLog
from torpor.runtimes.process.network import VethNetwork
from torpor.runtimes.process.options import ProcessOptions
from torpor.runtimes.process.paths import RuntimePaths, make_run_directory, short
from torpor.runtimes.timeouts import finish_despite_cancel

log = structlog.get_logger()

PORT_INSIDE = 7007
"""The program's port in a container with its own network: no development server uses it by default."""
STARTED_WITHIN_S = 10.0
GONE_WITHIN_S = 20.0
"""After SIGKILL. A process that takes longer is blocked in the kernel (a dead network disk), for an unknown time."""
KILL_AGAIN_S = 1.0
BACKLOG = 128


@dataclass(frozen=True, slots=True)
class ContainerSetup:
    """Everything that all containers of this runtime are started with."""

    paths: RuntimePaths
    options: ProcessOptions
    confinement: Confinement
    cgroups: Cgroups | None
    veths: VethNetwork | None
    notices: tuple[str, ...] = ()
    """The first lines of each container's log."""


class AgentSockets(NamedTuple):
    """The descriptors that the agent inherits, see `torpor.inside.agent`."""

    bridge: int
    ports: int
    control: int


class Supervisor:
    """One container from start to clean-up. `ended` is set when it ends by itself."""

    def __init__(
        self,
        setup: ContainerSetup,
        container: Container,
        home: Path,
        programs: Path | None,
        on_change: Callable[[str], None],
    ) -> None:
        self.container = container
        self.ended: ProgramExit | None = None
        self._setup = setup
        self._on_change = on_change
        self._home = home
        self._programs = programs
        self._id = container.home.workspace_id
        self._name = short(self._id, 16)
        self._directory = setup.paths.container(self._id)
        self._program = setup.paths.program(self._id)
        self._log = ContainerLog(setup.paths.log(self._id), setup.options.log_bytes)
        self._log_lock = asyncio.Lock()
        self._spawned: SpawnedProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._agent: processes.ProcessIdentity | None = None
        self._paused: set[processes.ProcessIdentity] = set()
        self._pause_lock = threading.Lock()
        self.was_ready = False
        """The result of the last probe while no process was paused."""
        self._gone = asyncio.Event()
        self.bridge = str(self._directory / "bridge")
        self.address = Address(unix_path=self.bridge)
        self.ports = str(self._directory / "ports")
        self.control = Address(unix_path=str(self._directory / "control"))

    @property
    def is_running(self) -> bool:
        return self._spawned is not None and not self._gone.is_set()

    # ── start ─────────────────────────────────────────────────────────────────────────────────────────────────────────

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
        confinement = self._setup.confinement
        user = confinement.user_of(self._id)
        await asyncio.to_thread(self._prepare, user)
        port = PORT_INSIDE if confinement.network is not NetworkMode.SHARED else free_port()
        with contextlib.ExitStack() as opened:
            bridge = opened.enter_context(listening(self.bridge))
            ports = opened.enter_context(listening(self.ports))
            control = opened.enter_context(listening(str(self._directory / "control")))
            info, info_end = (opened.enter_context(os.fdopen(end, "rb", 0)) for end in os.pipe())
            sockets = AgentSockets(bridge.fileno(), ports.fileno(), control.fileno())
            spawned = self._spawned = SpawnedProcess(
                join_cgroups_argv(self._cgroup_files(), self._argv(user, info_end.fileno())),
                environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", processes.MARK: self._mark},
                pass_fds=(*sockets, info_end.fileno()),
            )
            info_end.close()
            processes.record(self._setup.paths.records, self._name, spawned.pid)
            self._tasks = [asyncio.ensure_future(self._keep_log(spawned)), asyncio.ensure_future(self._watch(spawned))]
            if self._setup.cgroups is None or not self._setup.cgroups.has_weights:
                self._tasks.append(asyncio.ensure_future(cpu_weight.make_nice(spawned, self._cpu_weight)))
            agent: int | None = spawned.pid
            if confinement.bubblewrap is not None:
                agent = await read_agent_pid(info)
                if confinement.network is NetworkMode.PASTA:  # the pid belongs to pasta's PID namespace
                    agent = await asyncio.to_thread(processes.first_of_namespace, spawned.pid, agent)
                elif self._setup.veths is not None:
                    await self._setup.veths.connect(self._id, agent)
            self._agent = processes.identify(agent) if agent is not None else None
            # In a thread: the line can be longer than the pipe holds, and the agent reads it only after its start.
            await asyncio.to_thread(spawned.send_line, self._agent_options(user, port, sockets).line())
            self._tasks.append(asyncio.ensure_future(self._report_ready()))

    def _prepare(self, user: int | None) -> None:
        self._remove_directories()
        make_run_directory(self._directory)
        confinement = self._setup.confinement
        if confinement.bubblewrap is None:  # a sandbox has this directory as a tmpfs
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
        for notice in self._setup.notices:
            self._log.write(f"torpor: {notice}\n".encode())

    def _remove_directories(self) -> None:
        for path in (self._directory, self._program):
            remove_tree(path)

    def _cgroup_files(self) -> list[Path]:
        cgroups = self._setup.cgroups
        return cgroups.make(self._name, self.container.limits, cpu_weight=self._cpu_weight) if cgroups else []

    @property
    def _cpu_weight(self) -> int:
        return self.container.program.cpu_weight

    def _argv(self, user: int | None, info_fd: int) -> list[str]:
        confinement, options = self._setup.confinement, self._setup.options
        if confinement.bubblewrap is None:
            return user_access.agent_argv("start.py")
        spec = sandbox.SandboxSpec(
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
            spec,
            [*sandbox.python_argv(), f"{sandbox.INSIDE}/start.py"],
            mark=self._mark,
            info_fd=info_fd,
        )
        if confinement.network is not NetworkMode.PASTA:
            return argv
        blocked, allowed = options.blocked_networks, options.allowed_networks
        return pasta.argv(argv, nameservers=confinement.nameservers, blocked=blocked, allowed=allowed)

    def _agent_options(self, user: int | None, port: int, sockets: AgentSockets) -> AgentOptions:
        program, confinement = self.container.program, self._setup.confinement
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
        given |= program.own_environment
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
        """Limits without a cgroup: the memory of each process, and the number of the user's processes."""
        if self._setup.cgroups is not None:
            return {}
        limits = self.container.limits
        others = 0 if alone or os.getuid() == 0 else processes.count_of_user(os.getuid())
        return {"RLIMIT_DATA": limits.memory_bytes, "RLIMIT_NPROC": others + limits.processes}

    @property
    def _mark(self) -> str:
        return f"{self._setup.paths.run.name}/{self._name}"

    # ── while it runs ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _keep_log(self, spawned: SpawnedProcess) -> None:
        output = await spawned.output()
        while data := await output.read(1 << 16):
            self._log.remember(data)
            await self.append_log(data)

    async def append_log(self, data: bytes) -> None:
        async with self._log_lock:
            await asyncio.to_thread(self._log.write, data)

    async def _report_ready(self) -> None:
        """Call `on_change` when the program's port answers, so that callers need not poll."""
        answers = agent_client.port_answers(self.control, self._setup.options.probe_s, waits_s=self._setup.options.ready_s)
        if await answers and self.is_running:
            self._on_change(self._id)

    async def _watch(self, spawned: SpawnedProcess) -> None:
        """When the first process ends, end all others, and keep the last lines of output."""
        code = await spawned.wait()
        try:
            while not await self._end_tree():  # the container exists until its last process ends
                await asyncio.sleep(KILL_AGAIN_S)
            await asyncio.wait(self._tasks[:1], timeout=1.0)
            await self._clean_up()
        finally:
            if not self._stopping:
                # The agent returns the exit code of its program, also of a killed one, and is itself killed only from outside.
                self.ended = ProgramExit(code, self._log.last_lines, is_stopped_outside=spawned.is_killed)
            self._gone.set()
            self._on_change(self._id)

    def work(self) -> Work | None:
        """The activity of its processes so far; None if it does not run. Blocks: call it in a thread."""
        cgroups = self._setup.cgroups
        if not self.is_running:
            return None
        cpu_s, foregrounds = cpu_and_foregrounds(self._pids())
        counted_s = cgroups.cpu_s(self._name) if cgroups is not None else None
        used_s = cpu_s if counted_s is None else counted_s
        return Work(self.container.program.template, used_s, tuple(Foreground(*one) for one in foregrounds), self.is_paused)

    def usage(self) -> Usage | None:
        """Its CPU time and memory; None when it does not run. Blocks: call it in a thread."""
        cgroups = self._setup.cgroups
        if not self.is_running:
            return None
        cpu_s = cgroups.cpu_s(self._name) if cgroups is not None else None
        memory_bytes = cgroups.memory_bytes(self._name) if cgroups is not None else None
        if cpu_s is not None and memory_bytes is not None:
            return Usage(cpu_s, memory_bytes)
        pids = self._pids()
        return Usage(
            cpu_and_foregrounds(pids)[0] if cpu_s is None else cpu_s,
            resident_bytes(pids) if memory_bytes is None else memory_bytes,
        )

    def _pids(self) -> set[int]:
        """The processes of this container, seen from outside."""
        spawned, cgroups = self._spawned, self._setup.cgroups
        if spawned is None:
            return set()
        if cgroups is not None:
            return cgroups.members(self._name)
        if self._setup.confinement.bubblewrap is not None:
            identity = processes.identify(spawned.pid)
            return {one.pid for one in processes.tree(identity)} if identity is not None else set()
        return {one.pid for one in processes.find_marked(self._mark)}

    # ── pause and resume ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_paused(self) -> bool:
        return bool(self._paused)

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @property
    def agent(self) -> processes.ProcessIdentity | None:
        """The agent and its parents belong to Torpor and are never paused: commands and the stop go through the agent."""
        return self._agent if self.is_running else None

    def pause(self, pids: Iterable[int]) -> None:
        """Suspend these processes, parents first, also one that was continued from inside. Blocks for a short time."""
        found = [known for pid in pids if (known := processes.identify(pid)) is not None]
        with self._pause_lock:
            self._paused.update(one for one in sorted(found, key=lambda known: known.start_time) if processes.suspend(one))

    def resume(self) -> None:
        """Continue the processes that `pause` suspended, children first, and no others. Blocks for a short time."""
        with self._pause_lock:
            for one in sorted(self._paused, key=lambda known: known.start_time, reverse=True):
                processes.resume(one)
            self._paused.clear()

    def reopened(self, revision: int) -> None:
        """Note that a start with this revision was requested while it runs."""
        self.container = replace(self.container, revision=max(revision, self.container.revision))

    # ── stop ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def stop(self, grace_s: float) -> None:
        """Ask it to end, wait `grace_s`, then kill it. You can repeat or cancel it: the next call continues."""
        if self._spawned is None:
            return
        self._stopping = self._stopping or not self._gone.is_set()
        if not self._gone.is_set():
            # A paused process could not end cleanly.
            self.resume()
            self._spawned.send_line(f"stop {grace_s}\n".encode())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._gone.wait(), grace_s + 1.0)
        if not self._gone.is_set():
            await finish_despite_cancel(self._end_tree())
            try:
                await asyncio.wait_for(self._gone.wait(), GONE_WITHIN_S)
            except TimeoutError as error:
                raise Unavailable(f"processes of workspace {self._id} were killed but have not ended") from error

    async def kill(self) -> None:
        await self.stop(0.0)

    async def _end_tree(self) -> bool:
        """Kill every process of the container, also detached ones. Return whether none is left."""
        setup, spawned = self._setup, self._spawned
        gone = True
        if spawned is not None and (identity := processes.identify(spawned.pid)) is not None and spawned.exit_code is None:
            gone = await asyncio.to_thread(processes.end_tree, identity)
        if setup.cgroups is not None:
            gone &= await asyncio.to_thread(setup.cgroups.end, self._name)
        else:
            gone &= await asyncio.to_thread(processes.end_marked, self._mark)
        if not gone:
            log.warning("container_not_gone", workspace=self._id)
        return gone

    async def _clean_up(self) -> None:
        if self._spawned is not None:
            self._spawned.close_pipes()
        if self._setup.veths is not None:
            await self._setup.veths.disconnect(self._id)
        await asyncio.to_thread(self._remove_directories)
        processes.forget(self._setup.paths.records, self._name)

    async def _remove_remains(self) -> None:
        """Clean up after a start that failed."""
        self._stopping = True
        await self._end_tree()
        if self._tasks:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._gone.wait(), GONE_WITHIN_S)
            # The next sweep handles a process that does not end. The tasks must stop: they would affect the next container.
            for task in self._tasks:
                task.cancel()
            if self._spawned is not None:
                self._spawned.close_pipes()
        else:
            await self._clean_up()


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
    """The process id of the agent, which bubblewrap writes after it has created the namespaces."""
    reader, transport = await pipes.reader(info)
    try:
        told = await asyncio.wait_for(reader.readuntil(b"}"), STARTED_WITHIN_S)
        return int(json.loads(told)["child-pid"])
    except asyncio.IncompleteReadError as error:
        raise ToolFailed("bubblewrap ended before it started the container") from error
    except TimeoutError as error:
        raise ToolFailed(f"bubblewrap did not start the container within {STARTED_WITHIN_S:g} s") from error
    finally:
        transport.close()


def free_port() -> int:
    """A port that is free now. In a shared network it cannot be reserved."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
