"""Turn records of the API into tables and lists. Pure: the result is a value, which `console` draws."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from torpor.cli.output.shapes import Column, DescriptionList, Group, Renderable, Table, Text, facts, line, table, text
from torpor.cli.output.wording import (
    ago,
    duration,
    error_words,
    escaped_line,
    outage_words,
    progress_words,
    size,
    size_words,
    sleep_words,
    state_word,
    status_words,
    times,
    waits_for_disk,
)
from torpor.domain.pack_retention import PACK_WORDS
from torpor.domain.retention import WORDS
from torpor.domain.states import Operation
from torpor.domain.status import STATUS_OF_OPERATION

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

OUTCOME_WORDS = {"DONE": "done", "FAILED": "failed", "TURNED": "canceled", "ABANDONED": "abandoned"}
OUTCOME_STYLE = {"DONE": "green", "FAILED": "red", "TURNED": "yellow", "ABANDONED": "yellow"}

# Why an archive or a pack is kept.
KEPT_ARCHIVES: Mapping[str, str] = {
    **{reason.value: words for reason, words in WORDS.items()},
    "unquestioned": "its workspace has no more archives than are always kept",
}
KEPT_PACKS: Mapping[str, str] = {reason.value: words for reason, words in PACK_WORDS.items()}

SHORT_KEY = 8

EMPTY = text("")


def workspaces(items: Sequence[Record], now: datetime) -> Renderable:
    if not items:
        return text("You have no workspaces. `torpor create NAME` creates one.")
    # Terminals are narrow: without several owners there is no column for them.
    owners = ["OWNER"] if len({item["owner"] for item in items}) > 1 else []
    return table(
        [
            "NAME",
            "STATUS",
            "DETAIL",
            Column("REQUESTED", may_go=3),
            Column("TEMPLATE", may_go=5),
            *owners,
            Column("DISK", is_right=True, may_go=2),
            Column("LAST USED", may_go=4),
            Column("URL", may_go=1),  # a URL on two lines is useless, and `show` and `open` print it too
        ],
        [
            [
                text(item["name"], "bold"),
                _status(item),
                text(_short_detail(item, now)),
                text(state_word(item["desired_state"])),
                text(item["template"]),
                *([text(item["owner"])] if owners else []),
                text(size(item.get("disk_bytes"))),
                text(ago(item["last_access_at"], now)),
                text(item["url"]),
            ]
            for item in items
        ],
    )


def workspace(item: Record, now: datetime) -> Renderable:
    rows: list[tuple[str, Text]] = [
        ("name", text(item["name"], "bold")),
        ("id", text(item["id"])),
        ("owner", text(item["owner"])),
    ]
    if item.get("shares"):
        rows.append(("shared with", text(", ".join(f"{name} ({role})" for name, role in item["shares"].items()))))
    rows += [
        ("template", text(item["template"])),
        ("command", text(shlex.join(item.get("command") or []) or None)),
        ("requested state", text(f"{state_word(item['desired_state'])} (version {item['wish_version']})")),
        ("status", _status_and_time(item, now)),
        *([("progress", text(progress))] if (progress := progress_words(item)) else []),
        ("detail", _detail(item)),
        ("observed", text(f"{item['observed_status']}, health {item['health_status']}, {ago(item['observed_at'], now)}")),
        ("url", text(item["url"])),
        ("home", text(f"generation {item['generation']}, revision {item['revision']}")),
        ("disk use", text(_disk_use(item, now))),
        *([("image", text(item["image"]))] if item.get("image") else []),
        *_size(item),
        ("archive", text(item["archive_key"])),
        *([("restore to", text(item["restore"]["archive_key"]))] if item.get("restore") else []),
        *([("fork of", text(item["forked_from"]))] if item.get("forked_from") else []),
        ("sleeps after", text(f"{duration(item['standby_ttl'])} without use")),
        *_before_sleep(item),
        ("archived after", text(f"{duration(item['archive_ttl'])} stopped")),
        ("last used", text(ago(item["last_access_at"], now))),
        ("created", text(ago(item["created_at"], now))),
    ]
    if item.get("sleeps_at"):
        rows.append(("sleeping soon", text(f"{sleep_words(item['sleeps_at'], now)}, because it is not in use", "yellow")))
    if item["deleted_at"] is not None:
        rows.append(("deleted", text(ago(item["deleted_at"], now))))
    parts: list[Renderable] = [facts(rows)]
    if item["error"] is not None:
        parts += [EMPTY, text("error", "bold"), _error(item["error"], now)]
    if item["conditions"]:
        parts += [EMPTY, _conditions(item["conditions"], now)]
    return Group(tuple(parts))


def history(items: Sequence[Record], now: datetime) -> Renderable:
    if not items:
        return text("There are no operations yet.")
    return table(
        [
            "STARTED",
            "OPERATION",
            Column("ATTEMPT", is_right=True, may_go=1),
            Column("TOOK", is_right=True),
            "OUTCOME",
            Column("DATA", is_right=True, may_go=2),
            "MESSAGE",
        ],
        [
            [
                text(ago(item["started_at"], now)),
                text(_operation(item["kind"])),
                text(item["attempt"]),
                text(_took(item, now)),
                text(_outcome(item["outcome"]), OUTCOME_STYLE.get(item["outcome"] or "", "cyan")),
                text(size(item["done_bytes"] or None)),
                text(": ".join(part for part in (item["reason"], item["message"]) if part) or None),
            ]
            for item in items
        ],
    )


def _archive_state(item: Record) -> Text:
    if item["is_damaged"]:
        return text("damaged", "red")
    return text("current", "green") if item["is_current"] else text("")


def archives(items: Sequence[Record], now: datetime) -> Renderable:
    if not items:
        return text("This workspace has no archives.")
    return table(
        [
            "KEY",
            "MADE",
            Column("GENERATION", is_right=True, may_go=3),
            Column("REVISION", is_right=True, may_go=2),
            Column("SIZE", is_right=True),
            Column("NEW", is_right=True),
            Column("HOME", is_right=True, may_go=1),
            "VERIFIED",
            "",
        ],
        [
            [
                text(key),
                text(ago(item["made_at"], now)),
                text(item["generation"]),
                text(item["revision"]),
                text(size(item["size_bytes"])),
                text(size(item["new_bytes"])),
                text(size(item["home_bytes"])),
                text(ago(item["proven_at"], now) if item["proven_at"] else "never"),
                _archive_state(item),
            ]
            for key, item in zip(short_keys([item["key"] for item in items]), items, strict=True)
        ],
    )


def short_keys(keys: Sequence[str]) -> list[str]:
    """The beginnings of the operation ids, as long as needed to tell them apart: whole keys do not fit in a terminal."""
    op_ids = [key.rpartition("/")[2] for key in keys]
    length = next((length for length in range(SHORT_KEY, 36) if len({one[:length] for one in op_ids}) == len(set(op_ids))), 36)
    return [one[:length] for one in op_ids]


def holds(items: Sequence[Record], now: datetime) -> Renderable:
    if not items:
        return text("Nothing keeps this workspace awake.")
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


def gc_preview(preview: Record, now: datetime) -> Renderable:
    """What a garbage collection would do."""
    packs = preview["packs"]
    parts: list[Renderable] = [
        *_orphans(preview, now, ("KEY", "key"), "after it is no longer read"),
        *_orphans(packs, now, ("PACK", "name"), "after the operation in progress"),
        facts(
            [
                *_planned("archives", preview),
                *_kept_words("archives", preview["kept"], KEPT_ARCHIVES),
                *_planned("packs", packs),
                *_kept_words("packs", packs["kept_reasons"], KEPT_PACKS),
                ("last collection", text(ago(preview["last"]["ran_at"], now))),
            ]
        ),
        *_mismatches(preview),
        *_mismatches(packs, "pack"),
    ]
    if preview["would_skip"]:
        parts.append(text(f"A collection would change nothing now: {preview['would_skip']}", "yellow"))
    return Group(tuple(parts))


def _orphans(preview: Record, now: datetime, identity: tuple[str, str], paused: str) -> Iterable[Renderable]:
    """Each archive or pack that is not needed, why, and when it is removed."""
    if not preview["items"]:
        return
    heading, field = identity
    rows = [
        [
            text(item[field]),
            text(item["workspace"]),
            text(size(item["size_bytes"])),
            text(item["means"]),
            text("now", "red")
            if item["action"] == "remove"
            else text(ago(item["goes_at"], now) if item["goes_at"] else paused),
        ]
        for item in preview["items"]
    ]
    yield table([heading, "WORKSPACE", Column("FREES", is_right=True), "REASON", "REMOVED"], rows)
    if preview["left_out"]:
        yield text(f"and {preview['left_out']} more")
    yield EMPTY


def _planned(noun: str, preview: Record) -> Iterable[tuple[str, Text]]:
    removed = f"{preview['would_remove']} ({size(preview['would_free_bytes'])})" if preview["would_remove"] else "0"
    yield f"{noun} to remove now", text(removed)
    yield f"{noun} to mark now", text(preview["would_mark"])
    yield f"{noun} marked before, in their grace period", text(preview["waiting"])


def _kept_words(noun: str, kept: Mapping[str, int], words: Mapping[str, str]) -> Iterable[tuple[str, Text]]:
    yield f"{noun} kept", text(sum(kept.values()))
    yield from (("", text(f"{count}: {words.get(reason, reason)}")) for reason, count in kept.items())


def gc_report(report: Record) -> Renderable:
    """What a garbage collection did."""
    packs = report["packs"]
    counts = [
        ("archives removed", text(report["removed"])),
        ("archives marked, in their grace period", text(report["orphans"])),
        ("archives kept", text(report["kept"])),
        ("packs removed", text(packs["removed"])),
        ("packs marked, in their grace period", text(packs["orphans"])),
        ("packs kept", text(packs["kept"])),
        *([("packs damaged", text(packs["damaged"], "red"))] if packs["damaged"] else []),
        ("freed", text(size(report["freed_bytes"]))),
    ]
    failed = [text(f"{key} could not be removed: {why}", "yellow") for key, why in report["failed"].items()]
    unreadable = [
        text(f"No archive or pack of the workspace of {key} is removed: {why}", "yellow")
        for key, why in packs["unreadable_roots"].items()
    ]
    return Group((facts(counts), *failed, *unreadable, *_mismatches(report), *_mismatches(packs, "pack")))


def _mismatches(record: Record, noun: str = "archive") -> Iterable[Text]:
    """The archives or packs that are only in the store, or only in the database."""
    for name, means in (
        ("unknown", "in the store but not in the database, and never removed"),
        ("left_over", "in the store, left behind by an operation, and removed after the grace period"),
        ("missing", "in the database but not in the store"),
    ):
        count = record[f"{name}_count"]
        if count:
            yield text(f"{count} {f'{noun} is' if count == 1 else f'{noun}s are'} {means}:", "yellow")
            yield from (text(f"  {key}") for key in record[name])
            if count > len(record[name]):
                yield text(f"  and {count - len(record[name])} more")


def explanation(told: Record, now: datetime) -> Renderable:
    parts: list[Renderable] = [text(told["summary"], "bold")]
    # Texts of users and programs may have several lines; indented, they do not look like our own lines.
    parts += [text(str(sentence).replace("\n", "\n    ")) for sentence in told["lines"]]
    known: list[tuple[str, Text]] = [
        ("requested state", text(state_word(told["wish"]))),
        ("status", _status({**told, "progress": None})),
    ]
    waiting = told["waiting_for"]
    if waiting is not None:
        until = f", until {waiting['until']} ({ago(waiting['until'], now)})" if waiting.get("until") else ""
        known.append(("waits for", text(f"{waiting['what']}{until}")))
    if told["next"] is not None:
        known.append(("next", text(told["next"])))
    if told["why"] is not None:
        known.append(("reason", text(told["why"])))
    parts += [EMPTY, facts(known)]
    if told["ways_out"]:
        parts += [EMPTY, text("What you can do", "bold")]
        parts.append(facts([(way["command"], text(way["means"])) for way in told["ways_out"]], indent=2))
    return Group(tuple(parts))


def findings(items: Sequence[Record]) -> Renderable:
    rows = []
    for item in items:
        word, style = ("ok", "green") if item["ok"] else ("FAILED", "bold red") if item["blocks"] else ("warning", "yellow")
        rows.append([text(word, style), text(item["what"]), text(item["detail"]), text(item["advice"] or None)])
    return table(["", "CHECK", "RESULT", "WHAT TO DO"], rows)


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def kit(item: Record) -> Renderable:
    rows = [
        ("path", text(item["path"])),
        ("hash", text(item["hash"])),
        ("size", text(size(item["size_bytes"]))),
        ("architecture", text(item["architecture"])),
        ("python", text(f"{item['python']}, {item['c_library']}")),
        ("torpor", text(item["torpor"])),
    ]
    columns = ("PART", Column("SIZE", is_right=True))
    parts = sorted(item["parts"].items(), key=lambda part: part[1], reverse=True)
    return Group((facts(rows), EMPTY, table(columns, [(text(name), text(size(count))) for name, count in parts])))


def _error(error: Record, now: datetime) -> DescriptionList:
    during = _operation(error["operation"]) if error["operation"] != "NONE" else None
    rows = [
        ("  reason", text(error["reason"], "red")),
        ("  message", text(error["message"])),
        ("  during", text(during)),
        ("  failed", text(f"{times(error['error_count'])}, the last time {ago(error['occurred_at'], now)}")),
        ("  retried", text("no; `torpor explain` shows what you can do" if error["is_terminal"] else "yes")),
    ]
    known = [(name, value) for name, value in (error["context"] or {}).items() if value is not None]
    return facts([*rows, *((f"  {name}", text(_value(value))) for name, value in known)])


def _from_where(item: Record) -> str:
    """The status before an error; an older server does not send it."""
    before = item.get("previous_phase")
    return f" from {state_word(before)}" if item["phase"] == "ERROR" and before else ""


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


def _size(item: Record) -> list[tuple[str, Text]]:
    """The size of the workspace itself, if it has one."""
    words = size_words(item.get("size") or {})
    return [("size", text(words))] if words else []


def _before_sleep(item: Record) -> list[tuple[str, Text]]:
    """The command of the workspace itself, if it has one."""
    command = item.get("before_sleep")
    return [] if command is None else [("before that", text(f"runs {shlex.join(command)}" if command else "runs nothing"))]


def _status(item: Record) -> Text:
    """The status word in its colour; an operation in progress has the colour of the phase that it starts from."""
    return text(status_words(item), PHASE_STYLE.get(item["phase"], ""))


def _status_and_time(item: Record, now: datetime) -> Text:
    since = f"reached {ago(item['phase_changed_at'], now)}{_from_where(item)}"
    if item["operation"] == "NONE":
        return line(_status(item), f", {since}")
    return line(_status(item), f" ({state_word(item['phase'])} {since})")


def _detail(item: Record) -> Text:
    if waits_for_disk(item):
        return text(f"waits for free disk space ({error_words(item)})", "yellow")
    running = "the before_sleep command runs" if item.get("runs_before_sleep") else ""
    trouble = error_words(item) if item["operation"] != "NONE" or outage_words(item) else ""
    return text("; ".join(part for part in (running, trouble) if part) or None)


def _short_detail(item: Record, now: datetime) -> str | None:
    """The reason of an error, or the time of an automatic stop: `ActionFailed`, `sleeps in 4 min`."""
    if waits_for_disk(item):
        return "waits for disk space"
    parts = (item["error"]["reason"] if item["error"] else "", sleep_words(item.get("sleeps_at"), now))
    return ", ".join(part for part in parts if part) or None


def _operation(name: str) -> str:
    return STATUS_OF_OPERATION[Operation(name)]


def _outcome(outcome: str | None) -> str:
    return OUTCOME_WORDS.get(outcome, outcome) if outcome else "in progress"


def _disk_use(item: Record, now: datetime) -> str | None:
    """The size of the home; None from an older server."""
    if item.get("disk_bytes") is None:
        return "not measured yet" if "disk_bytes" in item else None
    measured = f", measured {ago(item['disk_measured_at'], now)}" if item["disk_measured_at"] else ""
    return f"{size(item['disk_bytes'])}{measured}"


def _took(item: Record, now: datetime) -> str:
    if item["seconds"] is not None:
        return duration(item["seconds"])
    return f"{duration((now - datetime.fromisoformat(item['started_at'])).total_seconds())} so far"
