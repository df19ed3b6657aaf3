"""What the answers of a cluster mean."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtimes.kubernetes.test_cluster_listing import OPTIONS
from torpor.domain.errors import Code, Failed, Refused, TorporError, Unavailable
from torpor.runtimes.kubernetes.cluster_client import ClusterClient, ClusterRefusal, translated

RBAC = 'pods is forbidden: User "system:serviceaccount:t:t" cannot create resource "pods" in API group "" in the namespace "t"'
QUOTA = 'pods "ws-1" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2'
SECURITY = 'pods "ws-1" is forbidden: violates PodSecurity "restricted:latest": privileged'

ANSWERS: dict[str, tuple[int, str, str, type[TorporError], str]] = {
    "expired": (401, "GET", "Unauthorized", Unavailable, "renew"),
    "may not list": (403, "GET", RBAC, Unavailable, 'cannot create resource "pods"'),
    "may not create": (403, "POST", RBAC, Failed, "role"),
    "quota": (403, "POST", QUOTA, ClusterRefusal, "exceeded quota"),
    "pod security": (403, "POST", SECURITY, ClusterRefusal, "PodSecurity"),
    "absent": (404, "GET", "not found", ClusterRefusal, "not found"),
    "conflict": (409, "PATCH", "the object has been modified", ClusterRefusal, "modified"),
    "gone": (410, "GET", "too old resource version", Unavailable, "too old"),
    "invalid": (422, "POST", "spec.containers: Required value", ClusterRefusal, "Required"),
    "too many": (429, "GET", "Too many requests", Unavailable, "429"),
    "broken": (500, "GET", "etcdserver: request timed out", Unavailable, "etcdserver"),
    "starting": (503, "GET", "apiserver not ready", Unavailable, "503"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_status_has_a_meaning(name: str) -> None:
    status, method, message, meaning, words = ANSWERS[name]
    error = translated(status, message, method, "/api/v1/x", "https://cluster")
    assert type(error) is meaning
    assert words in error.message
    if isinstance(error, Failed):
        assert error.code is Code.K8S_API_ERROR


@pytest.mark.parametrize("content", [None, "", "{", "clusters: []\ncontexts: []\n", "[]"])
def test_a_configuration_that_cannot_be_used_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    client = ClusterClient(replace(OPTIONS, kubeconfig=path))
    with pytest.raises(Refused) as refusal:
        client.connect()
    assert refusal.value.code == "bad_setting"


@pytest.mark.anyio
async def test_a_cluster_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    path = tmp_path / "config"
    path.write_text(
        f"""
current-context: c
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u, namespace: n}}}}]
"""
    )
    client = ClusterClient(replace(OPTIONS, kubeconfig=path))
    client.connect()
    assert client.namespace == "n"
    with pytest.raises(Unavailable) as failure:
        await client.listed("pods", "a=b")
    assert "check its address" in failure.value.message
    await client.close()
