"""Test controllers of `torpor serve` on Docker that are killed or paused in the middle of an operation: another takes over."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from tests.runtimes.docker.test_serve import docker_installation, page_status
from tests.support.docker_engine import DockerEngine
from tests.support.engine_relay import EngineRelay, engine_relay, store_relay
from tests.support.s3_server import S3Server, s3_server
from tests.support.takeover import NAME, SOON_S, Place, another_controller_finishes_a_pack_and_a_restore
from tests.support.waiting import until
from torpor.kit import layout
from torpor.runtimes.running_container import AGENT_PORT

pytestmark = pytest.mark.anyio


@dataclass
class DockerPlace(Place):
    engine: DockerEngine

    def containers(self, kind: str) -> list[str]:
        return self.engine.docker("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label=torpor.kind={kind}").split()

    def homes(self) -> list[str]:
        """The volumes of the homes, without their records."""
        return self.engine.docker("volume", "ls", "--quiet", "--filter", "label=torpor.kind=home").split()


@pytest.fixture
async def place(
    engine: DockerEngine, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[DockerPlace]:
    bridge = ip_network(engine.docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Subnet}}"))
    with engine.network(), s3_server(str(bridge[1])) as store:
        async with store_relay(store.endpoint) as relay, docker_installation(engine, image, tmp_path) as made:
            for name, value in S3Server(relay.url).environment.items():
                monkeypatch.setenv(name, value)
            await made.serve("api")
            yield DockerPlace(made, relay, engine)
    engine.remove_installations("torpor-")


async def test_another_controller_finishes_a_pack_and_a_restore(place: DockerPlace) -> None:
    await another_controller_finishes_a_pack_and_a_restore(place)


HOLDS: dict[str, Callable[[str], bool]] = {
    "before the home is marked": lambda line: line.startswith("POST ") and "/volumes/create" in line,
    "before its volume is removed": lambda line: line.startswith("DELETE ") and "/volumes/ws-" in line and "-r" not in line,
}


async def test_a_home_survives_a_controller_that_is_paused_before_it_removes_it(place: DockerPlace) -> None:
    """The home is archived, and the user wants it again. Another controller finishes the removal and restores the home.

    That it may also be opened instead is tested without the product (`test_held_removal.py`).
    """
    here = place.here
    async with contextlib.AsyncExitStack() as stack:
        relays: dict[str, EngineRelay] = {}
        for _ in range(2):
            relay = await stack.enter_async_context(engine_relay(place.engine.url))
            relays[(await replace(place.made, of_controllers={"engine_url": relay.url}).serve("controller")).name] = relay
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


async def test_a_stale_route_does_not_reach_a_stranger(place: DockerPlace, image: str) -> None:
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
