"""Nodes that are drained or lost, on a cluster with two: the workspace starts on the other one, and never runs on both."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.runtimes.docker.test_product import READ, WRITE
from tests.runtimes.kubernetes.conftest import InstalledCluster, installed_cluster
from tests.support.kubernetes_node import KubernetesNode
from tests.support.kubernetes_volumes import SHARED
from tests.support.product import Product
from tests.support.waiting import wait_until
from torpor.runtimes.object_labels import container_name

NAME = "one"
MOVED_S = 180.0
LOST_S = 150.0
"""Until the cluster gives up a node: 50 s, and the toleration of the pod."""
UNCHANGED_S = 15.0
"""How long a wrong start is looked for. The controller looks every few seconds."""
# A process that does not end with the command that started it, which waits until it has a session of its own.
WRITES = """
setsid sh -c 'while :; do date +%s.%N >> writes; sleep 0.2; done' > /dev/null 2>&1 < /dev/null &
until [ -s writes ]; do sleep 0.02; done
"""


@pytest.fixture(scope="module")
def installed() -> Iterator[InstalledCluster]:
    with installed_cluster(nodes=2) as made:
        yield made


@pytest.fixture
def more_settings() -> dict[str, str]:
    """A volume that every node can use at the same time: the storage does not prevent a second writer."""
    return {"kubernetes_storage_class": SHARED}


@pytest.fixture
def pod_file(pod_file: Path) -> Path:
    """The cluster gives up a lost node soon."""
    taints = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    tolerated = [{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5} for key in taints]
    fields = yaml.safe_load(pod_file.read_text())
    pod_file.write_text(yaml.safe_dump({**fields, "workspaces": {"tolerations": tolerated}}))
    return pod_file


def pods(installed: InstalledCluster) -> list[dict[str, Any]]:
    return list(installed.get("pods", "--selector", "torpor.kind=workspace")["items"])


def uids(installed: InstalledCluster) -> list[str]:
    return [str(one["metadata"]["uid"]) for one in pods(installed)]


def node_of(installed: InstalledCluster) -> KubernetesNode:
    (one,) = pods(installed)
    return next(node for node in installed.cluster.nodes if node.name == one["spec"]["nodeName"])


def content(product: Product) -> bytes:
    return product.run("exec", NAME, "--", "sh", "-c", READ).stdout


def created(product: Product) -> bytes:
    product.ok("create", NAME, "--wait")
    product.ok("exec", NAME, "--", "sh", "-c", WRITE)
    before = content(product)
    assert len(before) > 300000
    return before


def otherwise(installed: InstalledCluster, product: Product) -> str:
    objects = installed.kubectl("get", "pods,nodes,pvc", "--output", "wide")
    return f"{product.ok('explain', NAME)}\n{objects}\n{product.log()}"


def until_elsewhere(installed: InstalledCluster, product: Product, earlier: str) -> None:
    def runs_elsewhere() -> bool:
        return earlier not in uids(installed) and product.show(NAME)["phase"] == "RUNNING"

    shown = partial(otherwise, installed, product)
    wait_until(runs_elsewhere, within_s=MOVED_S, every_s=1.0, otherwise=shown)
    wait_until(lambda: product.get(NAME)[0] == 200, within_s=MOVED_S, every_s=0.5, otherwise=shown)


def until_explained(installed: InstalledCluster, product: Product, reason: str) -> None:
    shown = partial(otherwise, installed, product)
    wait_until(lambda: reason in product.ok("explain", NAME), within_s=LOST_S, every_s=1.0, otherwise=shown)


def test_a_drained_node_moves_the_workspace_to_another_with_its_home(installed: InstalledCluster, product: Product) -> None:
    before, node, (pod,) = created(product), node_of(installed), uids(installed)
    words = ("--force", "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=120s")
    installed.kubectl("drain", node.name, *words, timeout_s=MOVED_S)
    try:
        until_elsewhere(installed, product, pod)
        assert node_of(installed).name != node.name
        assert content(product) == before
    finally:
        installed.kubectl("uncordon", node.name)


def test_a_node_without_network_is_waited_for_and_never_leads_to_two_writers(
    installed: InstalledCluster, product: Product
) -> None:
    before, node, (pod,) = created(product), node_of(installed), uids(installed)
    product.ok("exec", NAME, "--", "sh", "-c", WRITES)
    writes = files(installed, product) / "writes"
    node.disconnect()
    try:
        until_explained(installed, product, f"{node.name} has not confirmed its end")
        assert "deletionTimestamp" in pods(installed)[0]["metadata"]
        size = writes.stat().st_size

        def writes_go_on_and_no_other_pod_is_there() -> bool:
            assert uids(installed) == [pod]
            assert node.name in product.ok("explain", NAME)
            return writes.stat().st_size > size + 20 * 5 * UNCHANGED_S

        wait_until(writes_go_on_and_no_other_pod_is_there, within_s=LOST_S, every_s=1.0)
    finally:
        node.reconnect()
    until_elsewhere(installed, product, pod)
    size = writes.stat().st_size
    assert content(product) == before
    assert writes.stat().st_size == size, "the first writer has ended"


def test_after_a_lost_node_was_deleted_the_workspace_starts_on_another(installed: InstalledCluster, product: Product) -> None:
    """The last test of this cluster, which has one node then."""
    before, node, (pod,) = created(product), node_of(installed), uids(installed)
    node.stop()
    until_explained(installed, product, f"kubectl delete node {node.name}")
    assert uids(installed) == [pod]
    installed.kubectl("delete", "node", node.name)
    until_elsewhere(installed, product, pod)
    assert node_of(installed).name != node.name
    assert content(product) == before


def files(installed: InstalledCluster, product: Product) -> Path:
    (claim,) = installed.get("pvc", "--selector", f"torpor.workspace={product.show(NAME)['id']}")["items"]
    assert container_name(product.show(NAME)["id"]) in claim["metadata"]["name"]
    return installed.cluster.volumes / str(claim["spec"]["volumeName"]) / "home"
