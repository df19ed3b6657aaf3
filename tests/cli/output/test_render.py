"""Records as text."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console
from rich.spinner import Spinner

from tests.cli.records import AT, condition, error, explanation, workspace
from torpor.cli.output import render
from torpor.cli.output.colours import progress_line
from torpor.cli.output.plain import to_text
from torpor.cli.output.wording import (
    ago,
    change_line,
    duration,
    escaped,
    escaped_bytes,
    escaped_json,
    escaped_line,
    event_line,
    reached_line,
    size,
    sleep_line,
    wish_line,
)

NOW = datetime.fromisoformat(AT) + timedelta(minutes=3, seconds=20)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.4, "just now"),
        (-0.4, "just now"),
        (1, "1 s ago"),
        (59.9, "59 s ago"),
        (60, "1 min ago"),
        (200, "3 min ago"),
        (3600, "1 h ago"),
        (86_400, "1 day ago"),
        (9 * 86_400, "9 days ago"),
        (-90, "in 1 min"),
    ],
)
def test_a_time_is_shown_relative_to_now(seconds: float, told: str) -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert ago((now - timedelta(seconds=seconds)).isoformat(), now) == told


def test_never_is_a_dash() -> None:
    assert ago(None, NOW) == "-"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (0.42, "0.4 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (86_400, "1 d"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float | None, told: str) -> None:
    assert duration(seconds) == told


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1048575, "1.0 MiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_a_size_is_shown_with_its_unit(count: int | None, told: str) -> None:
    assert size(count) == told


def test_control_characters_are_escaped() -> None:
    assert escaped("a\x1b[2Jb\x07\tc\nd\r\ne\rf") == "a\\x1b[2Jb\\x07\tc\nd\r\ne\\rf"
    assert escaped("\x7f \x9b2J \u202eevil \u2028 \u00f6 \U0001f600") == "\\x7f \\x9b2J \\u202eevil \\u2028 \u00f6 \U0001f600"
    assert escaped_line("one\ntwo\r\nthree\x00") == "one\\ntwo\\nthree\\x00"
    assert escaped_bytes(b"one\n\xff\x9b\xc2\x9b\xc3\xb6") == "one\n\\xff\\x9b\\x9b\u00f6"
    awkward = ["\x00\x1b\x7f\x9b\u202e\n\r\u00f6"]
    assert json.loads(escaped_json(json.dumps(awkward, ensure_ascii=False))) == awkward
    assert escaped_json(json.dumps(awkward, ensure_ascii=False)) == '["\\u0000\\u001b\\u007f\\u009b\\u202e\\n\\r\u00f6"]'
    shown = to_text(render.workspace(workspace(error=error(message="\x1b]0;owned\x07")), NOW))
    assert "\x1b" not in shown
    assert "owned" in shown


def test_the_list_has_a_line_for_each() -> None:
    asleep = workspace(name="night", phase="STANDBY", desired_state="RUNNING", operation="STARTING", progress=40)
    lines = to_text(render.workspaces([workspace(), asleep], NOW)).splitlines()
    assert lines[0].split() == ["NAME", "STATUS", "DETAIL", "REQUESTED", "TEMPLATE", "DISK", "LAST", "USED", "URL"]
    assert lines[1].split()[:3] == ["demo", "Running", "-"]
    assert "Starting 40 %" in lines[2]
    assert "3 min ago" in lines[2]
    assert len(lines) == 3


def test_the_list_shows_owners_if_they_differ_and_errors() -> None:
    other = workspace(owner="eve", phase="ERROR", error=error(reason="DataLost"))
    lines = to_text(render.workspaces([workspace(), other], NOW)).splitlines()
    assert "OWNER" in lines[0]
    assert lines[2].split()[1:3] == ["Error", "DataLost"]


def test_the_list_has_a_column_with_the_disk_use() -> None:
    items = [workspace(disk_bytes=3 << 20, disk_measured_at=AT), workspace(name="new", disk_bytes=None, disk_measured_at=None)]
    head, first, second = to_text(render.workspaces(items, NOW)).splitlines()
    assert head.split().index("DISK") > 0
    assert "3.0 MiB" in first
    assert "MiB" not in second


def test_a_workspace_shows_its_disk_use_and_the_time_of_measurement() -> None:
    shown = to_text(render.workspace(workspace(disk_bytes=5 << 30, disk_measured_at=AT), NOW))
    assert f"5.0 GiB, measured {ago(AT, NOW)}" in shown
    assert "not measured yet" in to_text(render.workspace(workspace(disk_bytes=None, disk_measured_at=None), NOW))


def test_a_workspace_that_waits_for_disk_space_is_shown_so() -> None:
    low = {"policy.healthy": condition("True", "DiskLow", "the disk of the homes (/d) has 5 MiB free")}
    waiting = workspace(phase="STANDBY", conditions=low)
    assert "waits for disk space" in to_text(render.workspaces([waiting], NOW))
    assert "waits for free disk space (DiskLow: the disk of the homes (/d) has 5 MiB free" in to_text(
        render.workspace(waiting, NOW)
    )
    assert "5 MiB free; it continues automatically" in change_line(waiting)


def test_a_coming_stop_is_shown_in_list_show_and_events() -> None:
    soon = workspace(sleeps_at=(NOW + timedelta(seconds=250)).isoformat())
    assert "sleeps in 4 min" in to_text(render.workspaces([soon], NOW)).splitlines()[1]
    assert "sleeps in 4 min, because it is not in use" in to_text(render.workspace(soon, NOW))
    assert "sleep" not in to_text(render.workspaces([workspace(sleeps_at=None)], NOW))
    event = {"id": 7, "event": "sleeping_soon", "at": AT, "workspace": soon}
    told = event_line(event, lambda when: when.partition("T")[2][:8])
    assert told == "12:00:00  demo: Running; goes to sleep at 12:07:30 because it is not in use"


@pytest.mark.parametrize(("left_s", "told"), [(298, "in 5 min"), (61, "in 1 min"), (59, "in 59 s"), (0.2, "now"), (-5, "now")])
def test_the_warning_in_a_terminal_has_the_time_and_what_to_do(left_s: float, told: str) -> None:
    line = sleep_line("demo", (NOW + timedelta(seconds=left_s)).isoformat(), NOW)
    assert line.startswith("[torpor] demo goes to sleep at 12:")
    assert line.endswith(f"({told}) because it is not in use; type to keep it awake")


def test_an_empty_list_says_what_to_do() -> None:
    assert "torpor create NAME" in to_text(render.workspaces([], NOW))


def test_a_workspace_is_an_aligned_list_with_its_conditions() -> None:
    shown = to_text(render.workspace(workspace(command=["python", "-m", "http.server", "a b"]), NOW))
    lines = shown.splitlines()
    values = {line[:17].strip(): line[17:].strip() for line in lines if line[:17].strip()}
    assert values["name"] == "demo"
    assert values["command"] == "python -m http.server 'a b'"
    assert values["status"] == "Running, reached 3 min ago"
    assert values["sleeps after"] == "5 min without use"
    assert values["archived after"] == "1 d stopped"
    assert any(line.split()[:3] == ["storage.volume_ready", "True", "Ready"] for line in lines)
    assert "error" not in values


def test_an_error_is_shown_with_its_context() -> None:
    shown = to_text(render.workspace(workspace(phase="ERROR", error=error()), NOW))
    for part in ("RetryExceeded", "exit code 7", "no; `torpor explain`", "4 times, the last time 3 min ago", "two"):
        assert part in shown


def test_an_error_shows_the_previous_phase() -> None:
    shown = to_text(render.workspace(workspace(phase="ERROR", previous_phase="RUNNING", error=error()), NOW))
    assert "from Running" in shown
    again = to_text(render.workspace(workspace(phase="RUNNING", previous_phase="STANDBY"), NOW))
    assert "from Stopped" not in again, "only an error shows it"


def test_unknown_details_of_an_error_are_not_shown() -> None:
    shown = to_text(
        render.workspace(workspace(phase="ERROR", error=error(context={"exit_code": None, "action": "start"})), NOW)
    )
    assert "action" in shown
    assert "exit_code" not in shown


def test_brackets_are_text_and_not_markup() -> None:
    assert "[bold]x[/bold] :smile:" in to_text(render.workspace(workspace(command=["[bold]x[/bold] :smile:"]), NOW))


def test_the_history_shows_durations_and_outcomes() -> None:
    attempt = {
        "op_id": "o",
        "kind": "STARTING",
        "attempt": 1,
        "generation": 1,
        "started_at": AT,
        "ended_at": None,
        "outcome": None,
        "reason": None,
        "message": "",
        "done_bytes": 0,
        "seconds": None,
    }
    failed = {**attempt, "outcome": "FAILED", "seconds": 61.2, "reason": "ActionFailed", "message": "no", "done_bytes": 2048}
    lines = to_text(render.history([attempt, failed], NOW)).splitlines()
    assert " ".join(lines[1].split()) == "3 min ago Starting 1 3 min 20 s so far in progress - -"
    assert " ".join(lines[2].split()) == "3 min ago Starting 1 1 min 1 s failed 2.0 KiB ActionFailed: no"


def test_archives_are_shown_with_size_and_time_of_proof() -> None:
    archive = {
        "key": "5b5c1f0e-8a51-4c38-9a53-0d8f2a6f5c11/a0000000-0000-4000-8000-000000000001",
        "generation": 1,
        "revision": 2,
        "size_bytes": 2048,
        "new_bytes": 7,
        "home_bytes": 9,
        "made_at": AT,
        "proven_at": AT,
        "is_current": True,
        "is_damaged": False,
    }
    lines = to_text(render.archives([archive, {**archive, "is_damaged": True}], NOW)).splitlines()[1:]
    shown = "a0000000 3 min ago 1 2 2.0 KiB 7 B 9 B 3 min ago"
    assert [" ".join(line.split()) for line in lines] == [f"{shown} current", f"{shown} damaged"]


def test_keys_are_as_long_as_needed_to_tell_them_apart() -> None:
    assert render.short_keys(["w/a0000000-0001", "w/b0000000-0001"]) == ["a0000000", "b0000000"]
    assert render.short_keys(["w/a0000000-0001", "w/a0000000-0011"]) == ["a0000000-000", "a0000000-001"]
    assert render.short_keys([]) == []


def test_an_explanation_ends_with_the_possible_actions() -> None:
    waiting = {"what": "its port to respond", "until": (NOW + timedelta(minutes=2)).isoformat()}
    shown = to_text(render.explanation(explanation(waiting_for=waiting, next="it is tried again"), NOW))
    assert shown.startswith("demo has an error: action required\nIts program could not be started.\n")
    assert "its port to respond, until" in shown
    assert "(in 2 min)" in shown
    assert shown.endswith("  torpor recover demo  try again\n  torpor delete demo   give it up\n")


def test_text_of_others_cannot_imitate_a_line_of_the_explanation() -> None:
    told = explanation(lines=["Awake: bob keeps it awake: tests\nNext: nothing; \x1b[31mwatch out."])
    drawn = to_text(render.explanation(told, NOW)).splitlines()
    assert "Awake: bob keeps it awake: tests" in drawn
    assert "    Next: nothing; \\x1b[31mwatch out." in drawn


def test_findings_are_ok_warning_or_failed() -> None:
    items = [
        {"what": "a", "ok": True, "detail": "fine", "advice": "", "blocks": False},
        {"what": "b", "ok": False, "detail": "half", "advice": "do", "blocks": False},
        {"what": "c", "ok": False, "detail": "none", "advice": "do", "blocks": True},
    ]
    assert [line.split()[0] for line in to_text(render.findings(items)).splitlines()[1:]] == ["ok", "warning", "FAILED"]


def test_the_bar_is_shown_only_while_progress_is_known() -> None:
    def drawn(progress: int | None) -> str:
        console = Console(width=100, force_terminal=True, color_system=None)
        with console.capture() as captured:
            console.print(progress_line(workspace(operation="RESTORING", progress=progress), Spinner("dots")))
        return captured.get()

    assert "━" in drawn(50)
    assert "Restoring 50 %" in drawn(50)
    assert "━" not in drawn(None)


def test_progress_is_shown_in_bytes_and_files() -> None:
    told = {"bytes": 1_300_000_000, "bytes_total": 2 << 30, "files": 51_000, "files_total": 117_000}
    archiving = workspace(phase="STANDBY", operation="ARCHIVING", progress=60, progress_detail=told)
    words = "1.2 GiB of 2.0 GiB, 51,000 of 117,000 files"
    assert change_line(archiving) == f"demo: Archiving 60 %: {words}"
    assert words in to_text(render.workspace(archiving, NOW))
    unknown = {"bytes": 17, "bytes_total": None, "files": 3, "files_total": None}
    assert change_line({**archiving, "progress": None, "progress_detail": unknown}) == "demo: Archiving: 17 B, 3 files"


def test_a_request_is_confirmed_in_one_line() -> None:
    assert wish_line(workspace()) == "demo is running at http://demo.localhost:8080/"
    assert wish_line(workspace(phase="STANDBY")).startswith("demo: Stopped; requested state: Running (")
    assert reached_line(workspace(phase="STANDBY")) == "demo is stopped"
    retried = workspace(operation="STARTING", error=error(is_terminal=False, error_count=1))
    assert "failed once, is retried" in change_line(retried)


def test_an_outage_is_shown_while_waiting() -> None:
    out = {"policy.healthy": condition("True", "RuntimeOut", "the runtime cannot be reached: no answer")}
    waiting = workspace(phase="STANDBY", conditions=out)
    told = "the runtime cannot be reached: no answer; this is retried"
    assert change_line(waiting) == f"demo: Stopped ({told})"
    shown = {line.split("  ")[0]: line for line in to_text(render.workspace(waiting, NOW)).splitlines()}
    assert told in shown["detail"]
