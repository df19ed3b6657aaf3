"""users: list, create and change users."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.command_group import group
from torpor.cli.exit_codes import usage
from torpor.cli.options import Json, User
from torpor.cli.output.console import show, show_json, show_line
from torpor.cli.prompts import read_new_secret
from torpor.cli.target import api_here

if TYPE_CHECKING:
    from torpor.cli.client import Record

DEFAULT = "default"


def list_(as_json: Json = False) -> None:
    """List all users."""
    with api_here() as api:
        items = api.users()
    if as_json:
        show_json({"items": items})
        return
    from torpor.cli.output import render_users

    show(render_users.users(items, datetime.now(UTC)))


def create(
    username: Annotated[str, typer.Argument(metavar="USER", help="Lower case letters, digits, . _ and -.", show_default=False)],
    admin: Annotated[bool, typer.Option("--admin", help="Make the user an administrator.")] = False,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="No password: the user signs in with single sign-on or API tokens only.")
    ] = False,
    max_running: Annotated[
        str | None,
        typer.Option("--max-running", metavar="N", help="How many workspaces may run at once.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a user; you are asked for the password."""
    wanted: Record = {"username": username, "is_admin": admin}
    if max_running is not None:
        wanted["max_running"] = _count(max_running)
    if not no_password:
        wanted["password"] = read_new_secret(f"Password of {username}: ")
    with api_here() as api:
        made = api.create_user(wanted)
    show_json(made) if as_json else show_line(
        f"{made['username']} can sign in" if not no_password else f"{username} was created"
    )


def change(
    username: User,
    admin: Annotated[
        bool | None, typer.Option("--admin/--no-admin", help="Whether the user is an administrator.", show_default=False)
    ] = None,
    active: Annotated[
        bool | None,
        typer.Option(
            "--active/--inactive",
            help="Whether the user may sign in; open connections of inactive users are closed.",
            show_default=False,
        ),
    ] = None,
    max_running: Annotated[
        str | None,
        typer.Option(
            "--max-running",
            metavar="N",
            help="How many workspaces may run at once; `default` for the limit of all users.",
            show_default=False,
        ),
    ] = None,
    password: Annotated[
        bool, typer.Option("--password", help="Set a new password; you are asked for it, or it is read from standard input.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Change a user."""
    wanted: Record = {}
    if admin is not None:
        wanted["is_admin"] = admin
    if active is not None:
        wanted["is_active"] = active
    if max_running is not None:
        wanted["max_running"] = None if max_running == DEFAULT else _count(max_running)
    if not wanted and not password:
        raise usage("no change was given", "`torpor users change --help` lists the options")
    if password:
        wanted["password"] = read_new_secret(f"New password of {username}: ")
    with api_here() as api:
        changed = api.change_user(username, wanted)
    show_json(changed) if as_json else show_line(f"{username} was changed")


def sign_out(username: User, as_json: Json = False) -> None:
    """End all sessions of a user."""
    with api_here() as api:
        api.sign_out_user(username)
    show_json({"username": username}) if as_json else show_line(f"{username} is signed out everywhere; API tokens stay valid")


def _count(said: str) -> int:
    if not said.isdecimal():
        raise usage(f"{said!r} is not a number of workspaces", f"use 0 or more, or `{DEFAULT}`")
    return int(said)


app = group(
    "users",
    "Users (for administrators).",
    list_,
    {"list": list_, "create": create, "change": change, "sign-out": sign_out},
)
