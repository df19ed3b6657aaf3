"""Test that a container's end is noticed by the engine's events, long before a full resync would find it."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.support.container_engine import ContainerEngine
from tests.support.docker_engine import docker_engine
from tests.support.podman_engine import PodmanEngine, podman_engine
from tests.support.product import Product
from tests.support.waiting import until, wait_until
from torpor.loops import start_tasks, stop
from torpor.runtimes.change_hints import ChangeHints
from torpor.runtimes.docker.docker_client import DockerClient
from torpor.runtimes.docker.engine_events import changed_workspace, changes

RESYNC_S = 3600
NOTICED_WITHIN_S = 20.0
HEARD_WITHIN_S = 3.0
LISTEN = (
    "/opt/torpor/bin/python3",
    "-c",
    "import os, socket, time; s = socket.create_server(('127.0.0.1', int(os.environ['PORT']))); time.sleep(3600)",
)
WORKSPACE = "6a5c8f4e-8f0c-4d4e-9d3b-0a8f8f1c2b3d"
OURS = {"torpor.installation": "ours", "torpor.kind": "workspace", "torpor.workspace": WORKSPACE}


@pytest.fixture
def product(request: pytest.FixtureRequest, engine: ContainerEngine, image: str, tmp_path: Path) -> Iterator[Product]:
    environment = {
        "TORPOR_RUNTIME": request.node.callspec.params["engine"],
        "TORPOR_ENGINE_URL": engine.url,
        "TORPOR_WORKSPACE_IMAGE": image,
        "TORPOR_WORKSPACE_STOP_GRACE": "2",
        "TORPOR_RECONCILER_INTERVAL": str(RESYNC_S),
    }
    made = Product(tmp_path / "data", environment=environment)
    with engine.network(), made.running():
        yield made
    engine.remove_installations("torpor-")


def container_of(engine: ContainerEngine) -> str:
    """The id of the only workspace's running container; empty if there is none."""
    return engine.docker("ps", "--filter", "label=torpor.kind=workspace", "--quiet", "--no-trunc")


def kill_and_wait(engine: ContainerEngine, product: Product) -> None:
    """Kill the container. The product notices it, and starts the program again."""
    killed = container_of(engine)
    revision = product.show("one")["revision"]
    engine.docker("kill", killed)
    product.until("one", lambda shown: bool(shown["revision"] > revision), within_s=NOTICED_WITHIN_S)
    wait_until(lambda: container_of(engine) not in ("", killed), within_s=NOTICED_WITHIN_S)
    product.until("one", lambda shown: bool(shown["phase"] == "RUNNING" and shown["operation"] == "NONE"))


def loop_of(product: Product) -> Callable[[], dict[str, Any] | None]:
    def read() -> dict[str, Any] | None:
        connection = HTTPConnection("127.0.0.1", product.port, timeout=10)
        try:
            connection.request("GET", "/health/ready")
            found: dict[str, Any] | None = json.loads(connection.getresponse().read())["loops"].get("engine-events")
            return found
        finally:
            connection.close()

    return read


@pytest.mark.both_engines
def test_a_killed_container_is_noticed_at_once(product: Product, engine: ContainerEngine) -> None:
    product.ok("create", "one", "--template", "command", "--wait", "--", *LISTEN)
    wait_until(loop_of(product))
    kill_and_wait(engine, product)


def restart_docker(engine: ContainerEngine) -> None:
    engine.stop()
    engine.start()


def restart_podman(engine: ContainerEngine) -> None:
    assert isinstance(engine, PodmanEngine)
    engine.restart_service()


@pytest.mark.anyio
@pytest.mark.engine
@pytest.mark.parametrize(
    ("an_engine", "restart"), [(docker_engine, restart_docker), (podman_engine, restart_podman)], ids=["docker", "podman"]
)
async def test_the_events_resume_after_a_restart_of_the_engine(
    an_engine: Callable[[], AbstractContextManager[ContainerEngine]],
    restart: Callable[[ContainerEngine], None],
    packed_image: bytes,
) -> None:
    with an_engine() as engine:
        client, heard = DockerClient(engine.url, call_s=20.0), list[str]()
        client.connect()
        [listening] = start_tasks(ChangeHints(partial(changes, client, "ours"), heard.append).run())
        try:
            engine.docker("import", "-", "torpor-test:1", stdin=packed_image)
            await until(lambda: hears_an_end(engine, heard))
            restart(engine)
            await until(lambda: hears_an_end(engine, heard))
        finally:
            await stop(listening)
            await client.close()


async def hears_an_end(engine: ContainerEngine, heard: list[str]) -> bool:
    """Whether the end of a new container is heard. The first one may come before the client listens."""
    before = len(heard)
    words = [word for label in OURS.items() for word in ("--label", "=".join(label))]
    container = await asyncio.to_thread(
        engine.docker, "run", "--detach", "--network", "none", *words, "torpor-test:1", "sleep", "600"
    )
    await asyncio.to_thread(engine.docker, "kill", container)
    try:
        await until(lambda: heard[before:], within_s=HEARD_WITHIN_S)
    except TimeoutError:
        return False
    assert set(heard) == {WORKSPACE}
    return True


HOME = f"ws-{WORKSPACE}-home-3"
DIED = {"Type": "container", "Action": "die", "Actor": {"ID": "1", "Attributes": OURS}}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (DIED, WORKSPACE),
        ({**DIED, "Action": "oom"}, WORKSPACE),
        ({**DIED, "Action": "remove"}, WORKSPACE),
        ({**DIED, "Action": "start"}, None),
        ({**DIED, "Actor": {"Attributes": {**OURS, "torpor.installation": "another"}}}, None),
        ({**DIED, "Actor": {"Attributes": {**OURS, "torpor.kind": "holder"}}}, None),
        ({**DIED, "Actor": None}, None),
        ({"Type": "volume", "Action": "destroy", "Actor": {"ID": HOME}}, WORKSPACE),
        (
            {"Type": "volume", "Action": "remove", "Actor": {"ID": "", "Attributes": {"name": HOME}}},
            WORKSPACE,
        ),
        ({"Type": "volume", "Action": "destroy", "Actor": {"ID": f"{HOME}-r4"}}, None),
        ({"Type": "volume", "Action": "destroy", "Actor": {"ID": "another"}}, None),
        ({}, None),
    ],
)
def test_only_the_end_of_a_workspace_or_of_its_home_is_reported(event: dict[str, Any], expected: str | None) -> None:
    assert changed_workspace(event, "ours") == expected
