"""Render templates and the result of their check. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from torpor.cli.output.shapes import Column, Group, Renderable, facts, table, text
from torpor.cli.output.wording import size_words

ORIGIN = {"shipped": "Torpor", "added": "administrator"}


def templates(told: Mapping[str, Any]) -> Renderable:
    rows = [
        [
            text(item["name"], "bold"),
            text(item["title"]),
            text(item["description"]),
            text(_options(item) or None),
            text(str(item.get("cpu_weight", "-"))),
            text(ORIGIN.get(item.get("origin", ""))),
        ]
        for item in told["items"]
    ]
    more: list[Column | str] = [Column("CPU WEIGHT", may_go=1), Column("FROM", may_go=2)]
    broken = [text(f"broken: {fault}", "red") for one in told.get("broken", ()) for fault in one["faults"]]
    return Group((table(["NAME", "TITLE", "DESCRIPTION", "COMMAND", *more], rows), *broken))


def template(item: Mapping[str, Any]) -> Renderable:
    if "faults" in item:
        faults = [("  fault", text(fault, "red")) for fault in item["faults"]]
        return facts([("name", text(item["name"])), ("status", text("broken: it cannot be used", "red")), *faults])
    variables = [(f"  {name}", text(value)) for name, value in item.get("environment", {}).items()]
    command = shlex.join(item.get("command", ())) or ("the workspace's own" if item["takes_command"] else None)
    in_image = shlex.join(item.get("image_command", ()))
    image = "the workspace's own" if item.get("takes_image") else item.get("image") or None
    return facts(
        [
            ("name", text(item["name"], "bold")),
            ("title", text(item["title"])),
            ("description", text(item["description"])),
            ("from", text(ORIGIN.get(item.get("origin", "")))),
            ("command", text(command)),
            *([("image", text(image))] if image else []),
            *([("command in the image", text(in_image))] if in_image else []),
            ("packages", text(", ".join(item.get("packages", ())) or None)),
            ("npm packages", text(", ".join(item.get("npm", ())) or None)),
            ("environment", text(None if not variables else f"{len(variables)} variables")),
            *variables,
            ("before an automatic stop", text(shlex.join(item.get("before_sleep", ())) or None)),
            ("CPU keeps it awake", text("yes" if item.get("cpu_keeps_awake", True) else "no")),
            ("size", text(size_words(item.get("size") or {}) or None)),
            ("CPU weight", text(item.get("cpu_weight"))),
            *(("warning", text(warning, "yellow")) for warning in item.get("warnings", ())),
        ]
    )


def _options(item: Mapping[str, Any]) -> str:
    """What `torpor create` takes with this template."""
    # An older server does not say whether the command can be left out.
    command = "-- CMD..." if item.get("needs_command", True) else "[-- CMD...]"
    return " ".join([*(["--image REF"] if item.get("takes_image") else []), *([command] if item["takes_command"] else [])])


def checked(items: Sequence[Mapping[str, Any]]) -> Renderable:
    if not items:
        return text("there is no .toml file to check")
    lines = [
        text(f"{item['file']}: ok", "green") if item["ok"] else text(fault, "red")
        for item in items
        for fault in (item["faults"] or [""])
    ]
    return Group(tuple(lines))
