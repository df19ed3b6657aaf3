"""Decide what the JSON of a pod means: whether it has processes, how it ended, and what it waits for.

Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torpor.domain.errors import Code
from torpor.inside.prepare_pod import WRONG_VOLUME
from torpor.ports import Home
from torpor.runtimes.image_answers import pull_failed
from torpor.runtimes.object_labels import EPOCH, GENERATION, KIND, WORKSPACE

PREPARE, MAIN = "prepare", "workspace"
"""The names of the containers of a pod."""
PULL_REASONS = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError", "SignatureValidationFailed")
START_REASONS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PostStartHookError")
# The reasons of a pod that the cluster ended: not the end of its program.
DISRUPTIONS = frozenset(
    {
        *("Evicted", "Preempting", "Preempted", "NodeShutdown", "Shutdown", "Terminated", "NodeLost", "NodeAffinity"),
        *("TaintManagerEviction", "DeletionByTaintManager", "DeletionByPodGC", "EvictionByEvictionAPI"),
        *("PreemptionByScheduler", "TerminationByKubelet", "UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods"),
    }
)
DISRUPTION_TARGET = "DisruptionTarget"


class TroubleKind(StrEnum):
    WAITS = "it may start later without a change"
    BROKEN = "it may start later, but usually does not"
    FINAL = "it never starts"


@dataclass(frozen=True, slots=True)
class PodTrouble:
    """Why a pod does not run yet, in a sentence for users."""

    kind: TroubleKind
    code: Code
    message: str


@dataclass(frozen=True, slots=True)
class PodEnd:
    exit_code: int
    message: str
    """Its termination message."""
    is_out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class ListedPod:
    uid: str
    name: str
    version: str
    facts: Mapping[str, str]
    """Its labels and annotations."""
    phase: str
    address: str
    """Its IP address, while it has one."""
    node: str
    deleted_at: str
    """When its deletion was requested; empty: it was not."""
    has_started: bool
    """Its own container runs or ran."""
    end: PodEnd | None
    """Of its own container."""
    disruption: str
    """Why the cluster ended it; empty: it did not."""
    trouble: PodTrouble | None
    claims: frozenset[str]

    @property
    def is_live(self) -> bool:
        """Whether it may have processes. Only its node says that it has none."""
        return self.phase not in ("Succeeded", "Failed")

    @property
    def is_terminating(self) -> bool:
        return bool(self.deleted_at)

    @property
    def counts_as_ended(self) -> bool:
        """Whether its program ended by itself, and not because the pod was deleted or evicted."""
        return not self.is_live and not self.disruption and not self.is_terminating

    @property
    def kind(self) -> str:
        return self.facts.get(KIND, "")

    @property
    def workspace_id(self) -> str:
        return self.facts.get(WORKSPACE, "")

    @property
    def home(self) -> Home | None:
        generation = self.facts.get(GENERATION, "")
        return Home(self.workspace_id, int(generation)) if generation.isdecimal() else None

    @property
    def epoch(self) -> int:
        text = self.facts.get(EPOCH, "")
        return int(text) if text.isdecimal() else 0

    @property
    def waits_for_events(self) -> bool:
        """Whether the events about it, or about its claim, say more than its status."""
        is_about_claim = self.trouble is not None and not self.node and "PersistentVolumeClaim" in self.trouble.message
        return self.is_live and not self.has_started and (self.trouble is None or is_about_claim)

    @property
    def waiting(self) -> str:
        """What it waits for, for users; empty: nothing unusual."""
        if self.is_live and self.is_terminating:
            return still_there(self)
        return self.trouble.message if self.trouble is not None else ""


def still_there(pod: ListedPod) -> str:
    """Why a pod that is being deleted is waited for."""
    node = pod.node or "its node"
    return (
        f"the pod {pod.name} is being deleted since {pod.deleted_at}, and {node} has not confirmed its end; Torpor waits, "
        f"because its processes may still run. If the node is lost for good, delete it (kubectl delete node {node})"
    )


def listed_pod(pod: Mapping[str, Any]) -> ListedPod:
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    end = _end(status)
    return ListedPod(
        uid=str(metadata["uid"]),
        name=str(metadata["name"]),
        version=str(metadata["resourceVersion"]),
        facts={**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})},
        phase=str(status.get("phase", "Pending")),
        address=str(status.get("podIP", "")),
        node=str(spec.get("nodeName", "")),
        deleted_at=str(metadata.get("deletionTimestamp") or ""),
        has_started=end is not None or any("running" in state for _, state in _states(status, "containerStatuses")),
        end=end,
        disruption=_disruption(status),
        trouble=_trouble(status),
        claims=frozenset(
            str(volume["persistentVolumeClaim"]["claimName"])
            for volume in spec.get("volumes") or ()
            if volume.get("persistentVolumeClaim")
        ),
    )


def _states(status: Mapping[str, Any], field: str) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """The containers of a pod, each with its state."""
    for container in status.get(field) or ():
        yield container, container.get("state") or {}


def _end(status: Mapping[str, Any]) -> PodEnd | None:
    for _, state in _states(status, "containerStatuses"):
        if (ended := state.get("terminated")) is not None:
            is_out_of_memory = ended.get("reason") == "OOMKilled"
            return PodEnd(int(ended.get("exitCode", -1)), str(ended.get("message", "")), is_out_of_memory)
    return None


def _disruption(status: Mapping[str, Any]) -> str:
    """A pod that has ended because its node or the cluster wanted that."""
    if status.get("phase") != "Failed":
        return ""
    reason, message = str(status.get("reason", "")), str(status.get("message", ""))
    if reason in DISRUPTIONS:
        return f"{reason}: {message}" if message else reason
    for condition in status.get("conditions") or ():
        if condition.get("type") == DISRUPTION_TARGET and condition.get("status") == "True":
            return f"{condition.get('reason', DISRUPTION_TARGET)}: {condition.get('message', '')}"
    return ""


def _trouble(status: Mapping[str, Any]) -> PodTrouble | None:
    for container, state in (*_states(status, "initContainerStatuses"), *_states(status, "containerStatuses")):
        if (found := _container_trouble(container, state)) is not None:
            return found
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = f"no node can run it now: {condition.get('message') or condition.get('reason', '')}"
            return PodTrouble(TroubleKind.WAITS, Code.CONTAINER_START_FAILED, message)
    return None


def _container_trouble(container: Mapping[str, Any], state: Mapping[str, Any]) -> PodTrouble | None:
    image = str(container.get("image", ""))
    match state:
        case {"waiting": {"reason": "InvalidImageName" | "ErrImageNeverPull" as reason}}:
            message = f"cannot pull the image {image!r}: {state['waiting'].get('message') or reason}"
            return PodTrouble(TroubleKind.FINAL, Code.IMAGE_PULL_FAILED, message)
        case {"waiting": {"reason": reason}} if reason in PULL_REASONS:
            failed = pull_failed(image, str(state["waiting"].get("message") or reason))
            is_final = failed.code is Code.IMAGE_PULL_FAILED
            return PodTrouble(TroubleKind.FINAL if is_final else TroubleKind.WAITS, failed.code, failed.message)
        case {"waiting": {"reason": reason}} if reason in START_REASONS:
            message = f"the node cannot start its container: {reason}: {state['waiting'].get('message', '')}"
            return PodTrouble(TroubleKind.BROKEN, Code.CONTAINER_START_FAILED, message)
        case {"terminated": {"exitCode": int(code)} as ended} if container.get("name") == PREPARE and code != 0:
            said = str(ended.get("message") or ended.get("reason") or f"exit code {code}").strip()
            meaning = Code.VOLUME_NOT_READY if code == WRONG_VOLUME else Code.CONTAINER_START_FAILED
            return PodTrouble(TroubleKind.FINAL, meaning, said)
        case _:
            return None


def event_words(events: Sequence[Mapping[str, Any]]) -> str:
    """What the newest warning about a pod says; empty: there is none."""
    warnings = [event for event in events if event.get("type") == "Warning"]
    if not warnings:
        return ""
    newest = max(warnings, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return f"{newest.get('reason', '')}: {newest.get('message', '')}"
