"""What the objects of a workspace look like."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.contracts.runtime_contract import program
from tests.runtimes.docker.test_listing import HOME, MARKER, OWN
from tests.runtimes.kubernetes.test_cluster_listing import OPTIONS, claim_json
from torpor.ports import Container, Limits
from torpor.runtimes.home_record import HomeRecord, RecordState
from torpor.runtimes.kubernetes import manifests
from torpor.runtimes.kubernetes.listing import listed_claim
from torpor.runtimes.kubernetes.options import KubernetesOptions, PodOptions
from torpor.runtimes.kubernetes.pod_state import listed_pod

READY = HomeRecord(2, RecordState.READY, MARKER, 2, 5, OWN, "nonce")
CLAIM = listed_claim(claim_json(READY))
CONTAINER = Container(HOME, 1, program("serve"), Limits(memory_bytes=512 << 20, processes=100, cpu_cores=1.5))
NONCE = "0123456789abcdef0123456789abcdef"


def workspace_pod(options: KubernetesOptions = OPTIONS, container: Container = CONTAINER, nonce: str = NONCE) -> dict[str, Any]:
    assert CLAIM is not None
    return manifests.workspace_pod(options, container, CLAIM, MARKER, nonce=nonce, key_id="k", epoch=7)


def job_pod(options: KubernetesOptions = OPTIONS) -> dict[str, Any]:
    assert CLAIM is not None
    return manifests.job_pod(options, HOME, CLAIM, "job-1", nonce=NONCE, key_id="k", epoch=7, order="o")


PODS = {"workspace": workspace_pod, "job": job_pod}


@pytest.mark.parametrize("kind", PODS)
def test_a_pod_is_restricted(kind: str) -> None:
    """The rules of the pod security standard of this name; the cluster checks them, too, in other tests."""
    spec = PODS[kind]()["spec"]
    security = spec["securityContext"]
    assert security["runAsNonRoot"] is True
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (1000, 1000, 1000)
    assert security["fsGroupChangePolicy"] == "OnRootMismatch"
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["restartPolicy"] == "Never"
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    kinds = {key for volume in spec["volumes"] for key in volume if key != "name"}
    assert kinds <= {"persistentVolumeClaim", "emptyDir", "secret"}


def test_the_key_is_mounted_only_where_no_program_of_a_user_runs() -> None:
    spec = workspace_pod()["spec"]
    (main,) = spec["containers"]
    assert "key" not in {mount["name"] for mount in main["volumeMounts"]}
    assert NONCE not in json.dumps(spec["containers"])


def test_the_home_is_mounted_at_its_path_and_torpors_folder_read_only() -> None:
    (main,) = workspace_pod()["spec"]["containers"]
    mounts = {mount["mountPath"]: mount for mount in main["volumeMounts"]}
    assert mounts["/home/workspace"]["subPath"] == "home"
    own = mounts[manifests.OWN_AT]
    assert (own["subPath"], own["readOnly"]) == (".torpor", True)


def test_sizes_become_limits_and_small_requests() -> None:
    (main,) = workspace_pod()["spec"]["containers"]
    assert main["resources"]["limits"] == {"memory": str(512 << 20), "cpu": "1500m"}
    assert main["resources"]["requests"] == {"memory": str(64 << 20), "cpu": "100m"}


def test_what_an_administrator_adds_is_in_the_pods() -> None:
    added = PodOptions(
        labels={"team": "a"},
        annotations={"example.com/x": "y"},
        spec={"nodeSelector": {"disk": "ssd"}, "restartPolicy": "Always", "priorityClassName": "low"},
        requests={"memory": "1Gi"},
        image_pull_policy="Always",
    )
    options = replace(OPTIONS, templates={CONTAINER.program.template: added}, jobs=replace(added, labels={"team": "b"}))
    made = workspace_pod(options)
    assert made["metadata"]["labels"]["team"] == "a"
    assert made["metadata"]["annotations"]["example.com/x"] == "y"
    assert made["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert made["spec"]["priorityClassName"] == "low"
    assert made["spec"]["restartPolicy"] == "Never", "Torpor's own fields come first"
    assert made["spec"]["containers"][0]["resources"]["requests"]["memory"] == "1Gi"
    assert made["spec"]["containers"][0]["imagePullPolicy"] == "Always"
    assert job_pod(options)["metadata"]["labels"]["team"] == "b"
    assert "team" not in workspace_pod()["metadata"]["labels"]


def test_the_claim_asks_for_what_the_settings_say() -> None:
    options = replace(OPTIONS, storage_class="fast", volume_size="5Gi", access_mode="ReadWriteOncePod")
    spec = manifests.claim(options, HOME, READY)["spec"]
    assert spec["storageClassName"] == "fast"
    assert spec["accessModes"] == ["ReadWriteOncePod"]
    assert spec["resources"] == {"requests": {"storage": "5Gi"}}
    assert "storageClassName" not in manifests.claim(OPTIONS, HOME, READY)["spec"], "the cluster's default"


def test_the_same_pod_of_another_controller_is_recognised_and_another_one_is_not() -> None:
    def identity(made: dict[str, Any]) -> str:
        return str(made["metadata"]["annotations"][manifests.SPEC])

    again = identity(workspace_pod(nonce="f" * 32))
    assert again == identity(workspace_pod())
    larger = replace(CONTAINER, limits=replace(CONTAINER.limits, memory_bytes=1 << 30))
    assert identity(workspace_pod(container=larger)) != again
    assert identity(workspace_pod(container=replace(CONTAINER, program=replace(CONTAINER.program, image="other:1")))) != again


def test_a_pod_is_read_as_it_was_written() -> None:
    made = workspace_pod()
    found = listed_pod({**made, "metadata": {**made["metadata"], "uid": "u", "resourceVersion": "1"}})
    assert (found.home, found.epoch, found.kind) == (HOME, 7, "workspace")
    assert found.facts["torpor.nonce"] == NONCE
