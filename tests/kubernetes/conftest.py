"""A cluster for all tests of this folder, and a namespace for each test."""

import secrets
from collections.abc import Iterator

import pytest

from tests.support.kubernetes_cluster import KubernetesCluster, cluster


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[KubernetesCluster]:
    with cluster(network_policies=True) as made:
        yield made


@pytest.fixture
def namespace(kubernetes: KubernetesCluster) -> Iterator[str]:
    """Pod security is "restricted" there. It is removed, with all that it contains."""
    name = f"test-{secrets.token_hex(4)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kubernetes.control.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    kubernetes.wait_for_service_account(name)
    yield name
    kubernetes.control.kubectl("delete", "namespace", name, "--wait", timeout_s=120)
