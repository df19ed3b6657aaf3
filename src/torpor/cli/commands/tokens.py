"""tokens: list, create and revoke your API tokens."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.command_group import group
from torpor.cli.commands.hold import seconds_of
from torpor.cli.completer import token_ids
from torpor.cli.options import Json
from torpor.cli.output.console import say, show, show_bytes, show_json, show_line
from torpor.cli.target import api_here
from torpor.domain.access import Scope

if TYPE_CHECKING:
    from torpor.cli.client import Record


def list_(as_json: Json = False) -> None:
    """List your API tokens, without their secrets."""
    with api_here() as api:
        items = api.tokens()
    if as_json:
        show_json({"items": items})
        return
    from torpor.cli.output import render_users

    show(render_users.tokens(items, datetime.now(UTC)))


def create(
    label: Annotated[str, typer.Argument(metavar="LABEL", help="What it is for.", show_default=False)],
    scope: Annotated[
        list[Scope] | None,
        typer.Option(
            "--scope",
            "-s",
            metavar="SCOPE",
            case_sensitive=False,
            help=f"What it may do; can be repeated: {', '.join(Scope)}.",
            show_default="read",
        ),
    ] = None,
    lives: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="How long it is valid, such as 12h or 90d (default: until revoked).",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create an API token; it is shown only once."""
    wanted: Record = {"label": label, "scopes": sorted({one.value for one in scope or [Scope.READ]})}
    if lives is not None:
        wanted["expires_in"] = round(seconds_of(lives))
    with api_here() as api:
        made = api.make_token(wanted)
    if as_json:
        show_json(made)
        return
    # Standard output has only the token, for TORPOR_TOKEN=$(torpor tokens create ci).
    show_bytes(f"{made['token']}\n".encode())
    say(f"torpor: this API token is not shown again; `torpor tokens revoke {made['id']}` revokes it")


def revoke(
    token_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="The id from `torpor tokens list`.", show_default=False, autocompletion=token_ids),
    ],
    as_json: Json = False,
) -> None:
    """Revoke an API token."""
    with api_here() as api:
        api.revoke_token(token_id)
    show_json({"revoked": token_id}) if as_json else show_line(f"API token {token_id} is revoked")


app = group("tokens", "Your API tokens.", list_, {"list": list_, "create": create, "revoke": revoke})
