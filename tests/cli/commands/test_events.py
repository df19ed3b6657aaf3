"""Does `torpor events` tell each change on a line of its own, and go on where it was when the connection is lost?"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Torpor
from tests.cli.records import AT, error, workspace
from tests.support.scripted_api import ScriptedApi, ScriptedResponse
from torpor.cli.commands import events as events_module
from torpor.cli.output.wording import event_line

ID = workspace()["id"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def event(event_id: int, kind: str = "state_changed", **changes: Any) -> dict[str, Any]:
    told = None if kind in ("heartbeat", "reset") else workspace(**changes)
    return {"id": event_id, "event": kind, "at": AT if told else None, "workspace": told}


def stream(*events: dict[str, Any], tail: bytes = b"") -> ScriptedResponse:
    frames = [f"id: {one['id']}\nevent: {one['event']}\ndata: {json.dumps(one)}\n\n".encode() for one in events]
    return ScriptedResponse(200, b"".join(frames) + tail, "text/event-stream")


def refusal(status: int, code: str) -> ScriptedResponse:
    return ScriptedResponse(status, {"code": code, "detail": "no more"}, "application/problem+json")


def test_one_line_an_event_and_on_where_it_was(torpor: Torpor, api: ScriptedApi) -> None:
    cut = stream(
        event(7, phase="ARCHIVED", operation="RESTORING", progress=40),
        event(8, "heartbeat"),
        tail=b'id: 9\nevent: state_changed\ndata: {"id": 9, "ev',
    )
    api.answer("GET /workspaces/demo/events", cut)
    failed = event(9, "error", phase="ERROR", error=error(message="two\x1b[1mlines"))
    away = ScriptedResponse(502, b"Bad Gateway", "text/plain")
    busy = refusal(429, "too_many_streams")
    api.answer(f"GET /workspaces/{ID}/events", away, busy, stream(failed), refusal(404, "not_found"))
    ended = torpor("events", "demo", "--since", "5")
    assert ended.code == 1, "it is gone"
    assert ended.text.splitlines() == [
        "2026-03-01 12:00:00  demo: ARCHIVED, RESTORING 40 %",
        "2026-03-01 12:00:00  demo: ERROR (RetryExceeded: two\\x1b[1mlines)",
    ]
    assert [asked.target for asked in api.asked] == [
        "/workspaces/demo/events?last_event_id=5",
        *[f"/workspaces/{ID}/events?last_event_id=8"] * 3,
        f"/workspaces/{ID}/events?last_event_id=9",
    ]


def test_everything_in_json_is_a_line_each(torpor: Torpor, api: ScriptedApi) -> None:
    told = [event(0, "reset"), event(0, name="a"), event(0, name="ö"), event(3, "heartbeat")]
    api.answer("GET /events", stream(*told), refusal(401, "unauthorized"))
    ended = torpor("events", "--json")
    lines = ended.text.splitlines()
    assert [json.loads(line) for line in lines[:3]] == told[:3]
    assert json.loads("".join(lines[3:]))["code"] == "unauthorized"
    assert [asked.target for asked in api.asked] == ["/events", "/events?last_event_id=3"]


def test_a_reset_says_what_it_is() -> None:
    assert event_line(event(0, "reset"), str) == "-  what was missed is not kept any more; this is how it stands"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (refusal(404, "not_found"), 1),
        (refusal(503, "unavailable"), 1),
        (refusal(429, "too_many_streams"), 1),
        (ScriptedResponse(200, b"<html>", "text/html"), 1),
    ],
)
def test_what_fails_at_once_is_said(torpor: Torpor, api: ScriptedApi, answer: ScriptedResponse, code: int) -> None:
    api.answer("GET /workspaces/demo/events", answer)
    assert torpor("events", "demo").code == code
    assert len(api.asked) == 1


def test_wrong_usage(torpor: Torpor, api: ScriptedApi) -> None:
    assert torpor("events", "--since", "x").code == 2
    assert torpor("events", "--since", "-1").code == 2
    assert api.asked == []


def test_ctrl_c_is_how_it_ends(api: ScriptedApi, data: Path) -> None:
    api.answer("GET /events", stream(event(7)))
    process = subprocess.Popen(
        [sys.executable, "-m", "torpor", "events", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TORPOR_DATA": str(data)},
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == event(7)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert all(json.loads(line) == event(7) for line in out.splitlines())
