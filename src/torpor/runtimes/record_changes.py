"""Decide how a home's record changes: the next record, or a refusal.

Pure. Each function returns the record to write, or None if the current one already says it.
"""

from dataclasses import replace
from typing import Protocol

from torpor.domain.errors import Code, Failed
from torpor.domain.records import Marker, ObservedVolume
from torpor.ports import Home
from torpor.runtimes.home_record import ABSENT, AnyRecord, HomeRecord, RecordState


class ListedRecord(Protocol):
    """A home as a runtime has just listed it."""

    @property
    def home(self) -> Home: ...

    @property
    def birth(self) -> str:
        """Of its volume; ABSENT if there is none."""
        ...

    @property
    def current(self) -> AnyRecord | None: ...

    @property
    def record(self) -> HomeRecord | None:
        """The current record, if it can be read and belongs to this volume."""
        ...

    @property
    def next_number(self) -> int: ...

    @property
    def is_half_made(self) -> bool: ...

    def seen(self) -> ObservedVolume | None: ...


def made(listed: ListedRecord, epoch: int, nonce: str, birth: str) -> HomeRecord | None:
    """There is a volume. `birth` is for a new one. A home that is or was complete is left as it is."""
    generation, record = listed.home.generation, listed.record
    if record is not None and record.state is RecordState.GOING:
        raise Failed(Code.VOLUME_CREATE_FAILED, f"the volume of generation {generation} is being removed")
    if listed.birth != ABSENT:
        return None
    if record is None and listed.current is None:
        return HomeRecord(1, RecordState.HALF_MADE, None, 0, epoch, birth, nonce)
    if record is not None and record.state is RecordState.HALF_MADE:
        return _next(listed, record, epoch, nonce)
    message = f"the volume of generation {generation} has a record, but was removed from the engine by another program"
    raise Failed(Code.VOLUME_CREATE_FAILED, f"{message}; its files are lost, so no empty volume replaces it")


def marked(listed: ListedRecord, marker: Marker, epoch: int, nonce: str) -> HomeRecord | None:
    """The home is complete. A record that is missing or cannot be read is replaced."""
    generation, record = listed.home.generation, listed.record
    if listed.birth == ABSENT or (record is not None and record.state is RecordState.GOING):
        raise Failed(Code.VOLUME_NOT_READY, f"there is no volume of generation {generation} to mark")
    if record is None:
        return HomeRecord(listed.next_number, RecordState.READY, marker, None, epoch, listed.birth, nonce)
    if record.marker is not None and record.marker.workspace_id != listed.home.workspace_id:
        message = f"the volume of generation {generation} is not accepted: its marker names another workspace"
        raise Failed(Code.VOLUME_NOT_READY, message)
    if (record.state, record.marker) == (RecordState.READY, marker) and record.epoch >= epoch:
        return None
    return replace(_next(listed, record, epoch, nonce), state=RecordState.READY, marker=marker)


def opened(listed: ListedRecord, revision: int, epoch: int, nonce: str) -> HomeRecord | None:
    """A container is started with this revision, so an archive of an earlier one does not permit removal."""
    record = ready(listed)
    if record.revision is not None and revision <= record.revision and epoch <= record.epoch:
        return None
    known = record.revision if record.revision is not None else 0
    return replace(_next(listed, record, epoch, nonce), revision=max(known, revision))


def ready(listed: ListedRecord) -> HomeRecord:
    """The record of a complete home; VOLUME_NOT_READY for any other."""
    seen, record = listed.seen(), listed.record
    if seen is None or seen.marker is None or record is None:
        why = seen.fault if seen is not None else "there is no volume"
        raise Failed(Code.VOLUME_NOT_READY, f"the volume of generation {listed.home.generation} is not ready: {why}")
    return record


def permit_job(listed: ListedRecord, *, writes: bool) -> None:
    """A job that writes needs a half-made home, one that reads a complete home; otherwise VOLUME_NOT_READY."""
    seen = listed.seen()
    is_half_made = listed.record is not None and listed.record.state is RecordState.HALF_MADE and listed.birth != ABSENT
    if is_half_made if writes else seen is not None and seen.marker is not None:
        return
    why = "there is no volume" if seen is None else seen.fault or "it is already complete"
    raise Failed(Code.VOLUME_NOT_READY, f"no job runs at the volume of generation {listed.home.generation}: {why}")


def admitted(listed: ListedRecord, epoch: int, nonce: str) -> HomeRecord | None:
    """Callers with an older epoch are refused."""
    record = listed.record
    return _next(listed, record, epoch, nonce) if record is not None and record.epoch < epoch else None


def going(
    listed: ListedRecord, epoch: int, nonce: str, *, archived_revision: int | None, is_running: bool
) -> HomeRecord | None:
    """The home is being removed. VOLUME_REOPENED if it may have changed since `archived_revision`."""
    record = listed.record
    if record is not None and record.state is RecordState.GOING:
        return None
    if archived_revision is not None:
        revision = record.revision if record is not None else None
        context = {"opened": revision, "archived": archived_revision, "container": is_running}
        if revision is None:
            message = f"cannot check whether the home was opened after revision {archived_revision} was archived:"
            message += " its record was lost; start the workspace once, or purge it"
            raise Failed(Code.VOLUME_REOPENED, message, **context)
        if is_running or revision > archived_revision:
            message = f"the volume was opened with revision {revision}, the archive is of {archived_revision}"
            raise Failed(Code.VOLUME_REOPENED, message, **context)
    if record is None:
        return HomeRecord(listed.next_number, RecordState.GOING, None, None, epoch, listed.birth or nonce, nonce)
    return replace(_next(listed, record, epoch, nonce), state=RecordState.GOING)


def discarded(listed: ListedRecord, epoch: int, nonce: str) -> HomeRecord | None:
    """A half-made home is being removed. Another controller may have completed it meanwhile: then it stays."""
    record = listed.record
    if record is None or not listed.is_half_made:
        raise Failed(Code.VOLUME_NOT_READY, f"the volume of generation {listed.home.generation} is not half-made any more")
    if record.state is RecordState.GOING:
        return None
    return replace(_next(listed, record, epoch, nonce), state=RecordState.GOING)


def _next(listed: ListedRecord, record: HomeRecord, epoch: int, nonce: str) -> HomeRecord:
    return replace(record, number=listed.next_number, epoch=max(epoch, record.epoch), nonce=nonce)
