"""Test controllers of `torpor serve` on Docker that are killed or paused in the middle of an operation: another takes over."""

import asyncio
import contextlib
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path

import asyncpg
import pytest

from tests.runtimes.docker.test_serve import Installation, installation, page_status, revisions_of
from tests.support.cluster import Cluster, Node
from tests.support.docker_engine import DockerEngine
from tests.support.engine_relay import EngineRelay, engine_relay, store_relay
from tests.support.s3_server import S3Server, s3_server
from tests.support.waiting import until
from torpor.kit import layout
from torpor.runtimes.running_container import AGENT_PORT

pytestmark = pytest.mark.anyio

NAME = "demo"
SOON_S = 60.0
"""Until another controller has taken over and finished, on a busy machine."""
WRITE = "head -c 300000 /dev/urandom > noise; echo mine > file"
READ = "stat -c '%n %a %s %Y %u' * && cat noise file"


@dataclass
class Place:
    """One workspace on a Docker engine, with an archive store whose requests can be held."""

    made: Installation
    engine: DockerEngine
    store: EngineRelay

    @property
    def here(self) -> Cluster:
        return self.made.here

    async def created(self) -> bytes:
        """The content of the new workspace."""
        await self.here.create(NAME)
        await self.here.until_served(within_s=SOON_S)
        await self.execute(WRITE)
        return await self.content()

    async def content(self) -> bytes:
        """The facts about all files, and what is in them."""
        return await self.execute(READ)

    async def execute(self, script: str) -> bytes:
        done = await self.here.accepted("POST", f"/workspaces/{NAME}/exec", {"command": ["sh", "-c", script]})
        assert done["exit_code"] == 0, done
        return b64decode(done["stdout"])

    async def holder(self) -> Node | None:
        """The controller that has begun the operation in progress, if it lives."""
        connection = await asyncpg.connect(self.here.postgres.dsn)
        try:
            found = await connection.fetchval("SELECT node_id FROM controllers c JOIN workspaces w ON w.held_by = c.epoch")
        finally:
            await connection.close()
        return next((node for node in self.here.living("controller") if node.name == found), None)

    async def kill_holder(self) -> None:
        killed = await self.holder()
        assert killed is not None
        await killed.kill()

    def containers(self, kind: str) -> list[str]:
        """The ids of all containers of this kind."""
        return self.engine.docker("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label=torpor.kind={kind}").split()

    def homes(self) -> list[str]:
        """The volumes of the homes, without their records."""
        return self.engine.docker("volume", "ls", "--quiet", "--filter", "label=torpor.kind=home").split()


@pytest.fixture
async def place(engine: DockerEngine, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    bridge = ip_network(engine.docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Subnet}}"))
    with engine.network(), s3_server(str(bridge[1])) as store:
        async with store_relay(store.endpoint) as relay, installation(engine, image, tmp_path, store) as made:
            for name, value in S3Server(relay.url).environment.items():
                monkeypatch.setenv(name, value)
            await made.serve("api")
            yield Place(made, engine, relay)
    engine.remove_installations("torpor-")


async def test_another_controller_finishes_a_pack_and_a_restore(place: Place) -> None:
    here, store = place.here, place.store
    await asyncio.gather(*(place.made.serve("controller") for _ in range(2)))
    before = await place.created()
    revisions = await revisions_of(here)

    store.hold(lambda line: line.startswith("PUT ") and "home.tar.zst" in line)
    await here.wish(NAME, "ARCHIVED")
    await until(lambda: store.held, within_s=SOON_S)
    (packing,) = place.containers("job")
    await place.kill_holder()
    await until(place.holder, within_s=SOON_S)
    store.release()
    await here.until_served(within_s=SOON_S)
    assert place.containers("job") == place.containers("workspace") == []
    uploads = [line for line in store.requests if "?uploads" in line]
    assert len(uploads) == 1, f"the next controller did not continue with the job {packing} that ran"

    await place.made.serve("controller")
    store.held.clear()
    store.hold(lambda line: line.startswith("GET ") and "home.tar.zst" in line)
    await here.wish(NAME, "RUNNING")
    await until(lambda: store.held, within_s=SOON_S)
    (restoring,) = place.containers("job")
    await place.kill_holder()
    await until(lambda: len(store.held) > 1, within_s=SOON_S)
    (again,) = place.containers("job")
    assert again != restoring, "the next controller begins a restore again"
    store.release()
    await here.until_served(within_s=SOON_S)
    assert await place.content() == before
    assert place.containers("job") == []
    assert len(place.containers("workspace")) == 1
    assert (await revisions_of(here))[NAME] == revisions[NAME] + 1, "of the start after the restore, and of no takeover"


HOLDS: dict[str, Callable[[str], bool]] = {
    "before the home is marked": lambda line: line.startswith("POST ") and "/volumes/create" in line,
    "before its volume is removed": lambda line: line.startswith("DELETE ") and "/volumes/ws-" in line and "-r" not in line,
}


async def test_a_home_survives_a_controller_that_is_paused_before_it_removes_it(place: Place) -> None:
    """The home is archived, and the user wants it again. Another controller finishes the removal and restores the home.

    That it may also be opened instead is tested without the product (`test_held_removal.py`).
    """
    here = place.here
    async with contextlib.AsyncExitStack() as stack:
        relays: dict[str, EngineRelay] = {}
        for _ in range(2):
            relay = await stack.enter_async_context(engine_relay(place.engine.url))
            relays[(await replace(place.made, engine_url=relay.url).serve("controller")).name] = relay
        before = await place.created()
        for where, chosen in HOLDS.items():
            for relay in relays.values():
                relay.held.clear()
                relay.hold(chosen)
            await here.wish(NAME, "ARCHIVED")
            paused = await until(
                lambda: next((node for node in here.living("controller") if relays[node.name].held), None), within_s=SOON_S
            )
            late, others = relays[paused.name], [relay for name, relay in relays.items() if name != paused.name]
            assert (await here.rows())[0]["operation"] == "ARCHIVING", where
            paused.pause()
            for relay in others:
                relay.release()
            await here.wish(NAME, "RUNNING")
            await here.until_served(within_s=SOON_S)
            (container,) = place.containers("workspace")
            sent = len(late.requests)
            late.release()
            paused.go_on()
            await until(lambda late=late, sent=sent: len(late.requests) > sent, within_s=SOON_S)  # type: ignore[misc]
            assert chosen(late.requests[sent]), "the late request has reached the engine"
            await until(paused.health, within_s=SOON_S)
            assert await place.content() == before, where
            await here.until_served(within_s=SOON_S)
            assert place.containers("workspace") == [container], where
            # An empty record of the earlier home may stay: the paused controller ended after it wrote it.
            await until(lambda: len(place.homes()) == 1, otherwise=lambda: str(place.homes()))


# ── stale routes ──────────────────────────────────────────────────────────────────────────────────────────────────────

LISTENS = """
import socket, sys
server = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("up", flush=True)
while True:
    connection, _ = server.accept()
    connection.settimeout(1)
    try:
        connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 8\\r\\n\\r\\nstranger")
        while data := connection.recv(65536):
            print("heard", data, flush=True)
    except OSError:
        pass
    connection.close()
"""


async def test_a_stale_route_does_not_reach_a_stranger(place: Place, image: str) -> None:
    """The proxy knows an address. The engine has given it to another container meanwhile, and no controller lives."""
    here, engine = place.here, place.engine
    controller, proxy = [await place.made.serve(role) for role in ("controller", "proxy")]
    await place.created()
    assert await asyncio.to_thread(page_status, proxy, NAME, here.token) == 200
    await controller.kill()
    (container,) = place.containers("workspace")
    networks = json.loads(engine.docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", container))
    ((network, facts),) = networks.items()
    engine.docker("rm", "--force", container)
    kit = engine.docker("volume", "ls", "--quiet", "--filter", "label=torpor.kind=kit").split()[0]
    options = ("--detach", "--network", network, "--volume", f"{kit}:{layout.MOUNT}:ro")
    stranger = engine.docker("run", *options, image, *layout.python_argv(), "-c", LISTENS, str(AGENT_PORT))
    try:
        address = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        assert engine.docker("inspect", "--format", address, stranger) == facts["IPAddress"], "otherwise this shows nothing"
        await until(lambda: "up" in engine.docker("logs", stranger))
        for _ in range(3):
            assert await asyncio.to_thread(page_status, proxy, NAME, here.token) in (0, 502, 503, 504)
        heard = engine.docker("logs", stranger)
        assert "heard" in heard, "it was asked for its proof"
        assert "GET" not in heard
        assert here.token not in heard
        await place.made.serve("controller")
        await until(lambda: asyncio.to_thread(lambda: page_status(proxy, NAME, here.token) == 200), within_s=SOON_S)
    finally:
        engine.docker("rm", "--force", stranger)
