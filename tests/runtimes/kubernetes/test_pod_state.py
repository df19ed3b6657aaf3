"""What the JSON of a pod means."""

from typing import Any

import pytest

from torpor.domain.errors import Code
from torpor.inside.prepare_pod import WRONG_VOLUME
from torpor.ports import Home
from torpor.runtimes.kubernetes.pod_state import MAIN, PREPARE, PodEnd, TroubleKind, event_words, listed_pod
from torpor.runtimes.object_labels import ObjectKind, home_labels

HOME = Home("0d1f8a3c-0000-4000-8000-000000000001", 3)
FINAL, WAITS, BROKEN = TroubleKind.FINAL, TroubleKind.WAITS, TroubleKind.BROKEN


def pod(phase: str = "Pending", *, deleted: str = "", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "ws-1",
            "uid": "u1",
            "resourceVersion": "7",
            "labels": home_labels("t", ObjectKind.WORKSPACE, HOME),
            "annotations": {"torpor.epoch": "4", "torpor.nonce": "n"},
            **({"deletionTimestamp": deleted} if deleted else {}),
        },
        "spec": {"nodeName": "node-1", "volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": "c"}}]},
        "status": {"phase": phase, **status},
    }


def container(name: str = MAIN, **state: Any) -> list[dict[str, Any]]:
    return [{"name": name, "image": "registry.test/app:1", "state": state}]


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"containerStatuses": container(waiting={"reason": reason, "message": message})}


def unscheduled(message: str) -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]}


def test_names_and_labels_are_read() -> None:
    found = listed_pod(pod("Running", podIP="10.0.0.1"))
    assert (found.home, found.epoch, found.address, found.claims) == (HOME, 4, "10.0.0.1", frozenset({"c"}))
    assert found.kind == ObjectKind.WORKSPACE


NOT_FOUND = 'rpc error: code = NotFound desc = failed to pull and unpack image "registry.test/app:1": not found'
TROUBLES: dict[str, tuple[dict[str, Any], TroubleKind, Code, str]] = {
    "no node": (
        unscheduled("0/3 nodes are available: 3 Insufficient memory."),
        WAITS,
        Code.CONTAINER_START_FAILED,
        "3 Insufficient",
    ),
    "no such image": (waiting("ErrImagePull", NOT_FOUND), FINAL, Code.IMAGE_PULL_FAILED, "registry.test/app:1"),
    "registry out": (waiting("ImagePullBackOff", "dial tcp: i/o timeout"), WAITS, Code.IMAGE_PULL_INTERRUPTED, "i/o timeout"),
    "bad name": (waiting("InvalidImageName", "couldn't parse"), FINAL, Code.IMAGE_PULL_FAILED, "couldn't parse"),
    "never pulled": (waiting("ErrImageNeverPull"), FINAL, Code.IMAGE_PULL_FAILED, "ErrImageNeverPull"),
    "no config": (waiting("CreateContainerConfigError", 'secret "x" not found'), BROKEN, Code.CONTAINER_START_FAILED, "secret"),
    "no program": (waiting("RunContainerError", "exec format error"), BROKEN, Code.CONTAINER_START_FAILED, "exec format"),
    "wrong volume": (
        {"initContainerStatuses": container(PREPARE, terminated={"exitCode": WRONG_VOLUME, "message": "another home"})},
        *(FINAL, Code.VOLUME_NOT_READY, "another home"),
    ),
    "not prepared": (
        {"initContainerStatuses": container(PREPARE, terminated={"exitCode": 70, "message": "no space left"})},
        *(FINAL, Code.CONTAINER_START_FAILED, "no space left"),
    ),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_a_pod_that_does_not_start_says_why(name: str) -> None:
    status, kind, code, words = TROUBLES[name]
    trouble = listed_pod(pod(**status)).trouble
    assert trouble is not None
    assert (trouble.kind, trouble.code) == (kind, code)
    assert words in trouble.message


@pytest.mark.parametrize(
    "status",
    [
        {},
        waiting("ContainerCreating"),
        waiting("PodInitializing"),
        {"initContainerStatuses": container(PREPARE, terminated={"exitCode": 0})},
        {"conditions": [{"type": "PodScheduled", "status": "True"}]},
    ],
)
def test_a_pod_that_is_starting_has_no_trouble(status: dict[str, Any]) -> None:
    assert listed_pod(pod(**status)).trouble is None


def test_an_ended_program_has_its_exit_code_and_message() -> None:
    ended: dict[str, Any] = {"containerStatuses": container(terminated={"exitCode": 3, "reason": "Error", "message": "bye"})}
    found = listed_pod(pod("Failed", **ended))
    assert found.end == PodEnd(3, "bye")
    assert found.counts_as_ended
    assert not found.is_live


def test_a_program_that_ran_out_of_memory_says_so() -> None:
    killed: dict[str, Any] = {"containerStatuses": container(terminated={"exitCode": 137, "reason": "OOMKilled"})}
    found = listed_pod(pod("Failed", **killed))
    assert found.end is not None
    assert found.end.is_out_of_memory


DISRUPTED: dict[str, dict[str, Any]] = {
    "evicted": {"reason": "Evicted", "message": "The node was low on resource: memory."},
    "shut down": {"reason": "Terminated", "message": "Pod was terminated in response to imminent node shutdown."},
    "drained": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]},
    "preempted": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
}


@pytest.mark.parametrize("name", DISRUPTED)
def test_a_pod_that_the_cluster_ended_is_no_end_of_its_program(name: str) -> None:
    found = listed_pod(pod("Failed", **DISRUPTED[name]))
    assert found.disruption
    assert not found.counts_as_ended
    assert not found.is_live


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown"])
def test_only_a_node_says_that_a_pod_has_no_processes(phase: str) -> None:
    found = listed_pod(pod(phase, deleted="2026-01-01T00:00:00Z", reason="NodeLost"))
    assert found.is_live
    assert "node-1" in found.waiting
    assert "2026-01-01" in found.waiting


def test_a_deleted_pod_that_has_ended_is_no_end_of_its_program() -> None:
    ended: dict[str, Any] = {"containerStatuses": container(terminated={"exitCode": 143})}
    assert not listed_pod(pod("Failed", deleted="2026-01-01T00:00:00Z", **ended)).counts_as_ended


def test_the_newest_warning_counts() -> None:
    events = [
        {"type": "Warning", "reason": "FailedMount", "message": "new", "lastTimestamp": "2026-01-02T00:00:00Z"},
        {"type": "Warning", "reason": "FailedMount", "message": "old", "lastTimestamp": "2026-01-01T00:00:00Z"},
        {"type": "Normal", "reason": "Pulled", "message": "fine", "lastTimestamp": "2026-01-03T00:00:00Z"},
    ]
    assert event_words(events) == "FailedMount: new"
    assert event_words([]) == ""
