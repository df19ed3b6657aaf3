"""How do users, tokens, sessions, shares, limits and the audit log look as text? Pure, as render.py is."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from torpor.cli.output.shapes import Column, Drawn, facts, table, text
from torpor.cli.output.wording import NOTHING, ago

Record = Mapping[str, Any]

ROLE_STYLE = {"use": "cyan", "manage": "yellow"}


def users(items: Sequence[Record], now: datetime) -> Drawn:
    return table(
        ["USER", "ROLE", "MAY COME IN", "MAX RUNNING", Column("SINCE", may_go=1), Column("ID", may_go=2)],
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


def tokens(items: Sequence[Record], now: datetime) -> Drawn:
    if not items:
        return text("You have no tokens; `torpor tokens create LABEL` makes one.")
    return table(
        ["ID", "LABEL", "SCOPES", Column("MADE", may_go=1), "LAST USED", "ENDS"],
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


def sessions(items: Sequence[Record], now: datetime) -> Drawn:
    if not items:
        return text("You are signed in in no browser.")
    return table(
        ["ID", "FROM", Column("BROWSER", may_go=2), Column("SINCE", may_go=1), "LAST USED", "ENDS"],
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


def shares(items: Sequence[Record], name: str) -> Drawn:
    if not items:
        return text(f"{name} is shared with nobody; `torpor share {name} USER` does.")
    return table(
        ["USER", "ROLE"],
        [[text(item["username"], "bold"), text(item["role"], ROLE_STYLE.get(item["role"], ""))] for item in items],
    )


def limits(told: Record) -> Drawn:
    return facts(
        [
            ("you run", text(f"{told['running_mine']} of {told['max_running_per_user']}", _limit_style(told))),
            ("these", text("\n".join(told["running"]) or None)),
            ("all together", text(f"at most {told['max_running_global']}")),
        ]
    )


def audit(items: Sequence[Record], when: Callable[[str], str]) -> Drawn:
    if not items:
        return text("Nothing was done yet that is told here.")
    return table(
        [
            "WHEN",
            "WHO",
            "WHAT",
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
                text(f"token {item['token_label']}" if item["token_label"] else str(item["how"]).lower()),
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
