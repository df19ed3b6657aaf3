"""Map an operation and its progress to the next effect on the runtime and the archive store.

An effect is a value; `control/effect_executor.py` executes it and makes no decisions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torpor.domain.records import Archive, ArchiveKey, Verdict, Workspace
from torpor.domain.states import Operation


@dataclass(frozen=True, slots=True)
class MakeHome:
    """Create an empty volume with its marker; discard half-made volumes of earlier attempts."""

    generation: int
    discard: frozenset[int]


@dataclass(frozen=True, slots=True)
class Restore:
    """Fill a volume from the archive, then write its marker; discard half-made volumes of earlier attempts."""

    generation: int
    archive: Archive
    discard: frozenset[int]


@dataclass(frozen=True, slots=True)
class AcceptHome:
    """Write a new marker for the existing home; its files stay as they are."""

    generation: int


@dataclass(frozen=True, slots=True)
class Start:
    generation: int
    revision: int


@dataclass(frozen=True, slots=True)
class BeforeSleep:
    """Run this command inside the container before the stop. The stop follows also if the command fails."""

    command: tuple[str, ...]
    within_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    pass


@dataclass(frozen=True, slots=True)
class Pack:
    """Write the home as an archive and verify it."""

    key: ArchiveKey
    generation: int
    revision: int


@dataclass(frozen=True, slots=True)
class PackEmpty:
    """Write the archive of an empty home and verify it."""

    key: ArchiveKey
    generation: int
    revision: int


@dataclass(frozen=True, slots=True)
class CopyArchive:
    """Copy the archive of another workspace, and verify the copy: the first archive of this workspace."""

    source: Archive
    target: ArchiveKey


@dataclass(frozen=True, slots=True)
class DropHome:
    """Remove the volume whose exact state the archive holds."""

    generation: int
    archived_revision: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the container, then the volumes of all generations."""


Effect = MakeHome | Restore | AcceptHome | Start | BeforeSleep | Stop | Pack | PackEmpty | CopyArchive | DropHome | Remove


def _op_id(workspace: Workspace) -> str:
    assert workspace.op_id is not None, "an operation in progress has its op_id committed before any effect"
    return workspace.op_id


def _restore(workspace: Workspace, verdict: Verdict) -> Effect:
    assert workspace.archive is not None, "RESTORING begins from ARCHIVED only"
    return Restore(workspace.generation, workspace.archive, verdict.half_made - {workspace.generation})


def _archive(workspace: Workspace, _verdict: Verdict) -> Effect:
    if workspace.is_archived:
        return DropHome(workspace.generation, archived_revision=workspace.revision)
    return Pack(ArchiveKey(workspace.id, _op_id(workspace)), workspace.generation, workspace.revision)


def _copy(workspace: Workspace, _verdict: Verdict) -> Effect:
    assert workspace.fork_source is not None, "COPYING begins only in a fork"
    return CopyArchive(workspace.fork_source, ArchiveKey(workspace.id, _op_id(workspace)))


# Every operation but NONE has its next effect.
NEXT_EFFECT: Mapping[Operation, Callable[[Workspace, Verdict], Effect]] = {
    Operation.PROVISIONING: lambda workspace, verdict: MakeHome(
        workspace.generation, verdict.half_made - {workspace.generation}
    ),
    Operation.RESTORING: _restore,
    Operation.ACCEPTING: lambda workspace, _verdict: AcceptHome(workspace.generation),
    Operation.STARTING: lambda workspace, _verdict: Start(workspace.generation, workspace.revision),
    Operation.STOPPING: lambda _workspace, _verdict: Stop(),
    Operation.ARCHIVING: _archive,
    Operation.COPYING: _copy,
    Operation.CREATE_EMPTY_ARCHIVE: lambda workspace, _verdict: PackEmpty(
        ArchiveKey(workspace.id, _op_id(workspace)), workspace.generation, workspace.revision
    ),
    Operation.DELETING: lambda _workspace, _verdict: Remove(),
}
