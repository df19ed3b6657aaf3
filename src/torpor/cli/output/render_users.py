"""Turn records about users, tokens, sessions, shares, limits and the audit log into tables. Pure."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from torpor.cli.output.shapes import Column, Renderable, facts, table, text
from torpor.cli.output.wording import NOTHING, ago

Record = Mapping[str, Any]

ROLE_STYLE = {"use": "cyan", "manage": "yellow"}


def users(items: Sequence[Record], now: datetime) -> Renderable:
    return table(
        ["USER", "ROLE", "ACTIVE", "MAX RUNNING", Column("CREATED", may_go=1), Column("ID", may_go=2)],
        [
            [
                text(item["username"], "bold"),
                text("admin", "yellow") if item["is_admin"] else text("member"),
                text("yes", "green") if item["is_active"] else text("no", "red"),
                text("default", "dim") if item["max_running"] is None else text(item["max_running"]),
                text(ago(item["created_at"], now)),
                text(item["id"]),
            ]
            for item in items
        ],
    )


def secrets(items: Sequence[Record], name: str, now: datetime) -> Renderable:
    if not items:
        return text(f"{name} has no secrets. `torpor secrets set {name} KEY` sets one.")
    return table(["NAME", "SET"], [[text(item["name"], "bold"), text(ago(item["set_at"], now))] for item in items])


def tokens(items: Sequence[Record], now: datetime) -> Renderable:
    if not items:
        return text("You have no API tokens. `torpor tokens create LABEL` creates one.")
    return table(
        ["ID", "LABEL", "SCOPES", Column("CREATED", may_go=1), "LAST USED", "EXPIRES"],
        [
            [
                text(item["id"]),
                text(item["label"], "bold"),
                text(" ".join(item["scopes"]) or None),
                text(ago(item["created_at"], now)),
                text(ago(item["last_used_at"], now) if item["last_used_at"] else "never"),
                text(ago(item["expires_at"], now) if item["expires_at"] else "never"),
            ]
            for item in items
        ],
    )


def sessions(items: Sequence[Record], now: datetime) -> Renderable:
    if not items:
        return text("You have no sessions.")
    return table(
        ["ID", "FROM", Column("BROWSER", may_go=2), Column("CREATED", may_go=1), "LAST USED", "EXPIRES"],
        [
            [
                text(item["id"]),
                text(item["came_from"] or None),
                text(item["user_agent"] or None),
                text(ago(item["created_at"], now)),
                text(ago(item["last_used_at"], now)),
                text(ago(item["expires_at"], now)),
            ]
            for item in items
        ],
    )


def shares(items: Sequence[Record], name: str) -> Renderable:
    if not items:
        return text(f"{name} is not shared. `torpor share {name} USER` shares it.")
    return table(
        ["USER", "ROLE"],
        [[text(item["username"], "bold"), text(item["role"], ROLE_STYLE.get(item["role"], ""))] for item in items],
    )


def limits(told: Record) -> Renderable:
    return facts(
        [
            ("your running workspaces", text(f"{told['running_mine']} of {told['max_running_per_user']}", _limit_style(told))),
            ("names", text("\n".join(told["running"]) or None)),
            ("limit for all users", text(told["max_running_global"])),
        ]
    )


def audit(items: Sequence[Record], when: Callable[[str], str]) -> Renderable:
    if not items:
        return text("There are no audit entries.")
    return table(
        [
            "WHEN",
            "USER",
            "ACTION",
            "WORKSPACE",
            Column("OUTCOME"),
            Column("DETAIL", may_go=1),
            Column("BY", may_go=3),
            Column("FROM", may_go=2),
        ],
        [
            [
                text(when(item["at"])),
                text(item["username"], "bold"),
                text(item["action"]),
                text(item["workspace"] or None),
                text("ok", "green") if item["outcome"] == "ok" else text(item["outcome"], "red"),
                text(", ".join(f"{name} {_value(value)}" for name, value in item["detail"].items()) or None),
                text(f"API token {item['token_label']}" if item["token_label"] else str(item["how"]).lower()),
                text(item["came_from"] or None),
            ]
            for item in items
        ],
    )


def _value(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case None:
            return NOTHING
        case list():
            return " ".join(map(str, value))
        case _:
            return str(value)


def _limit_style(told: Record) -> str:
    return "yellow" if told["running_mine"] >= told["max_running_per_user"] else "green"
