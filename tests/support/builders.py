"""Build default workspaces and observations, so that a test names only what matters to it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from torpor.domain.errors import Reason
from torpor.domain.planner import Circumstances
from torpor.domain.records import (
    NOT_OBSERVED,
    Archive,
    ArchiveKey,
    Marker,
    Observation,
    ObservedContainer,
    ObservedVolume,
    ProgramExit,
    ProvenArchive,
    RestoreRequest,
    Workspace,
    WorkspaceError,
)
from torpor.domain.states import Operation, Phase, Stage, Wish, WishOrigin
from torpor.testing.defaults import tuning

ID = "0190c0de-0000-7000-8000-000000000001"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OP_ID = "op-now"
KNOBS = tuning()

# The columns of the service layer: no rule may write them.
SERVICE_COLUMNS = (
    "id",
    "name",
    "owner",
    "template",
    "command",
    "desired_state",
    "wish_version",
    "wish_origin",
    "wished_at",
    "deleted_at",
    "purge",
    "recover_request",
    "standby_ttl_s",
    "archive_ttl_s",
    "last_access_at",
    "created_at",
    "shares",
    "sleeps_at",
    "before_sleep",
    "environment",
    "size",
    "restore_request",
    "fork_source",
)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def workspace(**overrides: Any) -> Workspace:
    """A workspace just created, with the wish RUNNING; an operation in `overrides` is in progress."""
    row: dict[str, Any] = {
        "id": ID,
        "name": "ada",
        "owner": "ada",
        "template": "terminal",
        "command": (),
        "desired_state": Wish.RUNNING,
        "wish_version": 5,
        "wish_origin": WishOrigin.PERSON,
        "wished_at": later(-1000),
        "deleted_at": None,
        "purge": False,
        "recover_request": None,
        "standby_ttl_s": 300,
        "archive_ttl_s": 86_400,
        "last_access_at": later(-1000),
        "created_at": later(-2000),
        "version": 10,
        "epoch": 1,
        "held_by": 1,
        "phase": Phase.PENDING,
        "phase_changed_at": later(-10),
        "previous_phase": None,
        "observed_at": None,
        "conditions": NOT_OBSERVED,
        "container_present": False,
        "volume_present": False,
        "operation": Operation.NONE,
        "stage": Stage.REST,
        "due_at": None,
        "op_id": None,
        "op_attempt": 0,
        "op_epoch": 1,
        "op_takeovers": 0,
        "op_started_at": None,
        "deadline_at": None,
        "progress_done": 0,
        "progress_total": None,
        "progress_files": None,
        "generation": 0,
        "revision": 0,
        "home_seen": False,
        "archive": None,
        "error": None,
        "error_count": 0,
        "quick_ends": 0,
    }
    if overrides.get("operation", Operation.NONE) is not Operation.NONE:
        row |= {
            "stage": Stage.CALL,
            "op_id": OP_ID,
            "op_attempt": 1,
            "op_started_at": later(-20),
            "deadline_at": later(200),
        }
    if overrides.get("desired_state") is Wish.DELETED:
        row |= {"deleted_at": later(-5)}
    return Workspace(**(row | overrides))


def archive(generation: int, revision: int, op_id: str = "op-archive") -> Archive:
    return Archive(ArchiveKey(ID, op_id), generation, revision, f"root-of-{op_id}")


SOURCE = Archive(ArchiveKey("0190c0de-0000-7000-8000-000000000002", "op-source"), 9, 9, "root-of-source")
"""An archive of another workspace."""


def to_restore(wish_version: int = 5) -> RestoreRequest:
    """A request for an older archive that is not executed yet."""
    return RestoreRequest(wish_version, archive(1, 2, "op-long-ago"), later(-30))


def proved(generation: int, revision: int, op_id: str = OP_ID) -> ProvenArchive:
    return ProvenArchive(archive(generation, revision, op_id), size_bytes=100, home_bytes=200, files=2)


def error(reason: Reason, **overrides: Any) -> WorkspaceError:
    info: dict[str, Any] = {
        "reason": reason,
        "message": f"{reason} struck",
        "is_terminal": True,
        "operation": Operation.NONE,
        "error_count": 1,
        "occurred_at": later(-60),
        "wish_version": 5,
        "context": {},
    }
    return WorkspaceError(**(info | overrides))


def whole(generation: int) -> ObservedVolume:
    return ObservedVolume(generation, Marker(ID, generation, ""))


def half_made(generation: int) -> ObservedVolume:
    return ObservedVolume(generation, None, False, *_without_marker(generation))


def unmarked(generation: int) -> ObservedVolume:
    """It was whole before, and its marker cannot be read."""
    return ObservedVolume(generation, None, True, *_without_marker(generation))


def foreign(generation: int) -> ObservedVolume:
    """Its marker names another workspace."""
    fault = f"its marker names another workspace: /volumes/{generation}/marker.json"
    return ObservedVolume(generation, None, True, fault, f"/volumes/{generation}/home", has_home=False)


def _without_marker(generation: int) -> tuple[str, str]:
    return f"its marker cannot be read: /volumes/{generation}/marker.json", f"/volumes/{generation}/home"


def container(generation: int, revision: int, *, ready: bool = True, ended: ProgramExit | None = None) -> ObservedContainer:
    return ObservedContainer(generation, revision, ready=ready and ended is None, ended=ended)


def seen(*volumes: ObservedVolume, container: ObservedContainer | None = None) -> Observation:
    return Observation(frozenset(volumes), container)


def look(seconds: float = 0, **overrides: Any) -> Circumstances:
    circumstances: dict[str, Any] = {"now": later(seconds), "epoch": 1, "tuning": KNOBS}
    return Circumstances(**(circumstances | overrides))
