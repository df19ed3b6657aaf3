"""Create, start and stop the containers of workspaces, and talk to their agents."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from torpor.domain.errors import Code, Failed, Unavailable
from torpor.domain.names import OWN_FOLDER
from torpor.domain.records import ContainerLocation, ProgramExit
from torpor.inside import program_end
from torpor.inside.first_orders import Greeting
from torpor.inside.proof import container_key, key_id
from torpor.kit import layout
from torpor.ports import Container
from torpor.runtimes.docker.docker_client import CONFLICT, NOT_FOUND, DockerClient, EngineRefusal
from torpor.runtimes.docker.homes import HOMES, volume_mount
from torpor.runtimes.docker.images import EngineImage, EngineImages
from torpor.runtimes.docker.kit_volume import KitVolume
from torpor.runtimes.docker.listing import ListedContainer
from torpor.runtimes.docker.options import DockerOptions
from torpor.runtimes.home_record import MARKER_FILE
from torpor.runtimes.nameservers import usable_nameservers
from torpor.runtimes.object_labels import KEY, NONCE, TEMPLATE, ObjectKind, container_name, home_labels, home_name
from torpor.runtimes.program_exit import program_exit
from torpor.runtimes.program_orders import HOME, INSIDE, SOCKETS
from torpor.runtimes.running_container import AGENT_PORT, RunningContainer

MARKER_PATH = f"{HOMES}/{OWN_FOLDER}/{MARKER_FILE}"
START_S = 30.0
"""How long the agent of a new container may take until it answers."""
LOOK_S = 0.003
END_LOOK_S, END_LOOKS = 0.1, 20
"""How often, and how many times, the engine is asked about a container whose agent has ended."""
STRAGGLERS_S = 3.0
"""After the grace period: the agent kills what is left and ends."""
KEPT_LOG_LINES = 1000
KEPT_LOG_BYTES = 16 << 10
LAST_LINES = 20
CPU_SHARES = 1024
"""What an engine gives a container of the default weight."""
DEFAULT_WEIGHT = 100


@dataclass(frozen=True, slots=True)
class CreatedContainer:
    """A container that was not started yet."""

    id: str
    workspace_id: str
    nonce: str
    template: str


class EngineContainers:
    def __init__(
        self, client: DockerClient, options: DockerOptions, installation_key: bytes, volume: KitVolume, images: EngineImages
    ) -> None:
        self._client = client
        self._options = options
        self._installation_key = installation_key
        self._key_id = key_id(installation_key)
        self._kit_volume = volume
        self._images = images
        self._ends: dict[str, ProgramExit] = {}
        self._were_ready: set[str] = set()

    def running(self, listed: ListedContainer) -> RunningContainer | None:
        """The container if it runs; None otherwise, and for one with the key of another installation key."""
        labels = listed.labels
        if listed.state != "running" or not listed.address or NONCE not in labels or labels.get(KEY) != self._key_id:
            return None
        return self._running(listed.id, listed.workspace_id, listed.address, labels[NONCE], labels.get(TEMPLATE, ""))

    def _running(self, container: str, workspace_id: str, host: str, nonce: str, template: str) -> RunningContainer:
        location = ContainerLocation(host, AGENT_PORT, nonce, self._key_id)
        return RunningContainer(container, workspace_id, location, template, self._installation_key)

    # ── start ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create(self, container: Container, epoch: int, image: EngineImage) -> CreatedContainer:
        """A new container that does not run yet. There must be none of this workspace."""
        nonce = secrets.token_hex(16)
        workspace_id, network = container.home.workspace_id, self._options.workspace_network
        config = self._config(container, nonce, epoch, image, await self._nameservers())
        try:
            created = await self._client.create_container(container_name(workspace_id), config, network)
        except EngineRefusal as refusal:
            raise _start_failed(refusal) from refusal
        async with self._removed_on_failure(created):
            await self._images.ensure_tmp(created, image)
        return CreatedContainer(created, workspace_id, nonce, container.program.template)

    async def start(self, created: CreatedContainer) -> RunningContainer:
        """Its agent starts, and has no orders yet."""
        greeting = Greeting(container_key(self._installation_key, created.nonce).hex(), AGENT_PORT)
        async with self._removed_on_failure(created.id):
            await self._client.start_with_input(created.id, self._options.workspace_network, greeting.line())
            host = await self._address(created.id)
        return self._running(created.id, created.workspace_id, host, created.nonce, created.template)

    @contextlib.asynccontextmanager
    async def _removed_on_failure(self, container: str) -> AsyncIterator[None]:
        try:
            yield
        except EngineRefusal as refusal:
            await self._client.remove_container(container)
            raise _start_failed(refusal) from refusal
        except Failed:
            await self._client.remove_container(container)
            raise

    async def _nameservers(self) -> tuple[str, ...]:
        """Empty: the engine's own resolver."""
        if self._options.nameservers or not (await self._client.dialect()).resolves_at_gateway:
            return self._options.nameservers
        return usable_nameservers()

    def _config(
        self, container: Container, nonce: str, epoch: int, image: EngineImage, nameservers: tuple[str, ...]
    ) -> dict[str, object]:
        home, program, limits, options = container.home, container.program, container.limits, self._options
        more = {"nonce": nonce, "key": self._key_id, "epoch": str(epoch), "template": program.template}
        return {
            "Image": image.reference,
            "Entrypoint": [*layout.python_argv(), f"{INSIDE}/start_engine_agent.py"],
            "Cmd": [],
            "Env": [f"{name}={value}" for name, value in layout.environment().items()],
            "User": f"{options.user}:{options.user}",
            "WorkingDir": HOME,
            "Hostname": "workspace",
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "StopSignal": "SIGTERM",
            "Healthcheck": {"Test": ["NONE"]},
            "Labels": home_labels(options.installation, ObjectKind.WORKSPACE, home, **more),
            "HostConfig": {
                "Mounts": [volume_mount(home_name(home), HOMES, options.installation), self._kit_volume.mount()],
                # All processes have the same user. Podman cannot give the folder to it.
                "Tmpfs": {SOCKETS: "mode=1777,size=65536"},
                "NetworkMode": options.workspace_network.name,
                "Dns": list(nameservers),
                "RestartPolicy": {"Name": "no"},
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
                "Memory": limits.memory_bytes,
                "MemorySwap": limits.memory_bytes,
                "PidsLimit": limits.processes,
                "NanoCpus": int((limits.cpu_cores or 0) * 10**9),  # 0: all
                "CpuShares": max(2, CPU_SHARES * program.cpu_weight // DEFAULT_WEIGHT),
                "LogConfig": log_config(options.log_bytes),
            },
        }

    async def _address(self, container: str) -> str:
        facts = await self._client.inspect_container(container) or {}
        networks = (facts.get("NetworkSettings") or {}).get("Networks") or {}
        found = next((network["IPAddress"] for network in networks.values() if network.get("IPAddress")), "")
        if not found:
            said = (await self._client.logs(container, LAST_LINES)).decode(errors="replace").strip()
            raise Failed(Code.CONTAINER_START_FAILED, f"the container ended before its agent started: {said}")
        return str(found)

    async def wait_for_agent(self, running: RunningContainer) -> None:
        """Until the agent of a new container answers."""
        loop = asyncio.get_running_loop()
        deadline, look_again = loop.time() + START_S, loop.time() + 1.0
        while True:
            try:
                await running.has_orders()
            except OSError as error:
                failure = error
            else:
                return
            if loop.time() > look_again:
                await self._address(running.id)
                look_again = loop.time() + 1.0
            if loop.time() > deadline:
                message = f"the agent did not answer within {START_S:g} s: {failure}"
                raise Failed(Code.CONTAINER_START_FAILED, message)
            await asyncio.sleep(LOOK_S)

    # ── stop ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def stop(self, listed: ListedContainer) -> bytes:
        """End its processes, and return its last output. The container still exists."""
        if listed.is_live:
            await self._client.stop_container(listed.id, self._options.grace_s + STRAGGLERS_S)
        return await self.last_log(listed)

    async def last_log(self, listed: ListedContainer) -> bytes:
        return (await self._output(listed, KEPT_LOG_LINES))[-KEPT_LOG_BYTES:]

    async def _output(self, listed: ListedContainer, lines: int) -> bytes:
        """The last lines of its program."""
        return program_end.split(await self._client.logs(listed.id, lines + 1))[0]

    async def remove(self, container: str) -> None:
        self._ends.pop(container, None)
        self._were_ready.discard(container)
        await self._client.remove_container(container)

    # ── observation ───────────────────────────────────────────────────────────────────────────────────────────────────

    def knows_end(self, listed: ListedContainer) -> bool:
        return listed.id in self._ends

    async def end_of(self, listed: ListedContainer) -> ProgramExit:
        """How an ended container ended. The engine is asked once for each."""
        if listed.id not in self._ends:
            facts = await self._client.inspect_container(listed.id) or {}
            state = facts.get("State") or {}
            log = await self._client.logs(listed.id, LAST_LINES + 1)
            exit_code, is_out_of_memory = int(state.get("ExitCode", -1)), bool(state.get("OOMKilled"))
            self._ends[listed.id] = program_exit(exit_code, log, is_out_of_memory=is_out_of_memory)
        return self._ends[listed.id]

    def forget_all_but(self, containers: set[str]) -> None:
        """Drop what is known about containers that other controllers have removed."""
        self._were_ready &= containers
        self._ends = {container: end for container, end in self._ends.items() if container in containers}

    async def is_ready(self, running: RunningContainer) -> bool:
        is_ready = await running.is_ready(self._options.probe_s)
        if is_ready:
            self._were_ready.add(running.id)
        return is_ready

    async def after_end(self, listed: ListedContainer, running: RunningContainer) -> ListedContainer:
        """The container again, if it was ready and its agent has just ended: the engine notices the end a moment later."""
        for _ in range(END_LOOKS if listed.id in self._were_ready else 0):
            try:
                await running.has_orders(self._options.probe_s)
            except TimeoutError:  # it hangs, and has not ended
                return listed
            except OSError:
                pass
            else:
                return listed
            state = ((await self._client.inspect_container(listed.id) or {}).get("State") or {}).get("Status", listed.state)
            if state != listed.state:
                return replace(listed, state=str(state))
            await asyncio.sleep(END_LOOK_S)
        return listed

    async def has_orders(self, running: RunningContainer) -> bool | None:
        """None if the container has ended meanwhile; Unavailable if its agent does not answer."""
        try:
            return await running.was_ordered()
        except Unavailable:
            facts = await self._client.inspect_container(running.id) or {}
            if not (facts.get("State") or {}).get("Running"):
                return None
            raise

    # ── the log ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def log(self, listed: ListedContainer, tail: int) -> bytes:
        if (running := self.running(listed)) is not None:
            with contextlib.suppress(OSError):
                return await running.log(tail)
        return await self._output(listed, tail)


def log_config(most_bytes: int) -> dict[str, object]:
    return {"Type": "json-file", "Config": {"max-size": str(most_bytes), "max-file": "2"}}


def _start_failed(refusal: EngineRefusal) -> Failed:
    match refusal.status:
        case status if status == NOT_FOUND:
            return Failed(Code.IMAGE_PULL_INTERRUPTED, f"the engine no longer has the image: {refusal.message}")
        case status if status == CONFLICT:
            return Failed(Code.CONTAINER_START_FAILED, f"another container has its name: {refusal.message}")
        case _:
            code = refusal.code(Code.CONTAINER_START_FAILED)
            return Failed(code, f"the engine did not start the container: {refusal.message}")
