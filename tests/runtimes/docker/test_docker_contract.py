"""The Docker runtime passes the contract, on Docker and on Podman."""

import pytest

from tests.contracts.engine_world import EngineWorld
from tests.contracts.runtime_contract import ProgramContract, ProgramWorld, RuntimeContract
from tests.runtimes.docker.conftest import MakeRuntime
from tests.support.container_engine import ContainerEngine
from torpor.ports import Home, Runtime
from torpor.runtimes.object_labels import container_name, home_name


class OnDocker(EngineWorld):
    def __init__(self, engine: ContainerEngine, runtime: Runtime, installation: str) -> None:
        self.engine = engine
        self.runtime = runtime
        self.identity = f"{installation}-identity"
        self._lost: dict[str, str] = {}

    async def stop_outside(self, workspace_id: str) -> None:
        self.engine.docker("kill", container_name(workspace_id))

    def _containers(self, home: Home) -> list[str]:
        return self.engine.docker("ps", "--all", "--quiet", "--filter", f"name={home_name(home)}").split()

    def _records(self, home: Home) -> list[str]:
        return self.engine.docker("volume", "ls", "--quiet", "--filter", f"name={home_name(home)}-r").split()

    def _labelled(self, name: str, labels: dict[str, str]) -> None:
        given = [word for label, value in labels.items() for word in ("--label", f"{label}={value}")]
        self.engine.docker("volume", "create", *given, name)

    async def destroy_volume(self, home: Home) -> None:
        self.engine.docker("rm", "--force", *self._containers(home))
        self.engine.docker("volume", "rm", home_name(home))

    async def spoil_marker(self, home: Home) -> None:
        (record,) = self._records(home)
        labels = self.engine.labels_of(record)
        await self.lose_small_files(home)
        self._labelled(record, {**labels, "torpor.state": "{"})

    async def lose_marker(self, home: Home) -> None:
        """The record goes, and a container still refers to the home."""
        await self.lose_small_files(home)
        labels = [f"torpor.{word}" for word in ("workspace", "generation", "installation")]
        found = self.engine.labels_of(home_name(home))
        given = [word for label in labels for word in ("--label", f"{label}={found[label]}")]
        given += ["--label", "torpor.kind=holder", "--label", "torpor.number=0"]
        name = f"{home_name(home)}-r0-holder"
        self.engine.docker("create", "--name", name, *given, "--volume", f"{home_name(home)}:/volume", "torpor-empty:1", "x")

    async def lose_small_files(self, home: Home) -> None:
        self.engine.docker("rm", "--force", *self._containers(home))
        self.engine.docker("volume", "rm", *self._records(home))

    async def lose_provider(self) -> None:
        """Another data directory: the engine answers, and its identity is another one."""
        self._lost = self.engine.labels_of(self.identity)
        self.engine.docker("rm", "--force", f"{self.identity}-holder")
        self.engine.docker("volume", "rm", self.identity)

    async def find_provider_again(self) -> None:
        self._labelled(self.identity, self._lost)


@pytest.mark.both_engines
class TestDocker(RuntimeContract, ProgramContract):
    @pytest.fixture
    async def world(self, engine: ContainerEngine, make_runtime: MakeRuntime, installation: str) -> ProgramWorld:
        runtime = make_runtime()
        await runtime.start()
        return OnDocker(engine, runtime, installation)
