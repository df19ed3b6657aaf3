"""How do records look as text? Pure: what comes out is a value, and somebody else draws it."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from torpor.cli.output.shapes import Column, DescriptionList, Drawn, Group, Table, Text, facts, line, table, text
from torpor.cli.output.wording import (
    ago,
    duration,
    error_words,
    escaped_line,
    outage_words,
    size,
    sleep_words,
    standing_words,
    times,
    waits_for_disk,
)

Record = Mapping[str, Any]

PHASE_STYLE = {
    "PENDING": "yellow",
    "ARCHIVED": "blue",
    "STANDBY": "cyan",
    "RUNNING": "green",
    "ERROR": "bold red",
    "DELETING": "magenta",
    "DELETED": "dim",
}

OUTCOME_STYLE = {"DONE": "green", "FAILED": "red", "TURNED": "yellow", "ABANDONED": "yellow"}

EMPTY = text("")


def workspaces(items: Sequence[Record], now: datetime) -> Drawn:
    if not items:
        return text("There are no workspaces yet; `torpor create NAME` makes one.")
    # Whose they are is worth a column only where they are not all of one owner: terminals are narrow.
    owners = ["OWNER"] if len({item["owner"] for item in items}) > 1 else []
    return table(
        [
            "NAME",
            "PHASE",
            "UNDER WAY",
            Column("WISH", may_go=3),
            Column("TEMPLATE", may_go=5),
            *owners,
            Column("DISK", is_right=True, may_go=2),
            Column("LAST USED", may_go=4),
            Column("URL", may_go=1),  # in two pieces it is good for nothing, and `show` and `open` tell it
        ],
        [
            [
                text(item["name"], "bold"),
                _phase(item["phase"]),
                text(_briefly(item, now)),
                text(item["desired_state"]),
                text(item["template"]),
                *([text(item["owner"])] if owners else []),
                text(size(item.get("disk_bytes"))),
                text(ago(item["last_access_at"], now)),
                text(item["url"]),
            ]
            for item in items
        ],
    )


def workspace(item: Record, now: datetime) -> Drawn:
    told: list[tuple[str, Text]] = [
        ("name", text(item["name"], "bold")),
        ("id", text(item["id"])),
        ("owner", text(item["owner"])),
    ]
    if item.get("shares"):
        told.append(("shared with", text(", ".join(f"{name} ({role})" for name, role in item["shares"].items()))))
    told += [
        ("template", text(item["template"])),
        ("command", text(shlex.join(item.get("command") or []) or None)),
        ("wish", text(f"{item['desired_state']} (version {item['wish_version']})")),
        ("phase", line(_phase(item["phase"]), f", reached {ago(item['phase_changed_at'], now)}{_from_where(item)}")),
        ("under way", _under_way(item)),
        ("seen", text(f"{item['observed_status']}, health {item['health_status']}, {ago(item['observed_at'], now)}")),
        ("url", text(item["url"])),
        ("home", text(f"generation {item['generation']}, revision {item['revision']}")),
        ("disk use", text(_disk_use(item, now))),
        ("archive", text(item["archive_key"])),
        ("sleeps after", text(f"{duration(item['standby_ttl'])} without use")),
        *_before_sleep(item),
        ("archived after", text(f"{duration(item['archive_ttl'])} asleep")),
        ("last used", text(ago(item["last_access_at"], now))),
        ("created", text(ago(item["created_at"], now))),
    ]
    if item.get("sleeps_at"):
        told.append(("sleeping soon", text(f"{sleep_words(item['sleeps_at'], now)}, because it is not in use", "yellow")))
    if item["deleted_at"] is not None:
        told.append(("deleted", text(ago(item["deleted_at"], now))))
    parts: list[Drawn] = [facts(told)]
    if item["error"] is not None:
        parts += [EMPTY, text("error", "bold"), _error(item["error"], now)]
    if item["conditions"]:
        parts += [EMPTY, _conditions(item["conditions"], now)]
    return Group(tuple(parts))


def history(items: Sequence[Record], now: datetime) -> Drawn:
    if not items:
        return text("Nothing has been done yet.")
    return table(
        [
            "STARTED",
            "OPERATION",
            Column("ATTEMPT", is_right=True, may_go=1),
            Column("TOOK", is_right=True),
            "OUTCOME",
            Column("DATA", is_right=True, may_go=2),
            "WHAT HAPPENED",
        ],
        [
            [
                text(ago(item["started_at"], now)),
                text(item["kind"]),
                text(item["attempt"]),
                text(_took(item, now)),
                text(item["outcome"] or "under way", OUTCOME_STYLE.get(item["outcome"] or "", "cyan")),
                text(size(item["done_bytes"] or None)),
                text(": ".join(part for part in (item["reason"], item["message"]) if part) or None),
            ]
            for item in items
        ],
    )


def archives(items: Sequence[Record], now: datetime) -> Drawn:
    if not items:
        return text("It has no archives yet.")
    return table(
        [
            "KEY",
            Column("GENERATION", is_right=True, may_go=2),
            Column("REVISION", is_right=True, may_go=1),
            Column("SIZE", is_right=True),
            Column("HOME", is_right=True),
            "VERIFIED",
        ],
        [
            [
                text(item["key"]),
                text(item["generation"]),
                text(item["revision"]),
                text(size(item["size_bytes"])),
                text(size(item["home_bytes"])),
                text(ago(item["proven_at"], now) if item["proven_at"] else "never"),
            ]
            for item in items
        ],
    )


def holds(items: Sequence[Record], now: datetime) -> Drawn:
    if not items:
        return text("Nobody holds it awake.")
    return table(
        ["ID", "REASON", "BY", Column("SINCE", may_go=1), "ENDS"],
        [
            [
                text(item["id"]),
                text(escaped_line(item["reason"])),
                text(item["created_by"]),
                text(ago(item["created_at"], now)),
                text(ago(item["expires_at"], now)),
            ]
            for item in items
        ],
    )


def gc_preview(preview: Record, now: datetime) -> Drawn:
    """What a collection would do."""
    parts: list[Drawn] = []
    if preview["items"]:
        rows = [
            [
                text(item["key"]),
                text(item["workspace"]),
                text(size(item["size_bytes"])),
                text(item["means"]),
                text("now", "red") if item["action"] == "remove" else text(ago(item["goes_at"], now)),
            ]
            for item in preview["items"]
        ]
        parts.append(table(["KEY", "WORKSPACE", Column("SIZE", is_right=True), "WHY", "GOES"], rows))
        if preview["left_out"]:
            parts.append(text(f"and {preview['left_out']} more"))
        parts.append(EMPTY)
    removed = f"{preview['would_remove']} ({size(preview['would_free_bytes'])})" if preview["would_remove"] else "0"
    kept = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in preview["kept"].items())
    told = [
        ("would be removed now", text(removed)),
        ("would be marked now", text(preview["would_mark"])),
        ("marked, in their grace period", text(preview["waiting"])),
        ("kept", text(f"{sum(preview['kept'].values())}{f' ({kept})' if kept else ''}")),
        ("last collection", text(ago(preview["last"]["ran_at"], now))),
    ]
    parts += [facts(told), *_mismatches(preview)]
    if preview["would_skip"]:
        parts.append(text(f"A collection would touch nothing just now: {preview['would_skip']}", "yellow"))
    return Group(tuple(parts))


def gc_report(report: Record) -> Drawn:
    """What a collection did."""
    told = [
        ("removed", text(f"{report['removed']} ({size(report['freed_bytes'])})" if report["removed"] else "0")),
        ("marked, in their grace period", text(report["orphans"])),
        ("kept", text(report["kept"])),
    ]
    failed = [text(f"{key} could not be collected: {why}", "yellow") for key, why in report["failed"].items()]
    return Group((facts(told), *failed, *_mismatches(report)))


def _mismatches(told: Record) -> Iterable[Text]:
    for name, means in (
        ("unknown", "in the store that the database does not know; they are never removed"),
        ("left_over", "in the store that an operation left behind; after the grace period they go"),
        ("missing", "in the database that the store does not have"),
    ):
        count = told[f"{name}_count"]
        if count:
            yield text(f"{count} {'archive is' if count == 1 else 'archives are'} {means}:", "yellow")
            yield from (text(f"  {key}") for key in told[name])
            if count > len(told[name]):
                yield text(f"  and {count - len(told[name])} more")


def explanation(told: Record, now: datetime) -> Drawn:
    parts: list[Drawn] = [text(told["summary"], "bold")]
    # What a user or a program wrote may have several lines; none of them begins like one of ours.
    parts += [text(str(sentence).replace("\n", "\n    ")) for sentence in told["lines"]]
    known: list[tuple[str, Text]] = [
        ("wish", text(told["wish"])),
        ("phase", _phase(told["phase"])),
        ("under way", text(told["operation"] if told["operation"] != "NONE" else None)),
    ]
    waiting = told["waiting_for"]
    if waiting is not None:
        until = f", until {waiting['until']} ({ago(waiting['until'], now)})" if waiting.get("until") else ""
        known.append(("waits for", text(f"{waiting['what']}{until}")))
    if told["next"] is not None:
        known.append(("next", text(told["next"])))
    if told["why"] is not None:
        known.append(("why", text(told["why"])))
    parts += [EMPTY, facts(known)]
    if told["ways_out"]:
        parts += [EMPTY, text("ways out", "bold")]
        parts.append(facts([(way["command"], text(way["means"])) for way in told["ways_out"]], indent=2))
    return Group(tuple(parts))


def templates(items: Sequence[Record]) -> Drawn:
    return table(
        ["NAME", "TITLE", "DESCRIPTION", "COMMAND", "CPU WEIGHT"],
        [
            [
                text(item["name"], "bold"),
                text(item["title"]),
                text(item["description"]),
                text("-- CMD..." if item["takes_command"] else None),
                text(str(item.get("cpu_weight", "-"))),
            ]
            for item in items
        ],
    )


def findings(items: Sequence[Record]) -> Drawn:
    rows = []
    for item in items:
        word, style = ("ok", "green") if item["ok"] else ("BLOCKS", "bold red") if item["blocks"] else ("partly", "yellow")
        rows.append([text(word, style), text(item["what"]), text(item["detail"]), text(item["advice"] or None)])
    return table(["", "WHAT", "FOUND", "WHAT TO DO"], rows)


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _error(error: Record, now: datetime) -> DescriptionList:
    during = error["operation"] if error["operation"] != "NONE" else None
    told = [
        ("  reason", text(error["reason"], "red")),
        ("  message", text(error["message"])),
        ("  during", text(during)),
        ("  failed", text(f"{times(error['error_count'])}, the last time {ago(error['occurred_at'], now)}")),
        ("  goes on", text("not by itself: see `torpor explain`" if error["is_terminal"] else "it is tried again")),
    ]
    known = [(name, value) for name, value in (error["context"] or {}).items() if value is not None]
    return facts([*told, *((f"  {name}", text(_value(value))) for name, value in known)])


def _from_where(item: Record) -> str:
    """An ERROR hides what the workspace was before; an older server does not tell."""
    before = item.get("previous_phase")
    return f" from {before}" if item["phase"] == "ERROR" and before else ""


def _conditions(conditions: Mapping[str, Record], now: datetime) -> Table:
    return table(
        ["CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"],
        [
            [
                text(name),
                text(condition["status"], "green" if condition["status"] == "True" else "yellow"),
                text(condition["reason"]),
                text(ago(condition["last_transition_time"], now)),
                text(condition["message"] or None),
            ]
            for name, condition in conditions.items()
        ],
    )


def _value(value: object) -> str:
    return "\n".join(str(one) for one in value) if isinstance(value, list) else str(value)


def _before_sleep(item: Record) -> list[tuple[str, Text]]:
    """Where the workspace says it itself."""
    command = item.get("before_sleep")
    return [] if command is None else [("before that", text(f"runs {shlex.join(command)}" if command else "runs nothing"))]


def _under_way(item: Record) -> Text:
    words = standing_words(item).partition(", ")[2]
    if waits_for_disk(item):
        return text(f"waits for free disk space ({error_words(item)})", "yellow")
    if item.get("runs_before_sleep"):
        words += ": its before_sleep command runs"
    trouble = error_words(item) if item["operation"] != "NONE" or outage_words(item) else ""
    return text(f"{words} ({trouble})" if words and trouble else trouble or words or None)


def _briefly(item: Record, now: datetime) -> str | None:
    """What is under way, or why nothing is: `STARTING 40 %, ActionFailed`; or that it is stopped soon."""
    if waits_for_disk(item):
        return "waits for disk space"
    operation = standing_words(item).partition(", ")[2]
    told = (operation, item["error"]["reason"] if item["error"] else "", sleep_words(item.get("sleeps_at"), now))
    return ", ".join(word for word in told if word) or None


def _disk_use(item: Record, now: datetime) -> str | None:
    """An older server does not tell."""
    if item.get("disk_bytes") is None:
        return "not measured yet" if "disk_bytes" in item else None
    measured = f", measured {ago(item['disk_measured_at'], now)}" if item["disk_measured_at"] else ""
    return f"{size(item['disk_bytes'])}{measured}"


def _took(item: Record, now: datetime) -> str:
    if item["seconds"] is not None:
        return duration(item["seconds"])
    return f"{duration((now - datetime.fromisoformat(item['started_at'])).total_seconds())} so far"


def _phase(phase: str) -> Text:
    return text(phase, PHASE_STYLE.get(phase, ""))
