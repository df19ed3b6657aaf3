"""The Kubernetes runtime passes the contract, with the rights of its role, in a namespace with restricted pods."""

import os
import signal
from pathlib import Path

import pytest

from tests.contracts.engine_world import EngineWorld
from tests.contracts.runtime_contract import ProgramContract, ProgramWorld, RuntimeContract
from tests.runtimes.kubernetes.conftest import InstalledCluster, MakeRuntime
from tests.support.product import processes_with
from torpor.ports import Home, Runtime
from torpor.runtimes.object_labels import container_name, home_name

RECORD = ("state", "revision", "epoch", "birth", "nonce", "number", "root", "marker-workspace", "marker-generation")


def agent_of_pod(uid: str) -> int:
    (pid,) = [one for one in processes_with("start_engine_agent") if uid in Path(f"/proc/{one}/cgroup").read_text()]
    return pid


class OnKubernetes(EngineWorld):
    def __init__(self, installed: InstalledCluster, runtime: Runtime) -> None:
        self.installed = installed
        self.runtime = runtime

    async def stop_outside(self, workspace_id: str) -> None:
        """The nodes of the test cluster run on this machine, so the agent's process is one of it."""
        uid = self.installed.kubectl("get", "pod", container_name(workspace_id), "-o", "jsonpath={.metadata.uid}")
        os.kill(agent_of_pod(uid), signal.SIGKILL)

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
