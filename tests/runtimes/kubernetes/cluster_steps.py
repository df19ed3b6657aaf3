"""What tests on a cluster do to pods and homes."""

import json
from pathlib import Path
from typing import Any

from tests.contracts.engine_world import EngineWorld
from tests.contracts.runtime_contract import FENCE, a_home, marker_of, unheard, until_ready
from tests.runtimes.kubernetes.conftest import InstalledCluster
from tests.runtimes.kubernetes.test_kubernetes_contract import OnKubernetes
from torpor.ports import Home, Runtime
from torpor.runtimes.object_labels import container_name, home_name

START_S = 90.0


async def ready(runtime: Runtime, home: Home | None = None) -> Home:
    home = home or a_home()
    await runtime.ensure_volume(home, FENCE)
    await runtime.mark_volume(home, marker_of(home), FENCE)
    return home


async def running(installed: InstalledCluster, runtime: Runtime, home: Home | None = None, revision: int = 1) -> Home:
    home = home or await ready(runtime)
    world = OnKubernetes(installed, runtime)
    await runtime.ensure_running(world.serving(home, revision), FENCE, unheard)
    await until_ready(world, home, START_S)
    return home


def world_of(installed: InstalledCluster, runtime: Runtime) -> EngineWorld:
    return OnKubernetes(installed, runtime)


def pod_of(installed: InstalledCluster, home: Home) -> dict[str, Any] | None:
    found = installed.kubectl("get", "pod", container_name(home.workspace_id), "--ignore-not-found", "--output", "json")
    return json.loads(found) if found.strip() else None


def uid_of(installed: InstalledCluster, home: Home) -> str:
    pod = pod_of(installed, home)
    return str(pod["metadata"]["uid"]) if pod is not None else ""


def files_of(installed: InstalledCluster, home: Home) -> Path:
    """The folder of the home on its node."""
    claim = installed.get("pvc", home_name(home))
    return installed.cluster.volumes / str(claim["spec"]["volumeName"]) / "home"


def jobs_of(installed: InstalledCluster, home: Home) -> list[str]:
    selector = f"torpor.kind=job,torpor.workspace={home.workspace_id}"
    return installed.kubectl("get", "pods", "--selector", selector, "--output", "name").split()


def secrets_of(installed: InstalledCluster, home: Home) -> list[str]:
    selector = f"torpor.workspace={home.workspace_id}"
    return installed.kubectl("get", "secrets", "--selector", selector, "--output", "name").split()
