"""The Kubernetes runtime passes the contract, with the rights of its role, in a namespace with restricted pods."""

import pytest

from tests.contracts.engine_world import EngineWorld
from tests.contracts.runtime_contract import ProgramContract, ProgramWorld, RuntimeContract
from tests.runtimes.kubernetes.conftest import InstalledCluster, MakeRuntime
from torpor.ports import Home, Runtime
from torpor.runtimes.object_labels import home_name

RECORD = ("state", "revision", "epoch", "birth", "nonce", "number", "root", "marker-workspace", "marker-generation")


class OnKubernetes(EngineWorld):
    def __init__(self, installed: InstalledCluster, runtime: Runtime) -> None:
        self.installed = installed
        self.runtime = runtime

    async def destroy_volume(self, home: Home) -> None:
        self.installed.remove_claim(home_name(home))

    def _annotate(self, home: Home, *words: str) -> None:
        self.installed.kubectl("annotate", "--overwrite", "pvc", home_name(home), *words)

    async def spoil_marker(self, home: Home) -> None:
        self._annotate(home, "torpor.state={")

    async def lose_marker(self, home: Home) -> None:
        self._annotate(home, "torpor.state-")

    async def lose_small_files(self, home: Home) -> None:
        self._annotate(home, *(f"torpor.{name}-" for name in (*RECORD, "made")))

    async def lose_provider(self) -> None:
        """The rights of Torpor are revoked."""
        self.installed.revoke_role()

    async def find_provider_again(self) -> None:
        self.installed.bind_role()


class TestKubernetes(RuntimeContract, ProgramContract):
    @pytest.fixture
    async def world(self, installed: InstalledCluster, make_runtime: MakeRuntime) -> ProgramWorld:
        runtime = make_runtime()
        await runtime.start()
        return OnKubernetes(installed, runtime)
