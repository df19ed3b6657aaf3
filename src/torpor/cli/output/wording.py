"""In which words are times, sizes and standings told? Pure, and without anything that draws."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from torpor.domain.records import DISK_LOW, OUTAGES

NOTHING = "-"

_STEPS = ((60, "s", 1), (3600, "min", 60), (86_400, "h", 3600), (float("inf"), "days", 86_400))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# Control characters (a line end may have its carriage return), and what turns the direction of text or breaks a line unseen.
_CONTROL = re.compile(r"(?!\r\n)[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def ago(when: str | None, now: datetime) -> str:
    """`3 min ago`, or `in 3 min`; `-` for never."""
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
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`: two steps at most."""
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
    raise AssertionError("a minute is the smallest of them")


def size(count: int | None) -> str:
    """`17 B`, `1.5 MiB`."""
    if count is None:
        return NOTHING
    value, unit = float(count), 0
    while round(value, 1) >= 1024 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {_SIZES[unit]}"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def escaped(text: object) -> str:
    """Text for a terminal: control characters stand as `\\x1b`, so that they do not control the terminal of the reader."""
    return _CONTROL.sub(_as_escape, str(text))


def escaped_line(text: object) -> str:
    """The same for what stands in one line: a line end would begin a line that looks like ours."""
    return escaped(text).replace("\r\n", "\n").replace("\n", "\\n")


def escaped_bytes(content: bytes) -> str:
    """What a program wrote; bytes that are no UTF-8 are escaped as well."""
    return escaped(content.decode("utf-8", "backslashreplace"))


def escaped_json(text: str) -> str:
    """Of JSON, whose meaning stays the same."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _as_escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def standing_words(workspace: Mapping[str, Any]) -> str:
    """`STANDBY, STARTING 40 %`."""
    words = workspace["phase"]
    if workspace["operation"] != "NONE":
        words += f", {workspace['operation']}"
        if workspace["progress"] is not None:
            words += f" {workspace['progress']:.0f} %"
    return str(words)


def error_words(workspace: Mapping[str, Any]) -> str:
    """What went wrong and is tried again, or stands; empty when nothing did."""
    if outage := outage_words(workspace):
        return outage
    if waits_for_disk(workspace):
        message = workspace["conditions"]["policy.healthy"]["message"]
        return escaped_line(f"{DISK_LOW}: {message}; it goes on by itself when there is enough")
    error = workspace["error"]
    if error is None:
        return ""
    counted = "" if error["is_terminal"] else f", failed {times(error['error_count'])} so far and is tried again"
    return escaped_line(f"{error['reason']}: {error['message']}{counted}")


def outage_words(workspace: Mapping[str, Any]) -> str:
    """What it waits for and cannot be reached; empty when there is nothing like that."""
    healthy = workspace["conditions"].get("policy.healthy")
    if not healthy or healthy["reason"] not in OUTAGES:
        return ""
    return escaped_line(f"{healthy['message']}; it is tried again")


def waits_for_disk(workspace: Mapping[str, Any]) -> bool:
    """It is neither started nor restored, because the disk of the homes has too little free space."""
    healthy = workspace["conditions"].get("policy.healthy")
    return bool(healthy) and healthy["status"] == "True" and healthy["reason"] == DISK_LOW


def change_line(workspace: Mapping[str, Any]) -> str:
    trouble = error_words(workspace)
    return f"{workspace['name']}: {standing_words(workspace)}" + (f" ({trouble})" if trouble else "")


def sleep_words(sleeps_at: str | None, now: datetime) -> str:
    """`sleeps in 4 min`; empty while it is not near."""
    if sleeps_at is None:
        return ""
    left_s = (datetime.fromisoformat(sleeps_at) - now).total_seconds()
    return f"sleeps in {_coarse(left_s)}" if left_s >= 1 else "sleeps now"


def sleep_line(name: str, sleeps_at: str, now: datetime) -> str:
    """What is said in a terminal before its workspace is stopped."""
    at = datetime.fromisoformat(sleeps_at)
    left_s = round((at - now).total_seconds())
    left = "now" if left_s < 1 else f"in {left_s} s" if left_s < 60 else f"in {round(left_s / 60)} min"
    return (
        f"[torpor] {name} goes to sleep at {at.astimezone(now.tzinfo):%H:%M:%S} ({left}) because it is not in use;"
        " type to keep it awake"
    )


def event_line(event: Mapping[str, Any], when: Callable[[str], str]) -> str:
    """`2026-03-01 12:00:00  demo: STANDBY, STARTING 40 %`."""
    at = when(event["at"]) if event["at"] else NOTHING
    if event["workspace"] is None:
        return f"{at}  what was missed is not kept any more; this is how it stands"
    if event["event"] == "sleeping_soon" and event["workspace"].get("sleeps_at"):
        soon = f"goes to sleep at {when(event['workspace']['sleeps_at'])} because it is not in use"
        return f"{at}  {change_line(event['workspace'])}; {soon}"
    return f"{at}  {change_line(event['workspace'])}"


def wish_line(workspace: Mapping[str, Any]) -> str:
    """What is said after a wish that nobody waits for."""
    name, wish = workspace["name"], workspace["desired_state"]
    if workspace["phase"] == wish and workspace["operation"] == "NONE":
        return reached_line(workspace)
    return f"{name} is {standing_words(workspace)}; {wish} is wished (`torpor show {name}` says how far it is)"


def reached_line(workspace: Mapping[str, Any]) -> str:
    at = f" at {workspace['url']}" if workspace["phase"] == "RUNNING" and workspace.get("url") else ""
    return f"{workspace['name']} is {workspace['phase']}{at}"
