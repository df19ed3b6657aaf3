"""How do records look as text? Pure: what is drawn here is a value, and somebody else prints it."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from torpor.cli.wording import NOTHING, ago, change_line, clean, duration, size, standing_words, times, trouble_words

Record = Mapping[str, Any]

BAR_WIDTH = 30

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


def workspaces(items: Sequence[Record], now: datetime) -> RenderableType:
    if not items:
        return Text("There are no workspaces yet; `torpor create NAME` makes one.")
    # Whose they are is worth a column only where they are not all of one owner: terminals are narrow.
    owners = ["OWNER"] if len({item["owner"] for item in items}) > 1 else []
    table = _table("NAME", "PHASE", "UNDER WAY", "WISH", "TEMPLATE", *owners, "LAST USED", "URL")
    for item in items:
        table.add_row(
            _text(item["name"], "bold"),
            _phase(item["phase"]),
            _text(_briefly(item)),
            _text(item["desired_state"]),
            _text(item["template"]),
            *([_text(item["owner"])] if owners else []),
            _text(ago(item["last_access_at"], now)),
            _text(item["url"]),
        )
    return table


def workspace(item: Record, now: datetime) -> RenderableType:
    facts: list[tuple[str, Text]] = [
        ("name", _text(item["name"], "bold")),
        ("id", _text(item["id"])),
        ("owner", _text(item["owner"])),
        ("template", _text(item["template"])),
        ("command", _text(shlex.join(item.get("command") or []) or None)),
        ("wish", _text(f"{item['desired_state']} (version {item['wish_version']})")),
        ("phase", Text.assemble(_phase(item["phase"]), f", reached {ago(item['phase_changed_at'], now)}")),
        ("under way", _under_way(item)),
        ("seen", _text(f"{item['observed_status']}, health {item['health_status']}, {ago(item['observed_at'], now)}")),
        ("url", _text(item["url"])),
        ("home", _text(f"generation {item['generation']}, revision {item['revision']}")),
        ("archive", _text(item["archive_key"])),
        ("sleeps after", _text(f"{duration(item['standby_ttl'])} without use")),
        ("archived after", _text(f"{duration(item['archive_ttl'])} asleep")),
        ("last used", _text(ago(item["last_access_at"], now))),
        ("created", _text(ago(item["created_at"], now))),
    ]
    if item["deleted_at"] is not None:
        facts.append(("deleted", _text(ago(item["deleted_at"], now))))
    parts: list[RenderableType] = [_facts(facts)]
    if item["error"] is not None:
        parts += [Text(), Text("error", "bold"), _error(item["error"], now)]
    if item["conditions"]:
        parts += [Text(), _conditions(item["conditions"], now)]
    return Group(*parts)


def history(items: Sequence[Record], now: datetime) -> RenderableType:
    if not items:
        return Text("Nothing has been done yet.")
    table = _table(
        "STARTED", "OPERATION", "ATTEMPT", "TOOK", "OUTCOME", "DATA", "WHAT HAPPENED", right=("ATTEMPT", "TOOK", "DATA")
    )
    for item in items:
        table.add_row(
            _text(ago(item["started_at"], now)),
            _text(item["kind"]),
            _text(item["attempt"]),
            _text(_took(item, now)),
            _text(item["outcome"] or "under way", OUTCOME_STYLE.get(item["outcome"] or "", "cyan")),
            _text(size(item["done_bytes"] or None)),
            _text(": ".join(part for part in (item["reason"], item["message"]) if part) or None),
        )
    return table


def archives(items: Sequence[Record], now: datetime) -> RenderableType:
    if not items:
        return Text("It has no archives yet.")
    table = _table(
        "KEY", "GENERATION", "REVISION", "SIZE", "HOME", "VERIFIED", right=("GENERATION", "REVISION", "SIZE", "HOME")
    )
    for item in items:
        table.add_row(
            _text(item["key"]),
            _text(item["generation"]),
            _text(item["revision"]),
            _text(size(item["size_bytes"])),
            _text(size(item["home_bytes"])),
            _text(ago(item["proven_at"], now) if item["proven_at"] else "never"),
        )
    return table


def holds(items: Sequence[Record], now: datetime) -> RenderableType:
    if not items:
        return Text("Nobody holds it awake.")
    table = _table("ID", "REASON", "BY", "SINCE", "ENDS")
    for item in items:
        table.add_row(
            _text(item["id"]),
            _text(item["reason"]),
            _text(item["created_by"]),
            _text(ago(item["created_at"], now)),
            _text(ago(item["expires_at"], now)),
        )
    return table


def collection(preview: Record, now: datetime) -> RenderableType:
    """What a collection would do."""
    parts: list[RenderableType] = []
    if preview["items"]:
        table = _table("KEY", "WORKSPACE", "SIZE", "WHY", "GOES", right=("SIZE",))
        for item in preview["items"]:
            goes = Text("now", "red") if item["action"] == "remove" else _text(ago(item["goes_at"], now))
            table.add_row(
                _text(item["key"]), _text(item["workspace"]), _text(size(item["size_bytes"])), _text(item["means"]), goes
            )
        parts.append(table)
        if preview["left_out"]:
            parts.append(Text(f"and {preview['left_out']} more"))
        parts.append(Text())
    removed = f"{preview['would_remove']} ({size(preview['would_free_bytes'])})" if preview["would_remove"] else "0"
    kept = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in preview["kept"].items())
    facts = [
        ("would be removed now", _text(removed)),
        ("would be marked now", _text(preview["would_mark"])),
        ("marked, in their grace period", _text(preview["waiting"])),
        ("kept", _text(f"{sum(preview['kept'].values())}{f' ({kept})' if kept else ''}")),
        ("last collection", _text(ago(preview["last"]["ran_at"], now))),
    ]
    parts += [_facts(facts), *_strangers(preview)]
    if preview["would_skip"]:
        parts.append(_text(f"A collection would touch nothing just now: {preview['would_skip']}", "yellow"))
    return Group(*parts)


def collected(report: Record) -> RenderableType:
    """What a collection did."""
    facts = [
        ("removed", _text(f"{report['removed']} ({size(report['freed_bytes'])})" if report["removed"] else "0")),
        ("marked, in their grace period", _text(report["orphans"])),
        ("kept", _text(report["kept"])),
    ]
    parts: list[RenderableType] = [_facts(facts)]
    for key, why in report["failed"].items():
        parts.append(_text(f"{key} could not be collected: {why}", "yellow"))
    return Group(*parts, *_strangers(report))


def _strangers(told: Record) -> Iterable[RenderableType]:
    for name, means in (
        ("unknown", "in the store that the database does not know; they are never removed"),
        ("left_over", "in the store that an operation left behind; after the grace period they go"),
        ("missing", "in the database that the store does not have"),
    ):
        count = told[f"{name}_count"]
        if count:
            yield Text(f"{count} {'archive is' if count == 1 else 'archives are'} {means}:", "yellow")
            yield from (_text(f"  {key}") for key in told[name])
            if count > len(told[name]):
                yield Text(f"  and {count - len(told[name])} more")


def explanation(told: Record, now: datetime) -> RenderableType:
    parts: list[RenderableType] = [_text(told["summary"], "bold")]
    parts += [_text(line) for line in told["lines"]]
    facts: list[tuple[str, Text]] = [
        ("wish", _text(told["wish"])),
        ("phase", _phase(told["phase"])),
        ("under way", _text(told["operation"] if told["operation"] != "NONE" else None)),
    ]
    waiting = told["waiting_for"]
    if waiting is not None:
        until = f", until {waiting['until']} ({ago(waiting['until'], now)})" if waiting.get("until") else ""
        facts.append(("waits for", _text(f"{waiting['what']}{until}")))
    if told["next"] is not None:
        facts.append(("next", _text(told["next"])))
    if told["why"] is not None:
        facts.append(("why", _text(told["why"])))
    parts += [Text(), _facts(facts)]
    if told["ways_out"]:
        parts += [Text(), Text("ways out", "bold")]
        parts.append(_facts([(way["command"], _text(way["means"])) for way in told["ways_out"]], indent=2))
    return Group(*parts)


def templates(items: Sequence[Record]) -> RenderableType:
    table = _table("NAME", "TITLE", "DESCRIPTION", "COMMAND")
    for item in items:
        taken = "-- CMD..." if item["takes_command"] else None
        table.add_row(_text(item["name"], "bold"), _text(item["title"]), _text(item["description"]), _text(taken))
    return table


def findings(items: Sequence[Record]) -> RenderableType:
    table = _table("", "WHAT", "FOUND", "WHAT TO DO")
    for item in items:
        word, style = ("ok", "green") if item["ok"] else ("BLOCKS", "bold red") if item["blocks"] else ("partly", "yellow")
        table.add_row(_text(word, style), _text(item["what"]), _text(item["detail"]), _text(item["advice"] or None))
    return table


def progress_line(item: Record, spinner: Spinner) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    cells: list[RenderableType] = [spinner, _text(change_line(item))]
    if item["operation"] != "NONE" and item["progress"] is not None:
        cells.append(ProgressBar(total=100, completed=item["progress"], width=BAR_WIDTH))
    grid.add_row(*cells)
    return grid


def to_text(drawn: RenderableType, *, width: int = 200) -> str:
    """As it is printed where there are no colours."""
    console = Console(width=width, color_system=None, markup=False, highlight=False, emoji=False, force_terminal=False)
    with console.capture() as captured:
        console.print(drawn)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _table(*names: str, right: Iterable[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(Text(name), justify="right" if name in right else "left", overflow="fold")
    return table


def _facts(facts: Sequence[tuple[str, Text]], *, indent: int = 0) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(Text(" " * indent + clean(name), "" if indent else "dim"), value)
    return table


def _error(error: Record, now: datetime) -> Table:
    during = error["operation"] if error["operation"] != "NONE" else None
    facts = [
        ("  reason", _text(error["reason"], "red")),
        ("  message", _text(error["message"])),
        ("  during", _text(during)),
        ("  failed", _text(f"{times(error['error_count'])}, the last time {ago(error['occurred_at'], now)}")),
        ("  goes on", _text("not by itself: see `torpor explain`" if error["is_terminal"] else "it is tried again")),
    ]
    facts += [(f"  {name}", _text(_value(value))) for name, value in (error["context"] or {}).items()]
    return _facts(facts)


def _conditions(conditions: Mapping[str, Record], now: datetime) -> Table:
    table = _table("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE")
    for name, condition in conditions.items():
        holds = condition["status"] == "True"
        table.add_row(
            _text(name),
            _text(condition["status"], "green" if holds else "yellow"),
            _text(condition["reason"]),
            _text(ago(condition["last_transition_time"], now)),
            _text(condition["message"] or None),
        )
    return table


def _value(value: object) -> str:
    return "\n".join(str(line) for line in value) if isinstance(value, list) else str(value)


def _under_way(item: Record) -> Text:
    words = standing_words(item).partition(", ")[2]
    trouble = trouble_words(item) if item["operation"] != "NONE" else ""
    return _text(f"{words} ({trouble})" if trouble else words or None)


def _briefly(item: Record) -> str | None:
    """What is under way, or why nothing is: `STARTING 40 %, ActionFailed`."""
    operation = standing_words(item).partition(", ")[2]
    return ", ".join(word for word in (operation, item["error"]["reason"] if item["error"] else "") if word) or None


def _took(item: Record, now: datetime) -> str:
    if item["seconds"] is not None:
        return duration(item["seconds"])
    return f"{duration((now - datetime.fromisoformat(item['started_at'])).total_seconds())} so far"


def _phase(phase: str) -> Text:
    return Text(phase, PHASE_STYLE.get(phase, ""))


def _text(value: object, style: str = "") -> Text:
    return Text(NOTHING, "dim") if value is None else Text(clean(value), style)
