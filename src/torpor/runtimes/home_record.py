"""Define the record of a home, how it is written in labels or annotations, and what it means for an observation.

Each runtime decides where a record is kept and how two writers are told apart. Docker: the labels of an empty volume, with a
number and a nonce. Kubernetes: the annotations of the claim, with the claim's version.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from torpor.domain.records import Marker, ObservedVolume
from torpor.ports import Home
from torpor.runtimes.object_labels import BIRTH, EPOCH, NONCE

STATE, ROOT, REVISION = "torpor.state", "torpor.root", "torpor.revision"
MARKER_WORKSPACE, MARKER_GENERATION = "torpor.marker-workspace", "torpor.marker-generation"

MARKER_FILE, BIRTH_FILE = "marker.json", "birth"
"""In the folder `torpor.domain.names.OWN_FOLDER`."""
ABSENT = ""
"""The birth of a home without a volume."""

# The database stores these as 64-bit numbers.
MOST = 1 << 62


class RecordState(StrEnum):
    HALF_MADE = "half-made"
    READY = "ready"
    GOING = "going"
    """The home is being removed. It is never opened again."""


@dataclass(frozen=True, slots=True)
class HomeRecord:
    number: int
    state: RecordState
    marker: Marker | None
    """Of a home that is or was ready."""
    revision: int | None
    """The highest revision that the home was opened with; None: not known, because an earlier record was lost."""
    epoch: int
    birth: str
    nonce: str

    def labels(self) -> dict[str, str]:
        marked = self.marker
        return {
            STATE: self.state.value,
            REVISION: "" if self.revision is None else str(self.revision),
            EPOCH: str(self.epoch),
            BIRTH: self.birth,
            NONCE: self.nonce,
            **(
                {
                    MARKER_WORKSPACE: marked.workspace_id,
                    MARKER_GENERATION: str(marked.generation),
                    ROOT: marked.manifest_root,
                }
                if marked is not None
                else {}
            ),
        }


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A record whose labels are missing or invalid."""

    number: int
    why: str
    epoch: int
    """0 if it cannot be read either."""


AnyRecord = HomeRecord | UnreadableRecord


def parse(number: int, labels: Mapping[str, str]) -> AnyRecord:
    try:
        state = RecordState(labels.get(STATE, ""))
        return HomeRecord(
            number,
            state,
            _marker(labels, state),
            _number(labels, REVISION) if labels.get(REVISION) != "" else None,
            _number(labels, EPOCH),
            _text(labels, BIRTH),
            _text(labels, NONCE),
        )
    except ValueError as error:
        return UnreadableRecord(number, str(error), _epoch_or_zero(labels))


def _marker(labels: Mapping[str, str], state: RecordState) -> Marker | None:
    if state is not RecordState.READY and MARKER_WORKSPACE not in labels:
        return None
    if ROOT not in labels:
        raise ValueError(f"the label {ROOT} is missing")
    return Marker(_text(labels, MARKER_WORKSPACE), _number(labels, MARKER_GENERATION), labels[ROOT])


def _number(labels: Mapping[str, str], name: str) -> int:
    text = labels.get(name, "")
    if not (text.isascii() and text.isdigit() and int(text) < MOST):
        raise ValueError(f"the label {name} is not a number: {text!r}")
    return int(text)


def _text(labels: Mapping[str, str], name: str) -> str:
    if not labels.get(name):
        raise ValueError(f"the label {name} is missing")
    return labels[name]


def _epoch_or_zero(labels: Mapping[str, str]) -> int:
    try:
        return _number(labels, EPOCH)
    except ValueError:
        return 0


def marker_facts(marker: Marker, birth: str) -> dict[str, object]:
    """The content of the marker file in the volume."""
    facts = {"workspace_id": marker.workspace_id, "generation": marker.generation, "manifest_root": marker.manifest_root}
    return {**facts, "birth": birth}


@dataclass(frozen=True, slots=True)
class RecordWords:
    """How a runtime names the parts of a home in messages."""

    record: str
    """Such as: the labels of the volume X"""
    missing: str
    """Such as: there is no volume X"""
    volume: str
    home_at: str


def observed(home: Home, birth: str, current: AnyRecord | None, words: RecordWords) -> ObservedVolume | None:
    """What an observation says about a home with a volume of this birth and this record; None: there is no volume."""
    generation = home.generation
    match owned(birth, current):
        case HomeRecord(state=RecordState.HALF_MADE | RecordState.GOING):
            return ObservedVolume(generation, None, fault="it was not filled completely", home_at=words.home_at)
        case _ if birth == ABSENT:
            return None
        case HomeRecord(marker=marker) if marker is not None and marker.workspace_id != home.workspace_id:
            fault = f"its marker names another workspace: {words.record}"
            return ObservedVolume(generation, None, True, fault, words.home_at, has_home=False)
        case HomeRecord(marker=marker) if marker is not None and marker.generation == generation:
            return ObservedVolume(generation, marker)
        case HomeRecord():
            fault = f"its marker names another home: {words.record}"
        case None if isinstance(current, UnreadableRecord):
            fault = f"its marker cannot be read: {words.record} ({current.why})"
        case None if current is not None:
            fault = f"its marker, {words.record}, belongs to another volume than {words.volume}"
        case None:
            fault = f"its marker is missing: {words.missing}"
    return ObservedVolume(generation, None, True, fault, words.home_at)


def owned(birth: str, current: AnyRecord | None) -> HomeRecord | None:
    """The record, if it can be read and belongs to the volume of this birth (or to none, if there is no volume)."""
    return current if isinstance(current, HomeRecord) and birth in (ABSENT, current.birth) else None
