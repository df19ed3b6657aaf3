"""A private engine for all tests of this folder, and a runtime of a new installation for each test."""

import secrets
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.support.docker_engine import DockerEngine, docker_engine
from tests.support.engine_kit import build_kit, image_archive
from torpor.runtimes.docker.kit_volume import EngineKit
from torpor.runtimes.docker.options import DockerOptions
from torpor.runtimes.docker.runtime import DockerRuntime


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    with docker_engine() as engine:
        yield engine


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> EngineKit:
    return build_kit(tmp_path_factory.mktemp("kit"))


@pytest.fixture(scope="session")
def image(engine: DockerEngine) -> str:
    engine.docker("import", "-", "torpor-test:1", stdin=image_archive())
    return "torpor-test:1"


@pytest.fixture
def installation() -> str:
    return f"test-{secrets.token_hex(6)}"


MakeRuntime = Callable[[], DockerRuntime]


@pytest.fixture
async def make_runtime(engine: DockerEngine, kit: EngineKit, image: str, installation: str) -> AsyncIterator[MakeRuntime]:
    """Each call is another controller of the same installation. Call `start` on it."""
    made: list[DockerRuntime] = []

    def make() -> DockerRuntime:
        options = DockerOptions(engine.url, installation, image, grace_s=2.0, user=1000, job_image=image)
        made.append(DockerRuntime(options, kit=kit, installation_key=b"key of the tests"))
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
