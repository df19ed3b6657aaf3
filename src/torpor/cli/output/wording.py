"""Word times, sizes and the status of workspaces as short texts. Pure, and without rich."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from torpor.domain.records import DISK_LOW, OUTAGES
from torpor.domain.states import Operation, Phase
from torpor.domain.status import STATUS_OF_PHASE, status_word

NOTHING = "-"

_STEPS = ((60, "s", 1), (3600, "min", 60), (86_400, "h", 3600), (float("inf"), "days", 86_400))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# Control characters (a line end may have its carriage return), and characters that turn the direction of text or break a line.
_CONTROL = re.compile(r"(?!\r\n)[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def ago(when: str | None, now: datetime) -> str:
    """`3 min ago` or `in 3 min`; `-` if there is no time."""
    if when is None:
        return NOTHING
    passed_s = (now - datetime.fromisoformat(when)).total_seconds()
    if abs(passed_s) < 1:
        return "just now"
    return f"{_coarse(passed_s)} ago" if passed_s > 0 else f"in {_coarse(-passed_s)}"


def _coarse(seconds: float) -> str:
    unit, factor = next((unit, factor) for below, unit, factor in _STEPS if seconds < below)
    count = int(seconds // factor)
    return f"{count} {'day' if unit == 'days' and count == 1 else unit}"


def duration(seconds: float | None) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`: at most two units."""
    if seconds is None:
        return NOTHING
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for factor, unit, below, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= factor:
            rest = whole % factor // below
            return f"{whole // factor} {unit}" + (f" {rest} {smaller}" if rest else "")
    raise AssertionError("less than a minute was handled above")


def size(count: int | None) -> str:
    """`17 B`, `1.5 MiB`."""
    if count is None:
        return NOTHING
    value, unit = float(count), 0
    while round(value, 1) >= 1024 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {_SIZES[unit]}"


def size_words(own: Mapping[str, Any]) -> str:
    """`2 cores, memory 4.0 GiB, disk 20.0 GiB`, of what is stated."""
    words = [f"{own['cpu']:g} cores"] if own.get("cpu") else []
    amounts = (("memory", own.get("memory_mb")), ("disk", own.get("disk_mb")))
    return ", ".join([*words, *(f"{name} {size(amount << 20)}" for name, amount in amounts if amount)])


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def escaped(text: object) -> str:
    """Text for a terminal: control characters become `\\x1b`, so that they cannot control the reader's terminal."""
    return _CONTROL.sub(_as_escape, str(text))


def escaped_line(text: object) -> str:
    """The same for one line: a line end could start a line that looks like our own."""
    return escaped(text).replace("\r\n", "\n").replace("\n", "\\n")


def escaped_bytes(content: bytes) -> str:
    """The output of a program; bytes that are not UTF-8 are escaped as well."""
    return escaped(content.decode("utf-8", "backslashreplace"))


def escaped_json(text: str) -> str:
    """JSON with escaped control characters; its meaning stays the same."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _as_escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def status_words(workspace: Mapping[str, Any]) -> str:
    """`Starting 40 %`, or `Stopped` if no operation is in progress."""
    word = status_word(Phase(workspace["phase"]), Operation(workspace["operation"]))
    has_progress = workspace["operation"] != "NONE" and workspace["progress"] is not None
    return f"{word} {workspace['progress']:.0f} %" if has_progress else word


def progress_words(workspace: Mapping[str, Any]) -> str:
    """`1.2 GiB of 2.0 GiB, 51,000 of 117,000 files`; empty if no home is archived or restored."""
    told = workspace.get("progress_detail")
    if told is None:
        return ""
    done, total = told["bytes"], told["bytes_total"]
    files, files_total = told["files"], told["files_total"]
    of_bytes = size(done) if total is None else f"{size(done)} of {size(total)}"
    of_files = f"{files:,}" if files_total is None else f"{files:,} of {files_total:,}"
    return f"{of_bytes}, {of_files} files"


def state_word(desired_state: str) -> str:
    """`Running`: the word for a phase or a requested state."""
    return STATUS_OF_PHASE[Phase(desired_state)]


def error_words(workspace: Mapping[str, Any]) -> str:
    """The error, and whether it is retried; empty without an error."""
    if outage := outage_words(workspace):
        return outage
    if waits_for_disk(workspace):
        message = workspace["conditions"]["policy.healthy"]["message"]
        return escaped_line(f"{DISK_LOW}: {message}; it continues automatically when there is enough free space")
    error = workspace["error"]
    if error is None:
        return ""
    retried = "" if error["is_terminal"] else f", failed {times(error['error_count'])}, is retried"
    return escaped_line(f"{error['reason']}: {error['message']}{retried}")


def outage_words(workspace: Mapping[str, Any]) -> str:
    """The service that the workspace waits for because it cannot be reached; empty if there is none."""
    healthy = workspace["conditions"].get("policy.healthy")
    if not healthy or healthy["reason"] not in OUTAGES:
        return ""
    return escaped_line(f"{healthy['message']}; this is retried")


def waits_for_disk(workspace: Mapping[str, Any]) -> bool:
    """Whether the workspace is not started or restored because the disk of the homes has too little free space."""
    healthy = workspace["conditions"].get("policy.healthy")
    return bool(healthy) and healthy["status"] == "True" and healthy["reason"] == DISK_LOW


def change_line(workspace: Mapping[str, Any]) -> str:
    trouble, progress = error_words(workspace), progress_words(workspace)
    words = status_words(workspace) + (f": {progress}" if progress else "")
    return f"{workspace['name']}: {words}" + (f" ({trouble})" if trouble else "")


def sleep_words(sleeps_at: str | None, now: datetime) -> str:
    """`sleeps in 4 min`; empty if no automatic stop is near."""
    if sleeps_at is None:
        return ""
    left_s = (datetime.fromisoformat(sleeps_at) - now).total_seconds()
    return f"sleeps in {_coarse(left_s)}" if left_s >= 1 else "sleeps now"


def sleep_line(name: str, sleeps_at: str, now: datetime) -> str:
    """The warning in a terminal before its workspace is stopped automatically."""
    at = datetime.fromisoformat(sleeps_at)
    left_s = round((at - now).total_seconds())
    left = "now" if left_s < 1 else f"in {left_s} s" if left_s < 60 else f"in {round(left_s / 60)} min"
    return (
        f"[torpor] {name} goes to sleep at {at.astimezone(now.tzinfo):%H:%M:%S} ({left}) because it is not in use;"
        " type to keep it awake"
    )


def event_line(event: Mapping[str, Any], when: Callable[[str], str]) -> str:
    """`2026-03-01 12:00:00  demo: Starting 40 %`."""
    at = when(event["at"]) if event["at"] else NOTHING
    if event["workspace"] is None:
        return f"{at}  some events were missed and are no longer stored; the current status follows"
    if event["event"] == "sleeping_soon" and event["workspace"].get("sleeps_at"):
        soon = f"goes to sleep at {when(event['workspace']['sleeps_at'])} because it is not in use"
        return f"{at}  {change_line(event['workspace'])}; {soon}"
    return f"{at}  {change_line(event['workspace'])}"


def wish_line(workspace: Mapping[str, Any]) -> str:
    """The result of a request without `--wait`."""
    name, desired_state = workspace["name"], workspace["desired_state"]
    if workspace["phase"] == desired_state and workspace["operation"] == "NONE":
        return reached_line(workspace)
    status, requested = status_words(workspace), state_word(desired_state)
    return f"{name}: {status}; requested state: {requested} (`torpor show {name}` shows the progress)"


def reached_line(workspace: Mapping[str, Any]) -> str:
    at = f" at {workspace['url']}" if workspace["phase"] == "RUNNING" and workspace.get("url") else ""
    return f"{workspace['name']} is {status_words(workspace).lower()}{at}"
