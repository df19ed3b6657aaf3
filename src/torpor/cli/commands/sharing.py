"""share, unshare, shares: let other users use a workspace."""

from typing import Annotated

import typer

from torpor.cli.options import Json, Name, User
from torpor.cli.output.console import show, show_json, show_line
from torpor.cli.target import api_here
from torpor.domain.access import Share

# What each role permits.
MEANS = {
    Share.USE: "open it, run commands in it and keep it awake",
    Share.MANAGE: "use it, and start, stop, archive, change and recover it",
}


def share(
    name: Name,
    username: User,
    role: Annotated[Share, typer.Option("--role", case_sensitive=False, help="What the user may do.")] = Share.USE,
    as_json: Json = False,
) -> None:
    """Let another user use or manage a workspace."""
    with api_here() as api:
        api.share(name, username, role.value)
        if as_json:
            show_json({"items": api.shares(name)})
            return
    show_line(f"{username} may {MEANS[role]}; `torpor unshare {name} {username}` revokes this")


def unshare(name: Name, username: User, as_json: Json = False) -> None:
    """Stop sharing with a user; open connections are closed."""
    with api_here() as api:
        api.unshare(name, username)
        if as_json:
            show_json({"items": api.shares(name)})
            return
    show_line(f"{name} is no longer shared with {username}")


def shares(name: Name, as_json: Json = False) -> None:
    """List the users who share a workspace."""
    with api_here() as api:
        items = api.shares(name)
    if as_json:
        show_json({"items": items})
        return
    from torpor.cli.output import render_users

    show(render_users.shares(items, name))
