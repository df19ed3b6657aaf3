"""Test the Kubernetes clusters that the other tests use."""

import contextlib
import json
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightkube import Client, KubeConfig
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap

from tests.support.cgroup_removal import cgroups_of
from tests.support.image_files import busybox_image_file
from tests.support.kubernetes_cluster import IMAGE, KubernetesCluster, api_server, cluster
from tests.support.kubernetes_control_plane import as_list
from tests.support.kubernetes_node import PODS
from tests.support.kubernetes_volumes import SHARED
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kubernetes

POD_S = 60.0
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
BUSYBOX = "torpor-test-busybox:1"
PORT = 8080


def pod(
    namespace: str,
    name: str,
    *command: str,
    claim: str = "",
    security: Mapping[str, Any] = RESTRICTED,
    node: str = "",
    image: str = IMAGE,
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "securityContext": security,
    }
    spec: dict[str, Any] = {
        "containers": [container],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        # Otherwise every start gives the group access to all files, such as the keys of ssh.
        "securityContext": {"fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch"},
    }
    if claim:
        container["volumeMounts"] = [{"name": "home", "mountPath": "/home"}]
        spec["volumes"] = [{"name": "home", "persistentVolumeClaim": {"claimName": claim}}]
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    metadata = {"name": name, "namespace": namespace, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def claim(namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def until_phase(kubernetes: KubernetesCluster, namespace: str, name: str, phase: str) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        shown = kubernetes.control.get("pod", name, "--namespace", namespace)
        return shown if shown["status"].get("phase") == phase else None

    def otherwise() -> str:
        described = kubernetes.control.kubectl("describe", "pod,pvc,pv", "--namespace", namespace)
        return f"{described}\n{kubernetes.control.components['provisioner'].last_lines()}"

    return wait_until(found, within_s=POD_S, every_s=0.2, otherwise=otherwise)


def output(kubernetes: KubernetesCluster, namespace: str, name: str) -> str:
    return kubernetes.control.kubectl("logs", name, "--namespace", namespace)


def test_an_api_server_alone_is_ready_and_keeps_objects() -> None:
    with api_server() as control:
        assert control.kubectl("get", "--raw", "/readyz") == "ok"
        with Client(KubeConfig.from_file(control.kubeconfig), trust_env=False) as client:
            client.create(ConfigMap(metadata=ObjectMeta(name="one", namespace="default"), data={"key": "value"}))
        control.components["kube-apiserver"].stop()
        control.components["kube-apiserver"].start()
        control.wait()
        assert control.get("configmap", "one", "--namespace", "default")["data"] == {"key": "value"}
        folder = control.folder
    assert not folder.exists()


def test_a_claim_keeps_its_files_grows_and_is_removed_with_them(kubernetes: KubernetesCluster, namespace: str) -> None:
    control = kubernetes.control
    control.apply(claim(namespace, "home"))
    write = "umask 077; id -u; echo 'of the first pod' > /home/file; sleep 1000"
    control.apply(pod(namespace, "first", "sh", "-c", write, claim="home"))
    until_phase(kubernetes, namespace, "first", "Running")
    wait_until(lambda: output(kubernetes, namespace, "first") == "1000\n", every_s=0.2)
    control.kubectl("delete", "pod", "first", "--namespace", namespace)

    control.apply(pod(namespace, "second", "sh", "-c", "cat /home/file; stat --format %a /home/file", claim="home"))
    until_phase(kubernetes, namespace, "second", "Succeeded")
    assert output(kubernetes, namespace, "second") == "of the first pod\n600\n"

    larger = json.dumps({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    control.kubectl("patch", "pvc", "home", "--namespace", namespace, "--patch", larger)
    control.kubectl(
        "wait", "pvc/home", "--namespace", namespace, "--for=jsonpath={.status.capacity.storage}=2Gi", "--timeout=30s"
    )
    path = kubernetes.volumes / control.get("pvc", "home", "--namespace", namespace)["spec"]["volumeName"]
    assert path.exists()
    control.kubectl("delete", "pod", "second", "--namespace", namespace)
    control.kubectl("delete", "pvc", "home", "--namespace", namespace)
    wait_until(lambda: not path.exists())
    wait_until(lambda: not control.get("pv")["items"], every_s=0.2)


def test_a_pod_that_is_not_restricted_is_refused(kubernetes: KubernetesCluster, namespace: str) -> None:
    privileged = pod(namespace, "refused", "true", security={**RESTRICTED, "allowPrivilegeEscalation": True})
    said = kubernetes.control.refusal("create", "--filename", "-", stdin=as_list(privileged))
    assert 'violates PodSecurity "restricted' in said
    assert "allowPrivilegeEscalation" in said


def test_a_command_can_be_run_in_a_pod(kubernetes: KubernetesCluster, namespace: str) -> None:
    kubernetes.control.apply(pod(namespace, "one", "sleep", "1000"))
    until_phase(kubernetes, namespace, "one", "Running")
    assert kubernetes.control.kubectl("exec", "one", "--namespace", namespace, "--", "echo", "from inside") == "from inside\n"


# ── network policies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def serve(kubernetes: KubernetesCluster, namespace: str, name: str) -> str:
    """A pod that listens on PORT; returns its address."""
    command = ("/busybox", "httpd", "-f", "-p", str(PORT))
    kubernetes.control.apply(pod(namespace, name, *command, image=BUSYBOX))
    address: str = until_phase(kubernetes, namespace, name, "Running")["status"]["podIP"]
    return address


def reaches(kubernetes: KubernetesCluster, namespace: str, name: str, address: str) -> bool:
    # The part in parentheses outlives the command, so it must not hold its error output open.
    connect = f"read -t 2 answer < <(exec 2>/dev/null; exec 3<>/dev/tcp/{address}/{PORT} && echo yes); echo $answer"
    return kubernetes.control.kubectl("exec", name, "--namespace", namespace, "--", "bash", "-c", connect) == "yes\n"


def connects(kubernetes: KubernetesCluster, address: str) -> bool:
    """From the control plane."""
    with kubernetes.network(), contextlib.suppress(OSError), socket.create_connection((address, PORT), timeout=2):
        return True
    return False


def policy(namespace: str, name: str, app: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    spec = {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": [one.capitalize() for one in spec], **spec}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def test_network_policies_are_enforced(kubernetes: KubernetesCluster, namespace: str) -> None:
    kubernetes.nodes[0].import_image(busybox_image_file(BUSYBOX))
    guarded, unguarded = (serve(kubernetes, namespace, name) for name in ("guarded", "unguarded"))
    for name in ("friend", "stranger"):
        kubernetes.control.apply(pod(namespace, name, "sleep", "1000"))
        until_phase(kubernetes, namespace, name, "Running")
        wait_until(partial(reaches, kubernetes, namespace, name, guarded))
    assert connects(kubernetes, guarded)

    only_friend = [{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}]
    kubernetes.control.apply(policy(namespace, "in", "guarded", ingress=only_friend))
    wait_until(lambda: not reaches(kubernetes, namespace, "stranger", guarded))
    assert not connects(kubernetes, guarded)
    assert reaches(kubernetes, namespace, "friend", guarded)
    assert reaches(kubernetes, namespace, "stranger", unguarded)

    not_to_pods = [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [PODS]}}]}]
    kubernetes.control.apply(policy(namespace, "out", "stranger", egress=not_to_pods))
    wait_until(lambda: not reaches(kubernetes, namespace, "stranger", unguarded))
    assert reaches(kubernetes, namespace, "friend", guarded)


# ── several nodes, and the end ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_shared_volume_moves_between_nodes_and_nothing_is_left_at_the_end() -> None:
    with cluster(nodes=2) as made:
        folder = made.control.folder
        assert cgroups_of(folder.name)
        made.control.apply(
            claim("default", "shared", storageClassName=SHARED),
            claim("default", "local"),
            pod("default", "first", "sh", "-c", "echo here > /home/file", claim="shared", node="node-1"),
            pod("default", "holder", "true", claim="local", node="node-1"),
        )
        until_phase(made, "default", "first", "Succeeded")
        until_phase(made, "default", "holder", "Succeeded")
        made.control.apply(
            pod("default", "second", "cat", "/home/file", claim="shared", node="node-2"),
            pod("default", "elsewhere", "true", claim="local", node="node-2"),
        )
        until_phase(made, "default", "second", "Succeeded")
        assert output(made, "default", "second") == "here\n"
        conditions = made.control.get("pod", "elsewhere")["status"]["conditions"]
        assert [one["reason"] for one in conditions if one["type"] == "PodScheduled"] == ["Unschedulable"]
        made.control.apply(pod("default", "stays", "sleep", "1000"))
        until_phase(made, "default", "stays", "Running")
        processes = processes_of(folder)
    assert processes
    assert not processes_of(folder)
    assert not folder.exists()
    assert not cgroups_of(folder.name)
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    assert {"nodes", "node-1", "node-2"}.isdisjoint(path.name for path in Path("/sys/class/net").iterdir())


def processes_of(folder: Path) -> list[str]:
    """The command lines that name this folder; those of shims do not, but they end with their namespaces."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if str(folder) in line]
