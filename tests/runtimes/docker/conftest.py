"""A private engine for all tests of this folder, and a runtime of a new installation for each test."""

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import open_folder
from tests.support.container_engine import ContainerEngine
from tests.support.docker_engine import docker_engine
from tests.support.engine_image import image_archive
from tests.support.kept_logs import LogsInMemory
from tests.support.podman_engine import podman_engine
from tests.support.product import Product
from torpor.domain.networks import BLOCKED
from torpor.kit.kit_folder import ensure_kit
from torpor.kit.manifest import Kit
from torpor.runtimes.docker.options import DockerOptions
from torpor.runtimes.docker.runtime import DockerRuntime


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need the engine are in a target of their own (`make test-engines`), but those of `make test-deep`."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and "engine" in getattr(item, "fixturenames", ()):
            item.add_marker("engine" if item.get_closest_marker("deep") is None else "deep")


ENGINES: dict[str, Callable[[], AbstractContextManager[ContainerEngine]]] = {"docker": docker_engine, "podman": podman_engine}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests marked with `both_engines` run on both engines, all others on Docker. See pyproject.toml for the markers."""
    if "engine" in metafunc.fixturenames:
        marks = {mark.name for mark in metafunc.definition.iter_markers()}
        podman: list[object] = []
        if "both_engines" in marks and "docker_only" not in marks:
            podman = [pytest.param("podman", marks=pytest.mark.deep)] if "deep_on_podman" in marks else ["podman"]
        metafunc.parametrize("engine", ["docker", *podman], indirect=True, scope="session")


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Iterator[ContainerEngine]:
    with ENGINES[request.param]() as engine:
        yield engine


@pytest.fixture(scope="session")
def kit() -> Iterator[Kit]:
    with open_folder.open_folder() as data:
        yield ensure_kit(data, os.environ, lambda _done, _total: None)


@pytest.fixture(scope="session")
def packed_image() -> bytes:
    return image_archive()


@pytest.fixture
def image(engine: ContainerEngine, packed_image: bytes) -> str:
    """Imported again if a test has pruned it."""
    name = "torpor-test:1"
    if not engine.docker("images", "--quiet", name):
        engine.docker("import", "-", name, stdin=packed_image)
    return name


@pytest.fixture
def installation() -> str:
    return f"test-{secrets.token_hex(6)}"


INSTALLATION_KEY = b"key of the tests"
MakeRuntime = Callable[..., DockerRuntime]


@pytest.fixture
async def make_runtime(engine: ContainerEngine, kit: Kit, image: str, installation: str) -> AsyncIterator[MakeRuntime]:
    """Each call is another controller of the same installation, with these options. Call `start` on it."""
    made: list[DockerRuntime] = []
    logs = LogsInMemory()

    def make(**changes: Any) -> DockerRuntime:
        # Most tests share two networks and need no firewall rules, which saves a second in each of them.
        options = DockerOptions(
            "docker",
            engine.url,
            installation,
            image,
            grace_s=2.0,
            user=1000,
            isolation=False,
            blocked_networks=BLOCKED,
            network="shared",
            job_image=image,
        )
        made.append(DockerRuntime(replace(options, **changes), kit=kit, installation_key=INSTALLATION_KEY, kept_logs=logs))
        return made[-1]

    with engine.network():
        yield make
        for runtime in made:
            await runtime.close()
    engine.remove_all(installation)


@pytest.fixture
async def runtime(make_runtime: MakeRuntime) -> DockerRuntime:
    runtime = make_runtime()
    await runtime.start()
    return runtime


@pytest.fixture
def product(request: pytest.FixtureRequest, engine: ContainerEngine, image: str, tmp_path: Path) -> Iterator[Product]:
    """`torpor up` on this engine, as a user starts it."""
    environment = {
        "TORPOR_RUNTIME": request.node.callspec.params["engine"],
        "TORPOR_ENGINE_URL": engine.url,
        "TORPOR_WORKSPACE_IMAGE": image,
        "TORPOR_WORKSPACE_STOP_GRACE": "2",
    }
    made = Product(tmp_path / "data", environment=environment)
    with engine.network(), made.running():
        yield made
    engine.remove_installations("torpor-")
