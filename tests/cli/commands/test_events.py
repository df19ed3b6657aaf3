"""`torpor events` prints one line per event, and continues where it was after a lost connection."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Torpor
from tests.cli.records import error, event, workspace
from tests.support.scripted_api import ScriptedApi, ScriptedResponse, stream
from torpor.cli import event_stream
from torpor.cli.output.wording import event_line

ID = workspace()["id"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def refusal(status: int, code: str) -> ScriptedResponse:
    return ScriptedResponse(status, {"code": code, "detail": "no more"}, "application/problem+json")


def test_each_event_is_one_line_and_a_reconnect_continues(torpor: Torpor, api: ScriptedApi) -> None:
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
    assert ended.code == 1, "the workspace no longer exists"
    assert ended.text.splitlines() == [
        "2026-03-01 12:00:00  demo: Restoring 40 %",
        "2026-03-01 12:00:00  demo: Error (RetryExceeded: two\\x1b[1mlines)",
    ]
    assert [asked.target for asked in api.asked] == [
        "/workspaces/demo/events?last_event_id=5",
        *[f"/workspaces/{ID}/events?last_event_id=8"] * 3,
        f"/workspaces/{ID}/events?last_event_id=9",
    ]


def test_each_event_is_one_json_line(torpor: Torpor, api: ScriptedApi) -> None:
    told = [event(0, "reset"), event(0, name="a"), event(0, name="ö"), event(3, "heartbeat")]
    api.answer("GET /events", stream(*told), refusal(401, "unauthorized"))
    ended = torpor("events", "--json")
    lines = ended.text.splitlines()
    assert [json.loads(line) for line in lines[:3]] == told[:3]
    assert json.loads("".join(lines[3:]))["code"] == "unauthorized"
    assert [asked.target for asked in api.asked] == ["/events", "/events?last_event_id=3"]


def test_a_reset_is_explained() -> None:
    assert (
        event_line(event(0, "reset"), str) == "-  some events were missed and are no longer stored; the current status follows"
    )


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (refusal(404, "not_found"), 1),
        (refusal(503, "unavailable"), 1),
        (refusal(429, "too_many_streams"), 1),
        (ScriptedResponse(200, b"<html>", "text/html"), 1),
    ],
)
def test_a_permanent_error_is_not_retried(torpor: Torpor, api: ScriptedApi, answer: ScriptedResponse, code: int) -> None:
    api.answer("GET /workspaces/demo/events", answer)
    assert torpor("events", "demo").code == code
    assert len(api.asked) == 1


def test_wrong_usage(torpor: Torpor, api: ScriptedApi) -> None:
    assert torpor("events", "--since", "x").code == 2
    assert torpor("events", "--since", "-1").code == 2
    assert api.asked == []


def test_ctrl_c_ends_the_command(api: ScriptedApi, data: Path) -> None:
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
