"""What a listing of pods and claims means, for every combination of a claim and its record."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from tests.runtimes.docker.test_listing import FOREIGN, HOME, MARKER, MEANS, OWN, RECORDS
from tests.runtimes.kubernetes.test_pod_state import pod
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ObservedVolume
from torpor.ports import Fence, Home
from torpor.runtimes import record_changes
from torpor.runtimes.home_record import ABSENT, HomeRecord, RecordState, UnreadableRecord
from torpor.runtimes.kubernetes import manifests
from torpor.runtimes.kubernetes.listing import FINALIZER, MADE, ClaimedHome, listed_claim, listing
from torpor.runtimes.kubernetes.options import KubernetesOptions
from torpor.runtimes.kubernetes.pod_state import listed_pod
from torpor.runtimes.object_labels import home_name

OPTIONS = KubernetesOptions("test", "image:1", "kit:1", grace_s=2.0, user=1000, volume_size="1Gi", access_mode="ReadWriteOnce")
HALF_MADE = HomeRecord(1, RecordState.HALF_MADE, None, 0, 5, OWN, "nonce")


def claim_json(record: HomeRecord = HALF_MADE, home: Home = HOME, **metadata: Any) -> dict[str, Any]:
    """As the cluster returns it."""
    made = manifests.claim(OPTIONS, home, record)
    return {**made, "metadata": {**made["metadata"], "uid": "u", "resourceVersion": "8", **metadata}}


def listed(record: HomeRecord = HALF_MADE, **metadata: Any) -> ClaimedHome:
    found = listed_claim(claim_json(record, **metadata))
    assert found is not None
    return ClaimedHome(HOME, found)


@pytest.mark.parametrize(("said", "birth"), list(itertools.product(RECORDS, (ABSENT, OWN, FOREIGN))))
def test_every_record_with_every_volume_means_the_same_as_on_docker(said: str, birth: str) -> None:
    expected = MEANS[said][(ABSENT, OWN, FOREIGN).index(birth)]
    if birth == ABSENT:
        assert ClaimedHome(HOME).seen() is None, "without a claim there is no record"
        return
    claim = listed().claim
    assert claim is not None
    assert ClaimedHome(HOME, replace(claim, birth=birth, record=RECORDS[said])).seen() == expected


@pytest.mark.parametrize("said", [name for name, record in RECORDS.items() if isinstance(record, HomeRecord)])
def test_a_record_is_read_as_it_was_written(said: str) -> None:
    record = RECORDS[said]
    assert isinstance(record, HomeRecord)
    assert listed(record).record == record


def test_a_claim_with_a_damaged_record_is_illegible() -> None:
    annotations = {**manifests.record_annotations(HALF_MADE), "torpor.state": "{"}
    found = listed(annotations=annotations)
    assert isinstance(found.current, UnreadableRecord)
    assert found.seen() == ObservedVolume(3, None, is_illegible=True)


def test_a_claim_without_a_record_is_illegible_and_never_half_made() -> None:
    found = listed(annotations={})
    assert found.seen() == ObservedVolume(3, None, is_illegible=True)
    assert not found.is_half_made


def test_a_claim_that_another_program_deleted_is_illegible_and_its_volume_is_named() -> None:
    ready = HomeRecord(2, RecordState.READY, MARKER, 2, 5, OWN, "nonce")
    made = claim_json(ready, deletionTimestamp="2026-01-01T00:00:00Z")
    claim = listed_claim({**made, "spec": {**made["spec"], "volumeName": "pvc-7"}})
    found = ClaimedHome(HOME, claim)
    seen = found.seen()
    assert seen == ObservedVolume(3, None, is_illegible=True)
    assert seen is not None
    assert "pvc-7" in seen.fault
    assert "deleted" in seen.fault
    with pytest.raises(Failed) as refusal:
        record_changes.ready(found)
    assert refusal.value.code is Code.VOLUME_NOT_READY


@pytest.mark.parametrize("lost", ["torpor.kind", "torpor.birth", "torpor.installation"])
def test_a_claim_without_torpors_labels_is_not_torpors(lost: str) -> None:
    made = claim_json()
    labels = {name: value for name, value in made["metadata"]["labels"].items() if name != lost}
    assert listed_claim({**made, "metadata": {**made["metadata"], "labels": labels}}) is None


def test_a_claim_has_a_finalizer_and_says_whether_it_was_made() -> None:
    assert listed_claim(claim_json()) is not None
    claim = listed(annotations={MADE: "true"}).claim
    assert claim is not None
    assert claim.is_made
    assert claim.finalizers == (FINALIZER,)
    assert claim.name == home_name(HOME)


def test_pods_are_sorted_by_workspace_and_home() -> None:
    claim = listed().claim
    assert claim is not None
    workspace = listed_pod(pod("Running"))
    job = listed_pod({**pod("Running"), "metadata": {**pod()["metadata"], "name": "job", "uid": "u2"}})
    job = replace(job, facts={**job.facts, "torpor.kind": "job"})
    found = listing([workspace, job], [claim])
    assert found.of(HOME).pod == workspace
    assert found.of(HOME).jobs == (job,)
    assert found.runs_on(HOME)
    assert not listing([replace(workspace, phase="Failed")], [claim]).runs_on(HOME)


def test_the_newest_epoch_of_pod_and_claim_counts() -> None:
    claim = listed().claim
    assert claim is not None
    found = listing([replace(listed_pod(pod("Running")), facts={**listed_pod(pod()).facts, "torpor.epoch": "9"})], [claim])
    found.admit(HOME.workspace_id, Fence("op", 9))
    with pytest.raises(Failed) as refusal:
        found.admit(HOME.workspace_id, Fence("op", 8))
    assert refusal.value.code is Code.STALE_EPOCH
