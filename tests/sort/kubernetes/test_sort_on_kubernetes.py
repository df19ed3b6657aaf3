"""The manifests of deploy/sort run a sort on a real cluster, and deleted pods do not change its output."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sort.e2e.commands import generated, joined, sorted_well, torpor_sort
from tests.support.kubernetes_cluster import KubernetesCluster, cluster
from tests.support.kubernetes_volumes import SHARED
from tests.support.sort_image import sort_image
from tests.support.waiting import wait_until

DEPLOY = Path(__file__).parents[3] / "deploy" / "sort"
NAMESPACE = "sort"
IMAGE = "torpor-sort:1"
WORKERS = 4
RECORDS = 1_500_000
"""Of each worker."""
DATA_POD, MASTER, WORKER_JOB = "torpor-sort-data", "torpor-sort-master", "torpor-sort-workers"
INDEX = "batch.kubernetes.io/job-completion-index"
PATIENCE_S = 240.0
pytestmark = pytest.mark.kubernetes


@dataclass(frozen=True)
class SortNamespace:
    """A namespace of a cluster in which only pods that conform to "restricted" can run."""

    cluster: KubernetesCluster

    def kubectl(self, *words: str, **more: Any) -> str:
        return self.cluster.control.kubectl("--namespace", NAMESPACE, *words, **more)

    def apply(self, manifest: str) -> None:
        """A file of deploy/sort, with the image and the sizes of this cluster."""
        objects = [adapted(one) for one in yaml.safe_load_all((DEPLOY / manifest).read_text())]
        self.kubectl("apply", "--filename", "-", stdin=yaml.safe_dump_all(objects))

    def in_data_pod(self, *words: str) -> str:
        return self.kubectl("exec", DATA_POD, "--", *words, timeout_s=PATIENCE_S)

    def pods(self, selector: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.cluster.control.get("--namespace", NAMESPACE, "pods", "--selector", selector)[
            "items"
        ]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def log_of(self, selector: str) -> str:
        """Of the present pod; empty before it has one."""
        (pod,) = self.pods(selector) or (None,)
        if pod is None or pod["status"]["phase"] == "Pending":
            return ""
        return self.kubectl("logs", pod["metadata"]["name"])

    def until_logged(self, selector: str, text: str) -> None:
        wait_until(lambda: text in self.log_of(selector), within_s=PATIENCE_S, every_s=0.1, otherwise=self.describe)

    def delete_pod(self, selector: str) -> str:
        """Its uid. It is gone, and ended by itself: the cluster kills those that ignore the signal after a grace period."""
        (pod,) = self.pods(selector)
        began = time.monotonic()
        self.kubectl("delete", "pod", pod["metadata"]["name"], "--wait", timeout_s=PATIENCE_S)
        assert time.monotonic() - began < pod["spec"]["terminationGracePeriodSeconds"]
        return str(pod["metadata"]["uid"])

    def until_replaced(self, selector: str, deleted: str) -> None:
        def is_replaced() -> bool:
            return any(pod["metadata"]["uid"] != deleted for pod in self.pods(selector))

        wait_until(is_replaced, within_s=PATIENCE_S, every_s=0.2, otherwise=self.describe)

    def until_complete(self, job: str) -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            status: dict[str, Any] = self.cluster.control.get("--namespace", NAMESPACE, "job", job)["status"]
            conditions = {one["type"]: one["status"] for one in status.get("conditions", ())}
            assert conditions.get("Failed") != "True", self.describe()
            return status if conditions.get("Complete") == "True" else None

        return wait_until(ended, within_s=PATIENCE_S, every_s=0.2, otherwise=self.describe)

    def describe(self) -> str:
        shown = self.kubectl("get", "jobs,pods,events", "--output", "wide")
        logs = [self.kubectl("logs", pod["metadata"]["name"], "--tail=20") for pod in self.pods(f"app={MASTER}")]
        return "\n".join([shown, *logs])


def adapted(found: Any) -> Any:
    """The same object for machines with less CPU and memory than those that it is for."""
    if found["kind"] == "PersistentVolumeClaim":
        found["spec"]["storageClassName"] = SHARED
    spec = found["spec"]["template"]["spec"] if found["kind"] == "Job" else found["spec"]
    for container in spec.get("containers", ()):
        container["image"] = IMAGE
        if container.get("resources"):
            container["resources"] = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
        container["args"] = [word.replace("--memory=4G", "--memory=64M") for word in container.get("args", ())]
    return found


@pytest.fixture(scope="module")
def sorting() -> Iterator[SortNamespace]:
    with cluster(nodes=2, dns=True) as made:
        image = sort_image(IMAGE)
        for node in made.nodes:
            node.import_image(image)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        made.control.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
        made.wait_for_service_account(NAMESPACE)
        yield SortNamespace(made)


def worker(index: int) -> str:
    return f"app=torpor-sort-worker,{INDEX}={index}"


def test_a_deleted_worker_and_a_deleted_master_do_not_change_the_output(sorting: SortNamespace, tmp_path: Path) -> None:
    sorting.apply("kubernetes-data.yaml")
    sorting.kubectl("wait", "--for=condition=Ready", f"pod/{DATA_POD}", "--timeout=120s", timeout_s=150)
    inputs = []
    for index in range(WORKERS):
        folder = f"/data/worker-{index}/input"
        sorting.in_data_pod("mkdir", "-p", folder)
        seed = index * RECORDS
        sorting.in_data_pod("torpor", "sort", "generate", str(RECORDS), f"{folder}/records", "--seed", str(seed))
        inputs.append(generated(tmp_path / f"records.{index}", RECORDS, "--seed", seed))
    assert torpor_sort("join", tmp_path / "join.json").code == 0
    sorting.kubectl("create", "secret", "generic", "torpor-sort", f"--from-file={tmp_path / 'join.json'}")
    sorting.apply("kubernetes.yaml")

    sorting.until_logged(worker(2), "-> Sorting")
    sorting.until_replaced(worker(2), sorting.delete_pod(worker(2)))
    sorting.until_logged(worker(2), "-> Sorting")
    sorting.until_replaced(f"app={MASTER}", sorting.delete_pod(f"app={MASTER}"))
    workers, master = sorting.until_complete(WORKER_JOB), sorting.until_complete(MASTER)

    assert (workers["succeeded"], workers["failed"]) == (WORKERS, 1), workers
    assert (master["succeeded"], master["failed"]) == (1, 1), master
    said = sorting.kubectl("logs", f"job/{MASTER}")
    assert "worker 2: Completed (attempt 2)" in said
    assert f"valid: {WORKERS * RECORDS:,} records" in said
    folders = [f"/data/worker-{index}/output" for index in range(WORKERS)]
    found = json.loads(sorting.in_data_pod("torpor", "sort", "validate", *folders, "--json"))
    assert found["in_order"]
    assert found["records"] == WORKERS * RECORDS
    sorted_well(*inputs, "--output", tmp_path / "sorted")
    (volume,) = sorting.cluster.volumes.iterdir()
    assert b"".join(joined(volume / f"worker-{index}" / "output") for index in range(WORKERS)) == joined(tmp_path / "sorted")
