"""Test the Kubernetes clusters that the other tests use."""

from collections.abc import Mapping
from typing import Any

import pytest
from lightkube import Client, KubeConfig
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap

from tests.support.kubernetes_cluster import IMAGE, KubernetesCluster, api_server
from tests.support.kubernetes_control_plane import as_list
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
LABELS = {"app": "tests"}


def pod(
    namespace: str,
    name: str,
    *command: str,
    claim: str = "",
    security: Mapping[str, Any] = RESTRICTED,
    node: str = "",
    labels: Mapping[str, str] = LABELS,
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "securityContext": security,
    }
    spec: dict[str, Any] = {
        "containers": [container],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"fsGroup": 1000},
    }
    if claim:
        container["volumeMounts"] = [{"name": "home", "mountPath": "/home"}]
        spec["volumes"] = [{"name": "home", "persistentVolumeClaim": {"claimName": claim}}]
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
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
        return kubernetes.control.kubectl("describe", "pod", name, "--namespace", namespace)

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


def test_the_home_of_a_deleted_pod_is_there_for_the_next(kubernetes: KubernetesCluster, namespace: str) -> None:
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
