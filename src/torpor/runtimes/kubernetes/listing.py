"""Decide what a listing of pods and claims means: homes, their records, pods, and an observation.

Pure. Pods are listed before claims: a home that is observed as ready is then not one whose pod was missed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torpor.domain.records import ObservedVolume
from torpor.ports import Fence, Home
from torpor.runtimes import object_labels
from torpor.runtimes.fencing import admit
from torpor.runtimes.home_record import (
    ABSENT,
    STATE,
    AnyRecord,
    HomeRecord,
    RecordState,
    RecordWords,
    observed,
    owned,
    parse,
)
from torpor.runtimes.kubernetes.pod_state import ListedPod
from torpor.runtimes.object_labels import BIRTH, INSTALLATION, KIND, ObjectKind

NUMBER = "torpor.number"
MADE = "torpor.made"
"""Of a claim: its volume has the folders of a home. From then on, a volume without them is not this home."""
FINALIZER = "torpor/home"
"""Of a claim: Kubernetes does not remove it before Torpor agrees."""


@dataclass(frozen=True, slots=True)
class ListedClaim:
    uid: str
    name: str
    version: str
    birth: str
    record: AnyRecord | None
    is_made: bool
    deleted_at: str
    finalizers: tuple[str, ...]
    volume: str
    """The name of its PersistentVolume; empty: not bound yet."""
    requested: str
    """The size that it asks for."""


@dataclass(frozen=True, slots=True)
class ClaimedHome:
    """All objects of one home."""

    home: Home
    claim: ListedClaim | None = None
    jobs: tuple[ListedPod, ...] = ()
    pod: ListedPod | None = None
    """The workspace's pod, if it was created for this home."""

    @property
    def birth(self) -> str:
        return self.claim.birth if self.claim is not None else ABSENT

    @property
    def current(self) -> AnyRecord | None:
        return self.claim.record if self.claim is not None else None

    @property
    def record(self) -> HomeRecord | None:
        return owned(self.birth, self.current)

    @property
    def next_number(self) -> int:
        return self.current.number + 1 if self.current is not None else 1

    @property
    def epoch(self) -> int:
        return self.current.epoch if self.current is not None else 0

    @property
    def is_half_made(self) -> bool:
        """Whether it may be discarded: it was never complete, or its removal has begun."""
        return self.record is not None and self.record.state is not RecordState.READY

    def seen(self) -> ObservedVolume | None:
        """What an observation says about this home; None: there is no volume."""
        name = object_labels.home_name(self.home)
        volume = self.claim.volume if self.claim is not None else ""
        at = f"{name} (PersistentVolume {volume})" if volume else name
        words = RecordWords(
            record=f"the annotations of the claim {name}",
            missing=f"the claim {name} has no annotation {STATE}",
            volume=name,
            home_at=at,
        )
        found = observed(self.home, self.birth, self.current, words)
        if found is not None and found.marker is not None and self.claim is not None and self.claim.deleted_at:
            fault = f"its marker does not count any more: another program deleted the claim {at} at {self.claim.deleted_at}"
            return ObservedVolume(self.home.generation, None, True, f"{fault}; Torpor keeps its files until you purge it", at)
        return found


@dataclass(frozen=True, slots=True)
class ClusterListing:
    """All objects of an installation, or of some of its workspaces."""

    homes: Mapping[Home, ClaimedHome] = field(default_factory=dict)
    pods: Mapping[str, ListedPod] = field(default_factory=dict)
    """By workspace."""

    def of(self, home: Home) -> ClaimedHome:
        return self.homes.get(home, ClaimedHome(home))

    def homes_of(self, workspace_id: str) -> list[ClaimedHome]:
        return [listed for home, listed in self.homes.items() if home.workspace_id == workspace_id]

    def runs_on(self, home: Home) -> bool:
        """Whether a pod of this home may have processes."""
        pod = self.pods.get(home.workspace_id)
        return pod is not None and pod.is_live and pod.home == home

    def epoch(self, workspace_id: str) -> int:
        """The newest epoch that changed an object of this workspace."""
        pod = self.pods.get(workspace_id)
        epochs = [listed.epoch for listed in self.homes_of(workspace_id)]
        return max([*epochs, pod.epoch if pod is not None else 0])

    def admit(self, workspace_id: str, fence: Fence, known: int = 0) -> None:
        """Raise STALE_EPOCH for a caller with an older epoch than one in the listing, or than `known`."""
        admit(fence, max(known, self.epoch(workspace_id)))

    def with_claim(self, home: Home, claim: ListedClaim) -> "ClusterListing":
        """The same, after this claim was changed."""
        return replace(self, homes={**self.homes, home: replace(self.of(home), claim=claim)})


def listed_claim(claim: Mapping[str, Any]) -> ListedClaim | None:
    """None for a claim that is not Torpor's."""
    metadata, spec = claim["metadata"], claim.get("spec") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if labels.get(KIND) != ObjectKind.HOME or not labels.get(INSTALLATION) or not labels.get(BIRTH):
        return None
    number = annotations.get(NUMBER, "")
    has_record = STATE in annotations
    record = parse(int(number) if number.isdecimal() else 0, annotations) if has_record else None
    return ListedClaim(
        uid=str(metadata["uid"]),
        name=str(metadata["name"]),
        version=str(metadata["resourceVersion"]),
        birth=labels[BIRTH],
        record=record,
        is_made=annotations.get(MADE) == "true",
        deleted_at=str(metadata.get("deletionTimestamp") or ""),
        finalizers=tuple(metadata.get("finalizers") or ()),
        volume=str(spec.get("volumeName") or ""),
        requested=str(((spec.get("resources") or {}).get("requests") or {}).get("storage", "")),
    )


def listing(pods: Iterable[ListedPod], claims: Iterable[ListedClaim]) -> ClusterListing:
    """Sort objects by workspace and home. Objects without valid names or labels are not Torpor's and are left out."""
    found: dict[Home, ListedClaim] = {}
    for claim in claims:
        if (home := object_labels.parse_home_name(claim.name)) is not None:
            found[home] = claim
    jobs: dict[Home, list[ListedPod]] = {}
    running: dict[str, ListedPod] = {}
    for pod in pods:
        match pod.kind:
            case ObjectKind.JOB if pod.home is not None:
                jobs.setdefault(pod.home, []).append(pod)
            case ObjectKind.WORKSPACE if pod.home is not None:
                running[pod.workspace_id] = pod
            case _:
                pass
    homes = {
        home: ClaimedHome(
            home,
            found.get(home),
            tuple(jobs.get(home, ())),
            one if (one := running.get(home.workspace_id)) is not None and one.home == home else None,
        )
        for home in found.keys() | jobs.keys()
    }
    return ClusterListing(homes, running)
