"""What the answers of a real cluster mean. `record_answers.py` has recorded them."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.runtimes.kubernetes.record_answers import RECORDED
from torpor.domain.errors import Code, Failed, TorporError, Unavailable
from torpor.runtimes.kubernetes.cluster_client import ClusterRefusal, translated
from torpor.runtimes.kubernetes.listing import ClaimedHome, listed_claim, listing
from torpor.runtimes.kubernetes.pod_state import ListedPod, TroubleKind, event_words, listed_pod

FINAL, WAITS = TroubleKind.FINAL, TroubleKind.WAITS


@dataclass(frozen=True)
class Recorded:
    pod: ListedPod
    home: ClaimedHome
    pod_events: list[dict[str, Any]]
    claim_events: list[dict[str, Any]]


def recorded(name: str) -> Recorded:
    found = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    (pod,) = map(listed_pod, found["pods"])
    (claim,) = map(listed_claim, found["claims"])
    assert claim is not None
    assert pod.home is not None
    pods, claims = (
        [event for event in found["events"] if event["involvedObject"]["kind"] == kind]
        for kind in ("Pod", "PersistentVolumeClaim")
    )
    return Recorded(pod, listing([pod], [claim]).of(pod.home), pods, claims)


@pytest.mark.parametrize("path", sorted(RECORDED.glob("[!a]*.json")), ids=lambda path: path.stem)
def test_every_pod_belongs_to_its_home(path: Any) -> None:
    found = recorded(path.stem)
    assert found.home.pod == found.pod
    assert found.home.claim is not None
    assert found.pod.claims == {found.home.claim.name}
    assert found.home.record is not None
    assert found.home.record.marker is not None


def test_a_running_pod_has_an_address_and_no_trouble() -> None:
    pod = recorded("running").pod
    assert (pod.is_live, pod.has_started, pod.waiting, pod.end) == (True, True, "", None)
    assert pod.address
    assert pod.node == "node-1"


def test_an_ended_program_has_its_exit_code() -> None:
    pod = recorded("ended").pod
    assert pod.counts_as_ended
    assert pod.end is not None
    assert pod.end.exit_code == 3


TROUBLES = {
    "no-node": (WAITS, Code.CONTAINER_START_FAILED, "no node can run it now: 0/1 nodes are available"),
    "registry-out": (WAITS, Code.IMAGE_PULL_INTERRUPTED, "torpor.invalid/no/such:1"),
    "never-pulled": (FINAL, Code.IMAGE_PULL_FAILED, "torpor.invalid/no/such:1"),
    "bad-image-name": (FINAL, Code.IMAGE_PULL_FAILED, "NO//such"),
    "wrong-volume": (FINAL, Code.VOLUME_NOT_READY, "not this home"),
    "no-storage-class": (WAITS, Code.CONTAINER_START_FAILED, "PersistentVolumeClaim"),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_a_pod_that_does_not_start_says_why(name: str) -> None:
    kind, code, words = TROUBLES[name]
    pod = recorded(name).pod
    assert pod.trouble is not None
    assert (pod.trouble.kind, pod.trouble.code) == (kind, code)
    assert words in pod.waiting
    assert not pod.has_started
    assert pod.is_live


def test_the_events_of_a_claim_name_its_storage_class() -> None:
    found = recorded("no-storage-class")
    assert found.pod.waits_for_events
    assert 'storageclass.storage.k8s.io "no-such-class" not found' in event_words(found.claim_events)


def test_a_pod_that_was_deleted_on_a_lost_node_may_still_have_processes() -> None:
    pod = recorded("deleted-on-a-lost-node").pod
    assert pod.is_live
    assert pod.is_terminating
    assert not pod.counts_as_ended
    assert "node-1 has not confirmed its end" in pod.waiting


def test_a_claim_that_was_deleted_by_hand_is_illegible_and_names_its_volume() -> None:
    home = recorded("claim-deleted-by-hand").home
    seen = home.seen()
    assert home.claim is not None
    assert seen is not None
    assert seen.is_illegible
    assert home.claim.volume in seen.fault


ANSWERS: dict[str, tuple[type[TorporError], str]] = {
    "expired": (Unavailable, "renew"),
    "no-right-to-read": (Unavailable, 'cannot list resource "pods"'),
    "no-right-to-create": (Failed, 'cannot create resource "configmaps"'),
    "pod-security": (ClusterRefusal, "violates PodSecurity"),
    "quota": (ClusterRefusal, "exceeded quota"),
    "invalid": (ClusterRefusal, "Required value"),
    "absent": (ClusterRefusal, "not found"),
    "conflict": (ClusterRefusal, "has been modified"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_error_is_translated(name: str) -> None:
    meaning, words = ANSWERS[name]
    said = json.loads((RECORDED / f"answer-{name}.json").read_text(encoding="utf-8"))
    error = translated(said["status"], said["body"]["message"], said["method"], said["path"], "https://cluster")
    assert type(error) is meaning
    assert words in error.message


def test_every_recorded_answer_is_tested() -> None:
    pods = {"running", "ended", "deleted-on-a-lost-node", "claim-deleted-by-hand", *TROUBLES}
    assert {path.stem for path in RECORDED.glob("*.json")} == pods | {f"answer-{name}" for name in ANSWERS}
