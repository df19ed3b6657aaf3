"""Records as the API sends them."""

from typing import Any

AT = "2026-03-01T12:00:00Z"


def workspace(**changes: Any) -> dict[str, Any]:
    return {
        "id": "0b5c1f0e-8a51-4c38-9a53-0d8f2a6f5c11",
        "name": "demo",
        "owner": "admin",
        "template": "terminal",
        "command": [],
        "desired_state": "RUNNING",
        "wish_version": 3,
        "phase": "RUNNING",
        "operation": "NONE",
        "op_id": "op-1",
        "progress": None,
        "progress_detail": None,
        "generation": 1,
        "revision": 2,
        "conditions": {
            "storage.volume_ready": condition("True", "Ready"),
            "infra.container_ready": condition("False", "Absent", "nothing answers"),
        },
        "observed_status": "RUNNING",
        "health_status": "OK",
        "error": None,
        "archive_key": None,
        "standby_ttl": 300,
        "archive_ttl": 86400,
        "last_access_at": AT,
        "phase_changed_at": AT,
        "observed_at": AT,
        "created_at": AT,
        "deleted_at": None,
        "url": "http://demo.localhost:8080/",
        **changes,
    }


def event(event_id: int, kind: str = "state_changed", **changes: Any) -> dict[str, Any]:
    """An event with a workspace that differs from the default in `changes`; heartbeats and resets have none."""
    shown = None if kind in ("heartbeat", "reset") else workspace(**changes)
    return {"id": event_id, "event": kind, "at": AT if shown else None, "workspace": shown}


def condition(status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"status": status, "reason": reason, "message": message, "last_transition_time": AT}


def error(**changes: Any) -> dict[str, Any]:
    return {
        "reason": "RetryExceeded",
        "message": "STARTING failed 4 times, the last time: exit code 7",
        "is_terminal": True,
        "operation": "STARTING",
        "error_count": 4,
        "context": {"exit_code": 7, "last_lines": ["one", "two"]},
        "occurred_at": AT,
        "wish_version": 3,
        **changes,
    }


def explanation(**changes: Any) -> dict[str, Any]:
    return {
        "name": "demo",
        "summary": "demo has an error: action required",
        "lines": ["Its program could not be started."],
        "wish": "RUNNING",
        "phase": "ERROR",
        "operation": "NONE",
        "waiting_for": None,
        "next": None,
        "why": "RetryExceeded",
        "ways_out": [
            {"command": "torpor recover demo", "means": "try again"},
            {"command": "torpor delete demo", "means": "give it up"},
        ],
        **changes,
    }
