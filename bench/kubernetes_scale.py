"""Measure what many workspaces on Kubernetes cost: an observation, the memory, and the time until a wish is a Pod.

A real API server, etcd, controller manager and scheduler, the real runtime and controller, and a real PostgreSQL. The nodes are
kwok's: pods are scheduled and become Running, but no process runs in them. One process (`bench/kubernetes_agents.py`) answers
for all agents, so a start has all its calls; it leaves out kubelet, images, volumes and the programs.

    look    an observation of all of them, and of one: requests, bytes, time, CPU time of this process and of the API server
    wish    stopped workspaces are requested to run, one after the other: until the Pod exists, and until it runs

It needs the programs of `make kubernetes`, root and the packages of the tests on Kubernetes.

    python bench/kubernetes_scale.py [--workspaces 2000] [--looks 20] [--wishes 100] [--json]
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen, run
from typing import Any

import asyncpg
import pytest
import structlog
import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.control import COLUMNS, LIMITS, PROGRAM, Life
from bench.engines import p95
from bench.kubernetes_agents import ORDERED
from tests.support.kept_logs import LogsInMemory
from tests.support.kubernetes_cluster import IMAGE, KubernetesCluster, cluster, programs
from tests.support.waiting import until

from torpor.accounts import AuthMethod, Caller
from torpor.control.controller import Controller
from torpor.control.effect_executor import EffectExecutor
from torpor.domain.access import EVERY_SCOPE
from torpor.domain.limits import RunningLimits
from torpor.domain.records import Marker
from torpor.domain.states import Wish
from torpor.inside.proof import key_id
from torpor.loops import start_tasks, stop
from torpor.ports import Container, Home
from torpor.runtimes.home_record import HomeRecord, RecordState
from torpor.runtimes.kubernetes import manifests
from torpor.runtimes.kubernetes.cluster_client import CLAIMS, PODS
from torpor.runtimes.kubernetes.listing import MADE, listed_claim
from torpor.runtimes.kubernetes.options import KubernetesOptions, PodOptions
from torpor.runtimes.kubernetes.pods import new_nonce
from torpor.runtimes.kubernetes.runtime import KubernetesRuntime
from torpor.runtimes.object_labels import container_name
from torpor.service.use import UseService
from torpor.service.wishes import Wishes
from torpor.store.controller_store import ControllerStore
from torpor.store.database import Database, Role
from torpor.store.embedded import EmbeddedPostgres
from torpor.store.migrate import migrate
from torpor.store.service_store import ServiceStore
from torpor.store.user_store import UserStore
from torpor.testing.defaults import DEFAULTS, tuning
from torpor.testing.fake_runtime import FakeArchives, FakeWorld

NAMESPACE, INSTALLATION = "workspaces", "bench"
STORAGE, UNBOUND = "bench", "unbound"
"""The classes of the claims of stopped workspaces, and of those that run from the beginning."""
KEY = b"key of the benchmark"
POD_NETWORK = "10.64.0.0/16"
PODS_PER_NODE = 250
REQUESTS_PER_S = 1000
"""Of the controller manager and the scheduler, whose defaults (20 and 50) are for clusters with fewer changes at once."""
SETTLED_S = 300.0
PROBE_S = 30.0
"""One process answers for all agents, one after the other; real ones answer at the same time."""
FIRST_LOOKS = 3
ONE_RUNS_S = 60.0

HAS = {"cpu": "256", "memory": "1Ti", "pods": str(PODS_PER_NODE)}
NODE_STATUS = json.dumps(
    {
        "phase": "Running",
        "capacity": HAS,
        "allocatable": HAS,
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
    }
)
# What kubelet reports about a pod whose agent has started.
POD_STATUS = """
phase: Running
podIP: {{ index (PodIPsWith .spec.nodeName false (or .metadata.uid "") .metadata.name .metadata.namespace) 0 | Quote }}
startTime: {{ Now | Quote }}
conditions: [{type: Initialized, status: "True"}, {type: Ready, status: "True"}, {type: ContainersReady, status: "True"}]
initContainerStatuses:
{{ range .spec.initContainers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  restartCount: 0
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ Now | Quote }}, finishedAt: {{ Now | Quote }}}}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  restartCount: 0
  state: {running: {startedAt: {{ Now | Quote }}}}
{{ end }}
"""
DELETED = ".metadata.deletionTimestamp"


def stage(name: str, kind: str, conditions: list[tuple[str, str, tuple[str, ...]]], then: dict[str, Any]) -> dict[str, Any]:
    """What kwok does with an object for which all these conditions hold."""
    expressions = [
        {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
        for key, operator, values in conditions
    ]
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": expressions},
            "next": then,
        },
    }


STAGES = [
    stage("node", "Node", [(".status.phase", "NotIn", ("Running",))], {"statusTemplate": NODE_STATUS}),
    stage("pod", "Pod", [(DELETED, "DoesNotExist", ()), (".status.phase", "In", ("Pending",))], {"statusTemplate": POD_STATUS}),
    stage("end", "Pod", [(DELETED, "Exists", ())], {"delete": True}),
]


@dataclass(frozen=True)
class Look:
    requests: float
    kilobytes: float
    ms_p50: float
    ms_p95: float
    own_cpu_ms: float
    api_server_cpu_ms: float


@dataclass(frozen=True)
class Result:
    workspaces: int
    listed: Look
    """The lists of an observation, without the agents."""
    observed: Look
    """A whole observation."""
    observed_one: Look
    memory_mb: float
    """Of the process with controller and runtime."""
    memory_before_mb: float
    """Of the same process before the first workspace."""
    wishes: int
    pod_ms_p50: float
    """From the wish in the database until the Pod exists."""
    pod_ms_p95: float
    runs_ms_p50: float
    runs_ms_p95: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspaces", type=int, default=2000)
    parser.add_argument("--looks", type=int, default=20)
    parser.add_argument("--wishes", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        programs("kwok")
        with cluster(nodes=0) as made, made.network():
            make_nodes(made, given.workspaces, given.wishes)
            with answering(made) as created:
                result = asyncio.run(measure(made, created, given.workspaces, given.looks, given.wishes))
    except pytest.skip.Exception as lacking:
        print(f"left out: {lacking}", file=sys.stderr)
        return 0
    print(json.dumps(asdict(result)) if given.json else report(result))
    return 0


# ── the cluster ───────────────────────────────────────────────────────────────────────────────────────────────────────


def make_nodes(made: KubernetesCluster, workspaces: int, volumes: int) -> None:
    """Nodes of kwok, and volumes for the workspaces that will be started; the cluster's own controllers are not limited."""
    control = made.control
    control.components["provisioner"].stop()
    control.restart_controllers(REQUESTS_PER_S)
    stages = control.folder / "stages.yaml"
    stages.write_text(yaml.safe_dump_all(STAGES))
    control.add(
        "kwok",
        {
            "config": stages,
            "kubeconfig": made.kubeconfig,
            "cidr": POD_NETWORK,
            "manage-all-nodes": "true",
            "node-lease-duration-seconds": 40,
        },
    )
    # Connections to the addresses of pods lead to this network's own listener.
    run(["ip", "route", "add", "local", POD_NETWORK, "dev", "lo"], check=True)
    control.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        storage_class(STORAGE, "Immediate"),
        storage_class(UNBOUND, "WaitForFirstConsumer"),
        *(node(number) for number in range(workspaces // PODS_PER_NODE + 1)),
    )
    control.apply(*(volume(number) for number in range(volumes)))
    made.wait_for_service_account(NAMESPACE)


def storage_class(name: str, mode: str) -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": mode,
    }


def node(number: int) -> dict[str, Any]:
    metadata = {"name": f"kwok-{number}", "labels": {"type": "kwok"}, "annotations": {"kwok.x-k8s.io/node": "fake"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"capacity": HAS, "allocatable": HAS}}


def volume(number: int) -> dict[str, Any]:
    spec = {
        "capacity": {"storage": "64Mi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": STORAGE,
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": f"/none/{number}"},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"bench-{number}"}, "spec": spec}


class CreatedPods:
    """When each pod was created, by name; the newest one counts."""

    def __init__(self, agents: "Popen[str]") -> None:
        self.at: dict[str, float] = {}
        self.count = 0
        assert agents.stdout is not None
        threading.Thread(target=self._read, args=(agents.stdout,), daemon=True).start()

    def are_more_than(self, count: int) -> bool:
        return self.count > count

    def _read(self, lines: Iterator[str]) -> None:
        for line in lines:
            name, at = line.split()
            self.at[name] = float(at)
            self.count += 1


@contextmanager
def answering(made: KubernetesCluster) -> Iterator[CreatedPods]:
    program = str(Path(__file__).with_name("kubernetes_agents.py"))
    words = (sys.executable, program, str(made.kubeconfig), NAMESPACE, KEY.hex())
    with Popen(words, stdout=PIPE, text=True) as agents:
        assert agents.stdout is not None
        try:
            assert agents.stdout.readline() == "ready\n"
            yield CreatedPods(agents)
        finally:
            agents.terminate()


# ── measurements ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Stage:
    """A controller on PostgreSQL and the cluster, and a user with many workspaces."""

    def __init__(self, made: KubernetesCluster, url: str, runtime: KubernetesRuntime, controller: Controller) -> None:
        self._made = made
        self._url = url
        self.runtime = runtime
        self.controller = controller
        self.requests: list[Any] = []
        runtime._client._connected().event_hooks["response"].append(self._heard)

    async def _heard(self, response: Any) -> None:
        self.requests.append(response)

    async def not_running(self) -> int:
        connection = await asyncpg.connect(self._url)
        try:
            words = "SELECT count(*) FROM workspaces WHERE phase <> desired_state OR operation <> 'NONE'"
            return int(await connection.fetchval(words))
        finally:
            await connection.close()

    async def until_all(self, within_s: float) -> None:
        async def is_settled() -> bool:
            return await self.not_running() == 0

        await until(is_settled, within_s=within_s, every_s=0.5)

    def api_server_cpu_s(self) -> float:
        process = self._made.control.components["kube-apiserver"].process
        assert process is not None
        return cpu_s(process.pid)

    async def look(self, times: int, observe: Callable[[], Awaitable[object]]) -> Look:
        await observe()
        gc.collect()
        self.requests.clear()
        took_ms: list[float] = []
        own, others = time.process_time(), self.api_server_cpu_s()
        for _ in range(times):
            began = time.perf_counter()
            await observe()
            took_ms.append((time.perf_counter() - began) * 1000)
        received = sum(response.num_bytes_downloaded for response in self.requests)
        return Look(
            requests=len(self.requests) / times,
            kilobytes=round(received / times / 1000, 1),
            ms_p50=round(statistics.median(took_ms), 1),
            ms_p95=round(p95(took_ms), 1),
            own_cpu_ms=round((time.process_time() - own) * 1000 / times, 1),
            api_server_cpu_ms=round((self.api_server_cpu_s() - others) * 1000 / times, 1),
        )


async def measure(made: KubernetesCluster, created: CreatedPods, workspaces: int, looks: int, wishes: int) -> Result:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="torpor-bench-"))
        postgres = await stack.enter_async_context(EmbeddedPostgres(Path(folder)))
        await migrate(postgres.dsn)
        memory_before_mb, began = memory_mb(), time.monotonic()
        stage, wanted, ada = await stack.enter_async_context(staged(made, postgres.dsn, workspaces))
        ids = await populate(stage.runtime, options(made), postgres.dsn, workspaces, standby=wishes)
        say(f"{workspaces} workspaces exist, after {time.monotonic() - began:.0f} s")
        loop = await stack.enter_async_context(controlling(stage.controller))
        # The first pass over all of them writes what it has observed.
        await until(lambda: stage.controller.tally.looks >= FIRST_LOOKS, within_s=SETTLED_S, every_s=0.1)
        await stage.until_all(SETTLED_S)
        memory = memory_mb()
        pod_ms, runs_ms = await waken(stage, wanted, ada, created, [f"w-{number}" for number in range(wishes)])
        await stop(loop)
        listed = await stage.look(looks, stage.runtime._homes.list)
        observed = await stage.look(looks, stage.runtime.observe)
        assert all(one.container is not None and one.container.ready for one in (await stage.runtime.observe()).seen.values())
        one = frozenset({ids[0]})
        observed_one = await stage.look(looks, lambda: stage.runtime.observe(one))
        return Result(
            workspaces,
            listed,
            observed,
            observed_one,
            memory,
            memory_before_mb,
            wishes,
            round(statistics.median(pod_ms), 1),
            round(p95(pod_ms), 1),
            round(statistics.median(runs_ms), 1),
            round(p95(runs_ms), 1),
        )


def options(made: KubernetesCluster) -> KubernetesOptions:
    return KubernetesOptions(
        INSTALLATION,
        IMAGE,
        IMAGE,
        grace_s=1.0,
        user=1000,
        volume_size="64Mi",
        access_mode="ReadWriteOnce",
        kubeconfig=made.kubeconfig,
        namespace=NAMESPACE,
        storage_class=STORAGE,
        probe_s=PROBE_S,
    )


async def populate(runtime: KubernetesRuntime, given: KubernetesOptions, url: str, workspaces: int, standby: int) -> list[str]:
    """Claims, pods and rows of workspaces that run, and of some that are in STANDBY; what a start writes, without its waits."""
    ids = [str(uuid.uuid4()) for _ in range(workspaces)]
    nodes = workspaces // PODS_PER_NODE + 1
    client, at_once = runtime._client, asyncio.Semaphore(16)

    async def create(number: int, workspace_id: str) -> None:
        home, birth = Home(workspace_id, 1), new_nonce()
        marker = Marker(workspace_id, 1, "")
        record = HomeRecord(3, RecordState.READY, marker, 1, 1, birth, new_nonce())
        async with at_once:
            made = manifests.claim(replace(given, storage_class=STORAGE if number < standby else UNBOUND), home, record)
            made["metadata"]["annotations"][MADE] = "true"
            listed = listed_claim(await client.create(CLAIMS, made))
            assert listed is not None
            if number >= standby:
                container, nonce = Container(home, 1, PROGRAM, LIMITS), new_nonce()
                # A chosen node, so that neither the scheduler nor the claim's volume is waited for.
                added = PodOptions(annotations={ORDERED: "true"}, spec={"nodeName": f"kwok-{number % nodes}"})
                pod = manifests.workspace_pod(
                    replace(given, pods=added), container, listed, marker, nonce=nonce, key_id=key_id(KEY), epoch=1
                )
                await client.create(PODS, pod)

    await asyncio.gather(*(create(number, one) for number, one in enumerate(ids)))

    async def all_run() -> bool:
        found = await runtime._homes.list()
        return all(pod.has_started and pod.address for pod in found.pods.values())

    await until(all_run, within_s=SETTLED_S, every_s=1.0)
    connection = await asyncpg.connect(url)
    owner = await connection.fetchval("SELECT id FROM users WHERE username = 'ada'")
    rows = []
    for number, one in enumerate(ids):
        state = "STANDBY" if number < standby else "RUNNING"
        archive = (None,) * 4
        rows.append((one, f"w-{number}", owner, "command", ["true"], state, 86400, 86400, state, 1, 1, True, *archive))
    await connection.copy_records_to_table("workspaces", records=rows, columns=COLUMNS.split())
    await connection.execute("ANALYZE workspaces")
    await connection.close()
    return ids


@asynccontextmanager
async def controlling(controller: Controller) -> AsyncIterator["asyncio.Task[None]"]:
    [loop] = start_tasks(controller.run())
    try:
        yield loop
    finally:
        await stop(loop)


@asynccontextmanager
async def staged(made: KubernetesCluster, url: str, workspaces: int) -> AsyncIterator[tuple[Stage, Wishes, Caller]]:
    controlled, served = await Database.open(url, Role.CONTROLLER), await Database.open(url, Role.SERVICE)
    runtime = KubernetesRuntime(options(made), installation_key=KEY, kept_logs=LogsInMemory())
    await runtime.start()
    store = ControllerStore(controlled, provider="kubernetes")
    executor = EffectExecutor(runtime, FakeArchives(FakeWorld()), lambda _workspace: PROGRAM, LIMITS)
    life = Life(await store.join("bench", await runtime.world(), expiry_s=7200, exclusive=True))
    controller = Controller(
        store,
        executor,
        life=life,
        tuning=tuning(),
        intervals=DEFAULTS.intervals,
        parallel=DEFAULTS.reconciler_parallel,
    )
    service = ServiceStore(served)
    connection = await asyncpg.connect(url)
    await connection.execute("INSERT INTO users (id, username) VALUES ($1, 'ada')", uuid.uuid4())
    await connection.close()
    known = await UserStore(served).by_name("ada")
    assert known is not None
    ada = Caller(known.user, AuthMethod.TOKEN, str(uuid.uuid4()), EVERY_SCOPE, "bench")
    wanted = Wishes(
        service,
        limits=RunningLimits(per_user=workspaces, overall=workspaces),
        ttls=DEFAULTS.ttls,
        new_id=lambda: str(uuid.uuid4()),
        hint=controller.hint,
        using=UseService(service, new_id=lambda: str(uuid.uuid4()), hint=controller.hint, lease_s=DEFAULTS.connection_lease),
    )
    try:
        yield Stage(made, url, runtime, controller), wanted, ada
    finally:
        await runtime.close()
        await controlled.close()
        await served.close()


async def waken(
    stage: Stage, wanted: Wishes, ada: Caller, created: CreatedPods, names: list[str]
) -> tuple[list[float], list[float]]:
    """Start these workspaces one after the other, beside those that run: time to the pod, and to RUNNING."""
    pod_ms, runs_ms = [], []
    for name in names:
        before, began = created.count, time.monotonic()
        workspace = await wanted.wish(ada, name, Wish.RUNNING)
        pod = container_name(workspace.id)
        await until(partial(created.are_more_than, before), within_s=ONE_RUNS_S, every_s=0.001)

        async def runs() -> bool:
            return await stage.not_running() == 0

        await until(runs, within_s=ONE_RUNS_S, every_s=0.005)
        runs_ms.append((time.monotonic() - began) * 1000)
        pod_ms.append((created.at[pod] - began) * 1000)
        say(f"{name}: Pod after {pod_ms[-1]:.0f} ms, running after {runs_ms[-1]:.0f} ms")
    return pod_ms, runs_ms


def memory_mb() -> float:
    gc.collect()
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return round(next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Rss:")) / 1024, 1)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def report(result: Result) -> str:
    def row(name: str, look: Look) -> str:
        took = f"{look.ms_p50} ms (p95 {look.ms_p95})"
        return (
            f"{name}: {look.requests:g} requests, {look.kilobytes} kB, {took}, "
            f"CPU {look.own_cpu_ms} ms here and {look.api_server_cpu_ms} ms in the API server"
        )

    return "\n".join(
        [
            f"{datetime.now():%Y-%m-%d}, {result.workspaces} workspaces",
            row("lists of all", result.listed),
            row("observation of all", result.observed),
            row("observation of one", result.observed_one),
            f"memory: {result.memory_mb} MB, {result.memory_before_mb} MB before the first workspace",
            f"{result.wishes} wishes, one after the other: Pod after {result.pod_ms_p50} ms (p95 {result.pod_ms_p95}), "
            f"running after {result.runs_ms_p50} ms (p95 {result.runs_ms_p95})",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
