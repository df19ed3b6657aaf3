"""Convert rows to records, and changes to rows."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

import structlog

from torpor.domain.errors import Reason
from torpor.domain.pack_retention import PackId
from torpor.domain.records import (
    CONDITION_NAMES,
    NOT_OBSERVED,
    Archive,
    ArchiveKey,
    Change,
    Conditions,
    ContainerLocation,
    FileCount,
    HomeSize,
    Recovery,
    RestoreRequest,
    Workspace,
    WorkspaceCondition,
    WorkspaceError,
)
from torpor.domain.sizes import WorkspaceSize
from torpor.domain.states import Operation, Phase, Stage, Wish, WishOrigin

log = structlog.get_logger()


def to_workspace_or_none(row: Mapping[str, Any]) -> Workspace | None:
    """None for a row that this code does not understand (a newer version may have written it), so that the others are read."""
    try:
        return to_workspace(row)
    except (KeyError, TypeError, ValueError):
        log.exception("row_not_understood", workspace=str(row["id"]))
        return None


def to_workspace(row: Mapping[str, Any]) -> Workspace:
    return Workspace(
        id=str(row["id"]),
        name=row["name"],
        owner=row["owner"],
        template=row["template"],
        command=tuple(row["command"]),
        desired_state=Wish(row["desired_state"]),
        wish_version=row["wish_version"],
        wish_origin=WishOrigin(row["wish_origin"]),
        wished_at=row["wished_at"],
        deleted_at=row["deleted_at"],
        purge=row["purge"],
        recover_request=_to_recovery(row["recover_request"]),
        standby_ttl_s=row["standby_ttl_s"],
        archive_ttl_s=row["archive_ttl_s"],
        last_access_at=row["last_access_at"],
        created_at=row["created_at"],
        version=row["version"],
        epoch=row["epoch"],
        held_by=row["held_by"],
        phase=Phase(row["phase"]),
        phase_changed_at=row["phase_changed_at"],
        previous_phase=Phase(row["previous_phase"]) if row["previous_phase"] else None,
        observed_at=row["observed_at"],
        conditions=to_conditions(row["conditions"]),
        container_present=row["container_present"],
        volume_present=row["volume_present"],
        location=ContainerLocation(**row["location"]) if row["location"] is not None else None,
        operation=Operation(row["operation"]),
        stage=Stage(row["stage"]),
        due_at=row["due_at"],
        op_id=str(row["op_id"]) if row["op_id"] else None,
        op_attempt=row["op_attempt"],
        op_epoch=row["op_epoch"],
        op_takeovers=row["op_takeovers"],
        op_started_at=row["op_started_at"],
        deadline_at=row["deadline_at"],
        progress_done=row["progress_done"],
        progress_total=row["progress_total"],
        progress_files=FileCount(row["progress_files"], row["progress_files_total"])
        if row["progress_files"] is not None
        else None,
        generation=row["generation"],
        revision=row["revision"],
        home_seen=row["home_seen"],
        archive=_to_archive(row),
        error=to_error(row["error_info"]),
        error_count=row["error_count"],
        quick_ends=row["quick_ends"],
        shares=row["shares"],
        archive_home_bytes=row.get("archive_home_bytes"),
        home_size=HomeSize(row["disk_generation"], row["disk_bytes"], row["disk_measured_at"])
        if row["disk_bytes"] is not None
        else None,
        sleeps_at=row["sleeps_at"],
        before_sleep=None if row["before_sleep"] is None else tuple(row["before_sleep"]),
        environment=row["environment"],
        size=WorkspaceSize(row["cpu"], row["memory_mb"], row["disk_mb"]),
        image=row["image"],
        restore_request=_to_restore(row["restore_request"]),
        restored_version=row["restored_version"],
        fork_source=to_archive(row["fork_source"]) if row["fork_source"] is not None else None,
    )


def _to_archive(row: Mapping[str, Any]) -> Archive | None:
    if row["archive_key"] is None:
        return None
    return Archive(
        ArchiveKey.parse(row["archive_key"]), row["archive_generation"], row["archive_revision"], row["archive_root"]
    )


def to_conditions(stored: Mapping[str, Any] | None) -> Conditions:
    if stored is None:
        return NOT_OBSERVED
    return Conditions(**{field: _to_condition(stored[name]) for field, name in CONDITION_NAMES.items()})


def _to_condition(stored: Mapping[str, Any]) -> WorkspaceCondition:
    at = stored["last_transition_time"]
    return WorkspaceCondition(
        stored["status"] == "True", stored["reason"], stored["message"], datetime.fromisoformat(at) if at else None
    )


def from_conditions(conditions: Conditions) -> dict[str, Any]:
    return {name: _from_condition(getattr(conditions, field)) for field, name in CONDITION_NAMES.items()}


def _from_condition(condition: WorkspaceCondition) -> dict[str, Any]:
    return {
        "status": str(condition.status),
        "reason": condition.reason,
        "message": condition.message,
        "last_transition_time": _iso(condition.last_transition_time),
    }


def to_error(stored: Mapping[str, Any] | None) -> WorkspaceError | None:
    if stored is None:
        return None
    return WorkspaceError(
        reason=Reason(stored["reason"]),
        message=stored["message"],
        is_terminal=stored["is_terminal"],
        operation=Operation(stored["operation"]),
        error_count=stored["error_count"],
        occurred_at=datetime.fromisoformat(stored["occurred_at"]),
        wish_version=stored["wish_version"],
        context=stored["context"],
    )


def from_error(error: WorkspaceError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {
        "reason": error.reason.value,
        "message": error.message,
        "is_terminal": error.is_terminal,
        "operation": error.operation.value,
        "error_count": error.error_count,
        "occurred_at": error.occurred_at.isoformat(),
        "wish_version": error.wish_version,
        "context": dict(error.context),
    }


def _to_recovery(stored: Mapping[str, Any] | None) -> Recovery | None:
    if stored is None:
        return None
    archive = stored.get("archive")
    return Recovery(
        wish_version=stored["wish_version"],
        archive=to_archive(archive) if archive else None,
        empty=stored.get("empty", False),
        accept=stored.get("accept", False),
    )


def from_recovery(archive: Archive | None, *, empty: bool, accept: bool) -> dict[str, Any]:
    if archive is None:
        return {"empty": empty, "accept": accept}
    return {"archive": from_archive(archive)}


def _to_restore(stored: Mapping[str, Any] | None) -> RestoreRequest | None:
    if stored is None:
        return None
    asked_at = datetime.fromisoformat(stored["asked_at"])
    return RestoreRequest(stored["wish_version"], to_archive(stored["archive"]), asked_at)


def to_archive(stored: Mapping[str, Any]) -> Archive:
    return Archive(ArchiveKey.parse(stored["key"]), stored["generation"], stored["revision"], stored["manifest_root"])


def from_archive(archive: Archive) -> dict[str, Any]:
    return {
        "key": str(archive.key),
        "generation": archive.generation,
        "revision": archive.revision,
        "manifest_root": archive.manifest_root,
    }


def from_change(change: Change) -> dict[str, Any]:
    """One object of the batch for `persist`."""
    return {name: _storable(value) for name, value in _from_change(change).items()}


def _storable(value: Any) -> Any:
    """Programs and providers may write any text; PostgreSQL cannot store NUL or half of a surrogate pair."""
    match value:
        case str():
            return value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
        case dict():
            return {_storable(key): _storable(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_storable(inner) for inner in value]
        case _:
            return value


def _from_change(change: Change) -> dict[str, Any]:
    before, after = change.before, change.after
    return {
        "id": after.id,
        "expected_version": before.version,
        "expected_wish_version": before.wish_version if change.if_wish_unchanged else None,
        "epoch": after.epoch,
        "phase": after.phase,
        "phase_changed_at": _iso(after.phase_changed_at),
        "previous_phase": after.previous_phase,
        "observed_at": _iso(after.observed_at),
        "conditions": from_conditions(after.conditions),
        "container_present": after.container_present,
        "volume_present": after.volume_present,
        "location": asdict(after.location) if after.location is not None else None,
        "operation": after.operation,
        "stage": after.stage,
        "due_at": _iso(after.due_at),
        "op_id": after.op_id,
        "op_attempt": after.op_attempt,
        "op_epoch": after.op_epoch,
        "op_takeovers": after.op_takeovers,
        "op_started_at": _iso(after.op_started_at),
        "deadline_at": _iso(after.deadline_at),
        "progress_done": after.progress_done,
        "progress_total": after.progress_total,
        "progress_files": after.progress_files.done if after.progress_files else None,
        "progress_files_total": after.progress_files.total if after.progress_files else None,
        "generation": after.generation,
        "revision": after.revision,
        "home_seen": after.home_seen,
        "archive_key": str(after.archive.key) if after.archive else None,
        "archive_generation": after.archive.generation if after.archive else None,
        "archive_revision": after.archive.revision if after.archive else None,
        "archive_root": after.archive.manifest_root if after.archive else None,
        "error_info": from_error(after.error),
        "error_count": after.error_count,
        "quick_ends": after.quick_ends,
        "restored_version": after.restored_version,
        **_from_attempts(change),
    }


def _from_attempts(change: Change) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if change.opened:
        fields |= {
            "opened_op_id": change.opened.op_id,
            "opened_kind": change.opened.operation,
            "opened_attempt": change.opened.attempt,
            "opened_generation": change.opened.generation,
            "opened_message": change.opened.message,
        }
    if change.closed:
        fields |= {
            "closed_op_id": change.closed.op_id,
            "closed_attempt": change.closed.attempt,
            "closed_outcome": change.closed.outcome,
            "closed_reason": change.closed.reason,
            "closed_message": change.closed.message,
            "closed_bytes": change.closed.done_bytes,
        }
    if change.lost:
        packs = [one for one in change.lost if isinstance(one, PackId)]
        fields |= {
            "lost_packs": [{"workspace_id": one.workspace_id, "name": one.name} for one in packs],
            "lost_roots": [str(one) for one in change.lost if isinstance(one, ArchiveKey)],
        }
    if change.proved:
        fields |= {
            "proved_size_bytes": change.proved.size_bytes,
            "proved_home_bytes": change.proved.home_bytes,
            "proved_format": change.proved.format,
            "proved_new_bytes": change.proved.new_bytes,
            "proved_packs": [asdict(pack) for pack in change.proved.packs],
        }
    return fields


def _iso(at: datetime | None) -> str | None:
    return at.isoformat() if at else None
