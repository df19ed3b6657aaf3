"""Measure the start of a workspace on a Kubernetes cluster, compared with `kubectl apply` of the same pod.

`bench/engines.py --kubernetes` runs it. One cluster with one node, the same home, image and program, in turn:

    bare    `kubectl apply` of Torpor's own pod and Secret, whose main container runs the program instead of the agent, until
            the program's port answers
    calls   the same with two calls of the API, without the process of kubectl
    wake    a request to a stopped workspace, until the first byte of the program's answer

The address of a bare pod is read by calls of the API in short intervals. It starts a private cluster, as the tests do (root,
`make kubernetes`, the packages of the tests on Kubernetes).
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
from bench.engines import OVERHEAD_BAR_MS, PORT, PROGRAM, PYTHON, p95, until_answered, wake_ms
from lightkube import KubeConfig
from lightkube.config.client_adapter import Client, ConnectionParams
from tests.runtimes.kubernetes.conftest import KIT_IMAGE, kit_image
from tests.support.kubernetes_cluster import IMAGE, KubernetesCluster, cluster
from tests.support.product import Product
from tests.support.s3_server import s3_server

from torpor.inside.first_orders import Greeting
from torpor.inside.proof import container_key
from torpor.runtimes.kubernetes.manifests import KEY_FILE
from torpor.runtimes.kubernetes.pod_state import MAIN
from torpor.runtimes.object_labels import container_name
from torpor.runtimes.running_container import AGENT_PORT

NAMESPACE = "workspaces"
BARE, BARE_KEY = "bare", "bare-key"
OF_THE_CLUSTER = ("nodeName", "serviceAccount", "schedulerName", "priority", "preemptionPolicy", "tolerations")
"""Fields of a pod's spec that the cluster has added."""
LOOK_S = 0.01
STARTS_WITHIN_S = 120.0
STATUS_ACCEPTED = 300


@dataclass(frozen=True)
class Result:
    starts: int
    bare_ms_p50: float
    bare_ms_p95: float
    calls_ms_p50: float
    wake_ms_p50: float
    wake_ms_p95: float
    overhead_ms_p50: float
    """Without the median of `kubectl apply`."""
    overhead_ms_p95: float
    overhead_of_calls_ms_p50: float
    """Without the median of the API's calls."""
    ratio_p50: float


def measure(starts: int) -> Result:
    with tempfile.TemporaryDirectory() as folder, cluster() as made:
        for node in made.nodes:
            node.import_image(kit_image())
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        made.control.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
        made.wait_for_service_account(NAMESPACE)
        with made.network(), running(made, Path(folder)) as product:
            return compare(Cluster(made), product, starts)


@contextmanager
def running(made: KubernetesCluster, folder: Path) -> Iterator[Product]:
    with s3_server(made.control.place.address) as store:
        environment = {
            "TORPOR_RUNTIME": "kubernetes",
            "TORPOR_KUBERNETES_CONFIG": str(made.kubeconfig),
            "TORPOR_KUBERNETES_NAMESPACE": NAMESPACE,
            "TORPOR_KUBERNETES_KIT_IMAGE": KIT_IMAGE,
            "TORPOR_KUBERNETES_VOLUME_SIZE": "64Mi",
            "TORPOR_WORKSPACE_IMAGE": IMAGE,
            "TORPOR_ISOLATION": "none",
            "TORPOR_STANDBY_TTL": "86400",
            "TORPOR_WORKSPACE_STOP_GRACE": "1",
            "TORPOR_ARCHIVE_URL": "s3://homes/of-the-benchmark",
            **store.environment,
        }
        product = Product(folder / "data", environment=environment)
        with product.running():
            yield product


def compare(here: "Cluster", product: Product, starts: int) -> Result:
    product.ok("create", "bench", "--template", "command", "--wait", "--", PYTHON, "-S", "-c", PROGRAM)
    product.ok("stop", "bench", "--wait")
    product.ok("start", "bench", "--wait")  # the first start has prepared the volume
    here.pod = here.bare_pod(container_name(product.show("bench")["id"]))
    token = product.token
    bare, called, woken = [], [], []
    for number in range(starts):
        product.ok("stop", "bench", "--wait")
        bare.append(here.bare_ms(here.apply))
        called.append(here.bare_ms(here.call))
        woken.append(wake_ms(product, token))
        took = f"kubectl apply {bare[-1]:.0f} ms, API calls {called[-1]:.0f} ms, wake {woken[-1]:.0f} ms"
        print(f"{number + 1} of {starts}: {took}", file=sys.stderr, flush=True)
    typical = statistics.median(bare)
    return Result(
        starts,
        round(typical, 1),
        round(p95(bare), 1),
        round(statistics.median(called), 1),
        round(statistics.median(woken), 1),
        round(p95(woken), 1),
        round(statistics.median(woken) - typical, 1),
        round(p95(woken) - typical, 1),
        round(statistics.median(woken) - statistics.median(called), 1),
        round(statistics.median(woken) / typical, 2),
    )


class Cluster:
    """Starts pods of its own."""

    def __init__(self, made: KubernetesCluster) -> None:
        self._control = made.control
        config = KubeConfig.from_file(str(made.kubeconfig)).get()
        assert config is not None
        self._http = Client(config, ConnectionParams(timeout=httpx2.Timeout(30), trust_env=False))
        self.pod: dict[str, Any] = {}
        greeting = Greeting(container_key(b"bench", BARE).hex(), AGENT_PORT).line().decode()
        self._secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": BARE_KEY, "namespace": NAMESPACE},
            "stringData": {KEY_FILE: greeting},
        }

    def bare_pod(self, name: str) -> dict[str, Any]:
        """Torpor's pod, with the program in the place of the agent."""
        spec = deepcopy(self._control.get("--namespace", NAMESPACE, "pod", name)["spec"])
        for field in OF_THE_CLUSTER:
            spec.pop(field, None)
        for volume in spec["volumes"]:
            if "secret" in volume:
                volume["secret"]["secretName"] = BARE_KEY
        for container in spec["containers"]:
            assert container["name"] == MAIN
            container["command"] = [PYTHON, "-S", "-c", PROGRAM]
            container["env"] += [{"name": "PORT", "value": str(PORT)}, {"name": "HOST", "value": "0.0.0.0"}]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": BARE, "namespace": NAMESPACE}, "spec": spec}

    def bare_ms(self, start: Any) -> float:
        began = time.monotonic()
        start()
        until_answered(self._address(began + STARTS_WITHIN_S))
        took_ms = (time.monotonic() - began) * 1000
        words = ("delete", "pod", BARE, "--namespace", NAMESPACE, "--grace-period=1", "--wait")
        self._control.kubectl(*words, timeout_s=STARTS_WITHIN_S)
        self._control.kubectl("delete", "secret", BARE_KEY, "--namespace", NAMESPACE)
        return took_ms

    def apply(self) -> None:
        self._control.apply(self._secret, self.pod)

    def call(self) -> None:
        for kind, wanted in (("secrets", self._secret), ("pods", self.pod)):
            answer = self._http.post(f"/api/v1/namespaces/{NAMESPACE}/{kind}", json=wanted)
            assert answer.status_code < STATUS_ACCEPTED, answer.text

    def _address(self, deadline: float) -> str:
        while time.monotonic() < deadline:
            answer = self._http.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{BARE}")
            if address := json.loads(answer.content).get("status", {}).get("podIP"):
                return str(address)
            time.sleep(LOOK_S)
        raise AssertionError(f"the pod has no address: {answer.text}")


def report(result: Result) -> str:
    missed = result.overhead_ms_p95 - OVERHEAD_BAR_MS
    verdict = f"bar {OVERHEAD_BAR_MS:g}" + (f", missed by {missed:.0f} ms" if missed > 0 else "")
    return "\n".join(
        [
            f"{datetime.now():%Y-%m-%d}, {result.starts} starts each, in turn",
            f"kubectl apply: median {result.bare_ms_p50} ms, p95 {result.bare_ms_p95} ms",
            f"the API's calls without kubectl: median {result.calls_ms_p50} ms",
            f"wake by a request: median {result.wake_ms_p50} ms, p95 {result.wake_ms_p95} ms",
            f"overhead over kubectl apply: median {result.overhead_ms_p50} ms, p95 {result.overhead_ms_p95} ms ({verdict}); "
            f"over the API's calls: median {result.overhead_of_calls_ms_p50} ms; ratio of the medians {result.ratio_p50}",
        ]
    )
