"""Test the whole product on a cluster: `torpor up`, as a user starts it, with archives in an S3 store."""

import json

from tests.runtimes.docker.test_product import READ, WRITE
from tests.runtimes.kubernetes.conftest import InstalledCluster
from tests.support.product import Product
from tests.support.waiting import wait_until
from torpor.runtimes.object_labels import container_name

PATIENCE_S = 120.0


def test_create_exec_archive_and_wake(installed: InstalledCluster, product: Product) -> None:
    product.ok("create", "one", "--wait")
    product.ok("exec", "one", "--", "sh", "-c", WRITE)
    before = product.run("exec", "one", "--", "sh", "-c", READ).stdout
    assert len(before) > 300000
    (pod,) = installed.get("pods", "--selector", f"torpor.workspace={product.show('one')['id']}")["items"]
    installation = pod["metadata"]["labels"]["torpor.installation"]
    policies = installed.get("networkpolicy", "--selector", f"torpor.kind=network,torpor.installation={installation}")["items"]
    assert len(policies) == 2
    product.ok("archive", "one", "--wait")
    assert product.show("one")["phase"] == "ARCHIVED"
    assert installed.get("pvc", "--selector", f"torpor.workspace={product.show('one')['id']}")["items"] == []
    product.ok("start", "one", "--wait")
    assert product.run("exec", "one", "--", "sh", "-c", READ).stdout == before


def test_a_request_wakes_it_and_a_pod_deleted_by_hand_comes_back(installed: InstalledCluster, product: Product) -> None:
    product.ok("create", "one", "--wait")
    product.ok("exec", "one", "--", "sh", "-c", "echo kept > file")
    product.ok("stop", "one", "--wait")
    wait_until(lambda: product.get("one")[0] == 200, within_s=PATIENCE_S)
    assert product.show("one")["phase"] == "RUNNING"
    installed.kubectl("delete", "pod", container_name(product.show("one")["id"]), timeout_s=PATIENCE_S)
    wait_until(lambda: product.run("exec", "one", "--", "cat", "file").stdout.strip() == b"kept", within_s=PATIENCE_S)


def test_explain_and_doctor_say_what_is_wrong(installed: InstalledCluster, product: Product) -> None:
    found = {one["what"]: one for one in json.loads(product.ok("doctor", "--json"))["items"]}
    assert found["kubernetes"]["ok"], found
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    installed.kubectl("apply", "--filename", "-", stdin=json.dumps(quota))
    try:
        wait_until(lambda: installed.get("resourcequota", "few")["status"].get("hard"))
        product.run("create", "one")
        wait_until(lambda: "exceeded quota" in product.ok("explain", "one"), within_s=PATIENCE_S)
    finally:
        installed.kubectl("delete", "resourcequota", "few")
    wait_until(lambda: product.show("one")["phase"] == "RUNNING", within_s=PATIENCE_S)
