"""Define the record of a home, and how it is written in labels.

The objects of an engine cannot be changed. So a record is an empty volume whose labels are the record. Its name ends with a
number, and the highest number is the current record. To change a record, a caller creates the next number with a nonce, and
has won if its number is then the highest and carries its nonce.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from torpor.domain.records import Marker
from torpor.runtimes.docker.object_names import BIRTH, EPOCH, NONCE

STATE, ROOT, REVISION = "torpor.state", "torpor.root", "torpor.revision"
MARKER_WORKSPACE, MARKER_GENERATION = "torpor.marker-workspace", "torpor.marker-generation"

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
