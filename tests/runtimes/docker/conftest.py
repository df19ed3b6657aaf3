"""A private engine for all tests of this folder, and a runtime of a new installation for each test."""

import secrets
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.support.docker_engine import DockerEngine, docker_engine
from torpor.runtimes.docker.options import DockerOptions
from torpor.runtimes.docker.runtime import DockerRuntime


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    with docker_engine() as engine:
        yield engine


MakeRuntime = Callable[[], DockerRuntime]


@pytest.fixture
async def make_runtime(engine: DockerEngine) -> AsyncIterator[MakeRuntime]:
    """Each call is another controller of the same installation. Call `start` on it."""
    installation = f"test-{secrets.token_hex(6)}"
    made: list[DockerRuntime] = []

    def make() -> DockerRuntime:
        made.append(DockerRuntime(DockerOptions(engine.url, installation, "none", grace_s=2.0, user=1000)))
        return made[-1]

    yield make
    for runtime in made:
        await runtime.close()


@pytest.fixture
async def runtime(make_runtime: MakeRuntime) -> DockerRuntime:
    runtime = make_runtime()
    await runtime.start()
    return runtime
