"""tokens: which programs may speak for you, and what may they do?"""

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
    """Your tokens, but for what is secret of them."""
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
            help=f"What it may do, as often as needed: {', '.join(Scope)}.",
            show_default="read",
        ),
    ] = None,
    lives: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="How long it is good: 12h, 90d; else until revoked.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make one; it is shown once, and never again."""
    wanted: Record = {"label": label, "scopes": sorted({one.value for one in scope or [Scope.READ]})}
    if lives is not None:
        wanted["expires_in"] = round(seconds_of(lives))
    with api_here() as api:
        made = api.make_token(wanted)
    if as_json:
        show_json(made)
        return
    # Alone on standard output, so that it can be caught: TORPOR_TOKEN=$(torpor tokens create ci)
    show_bytes(f"{made['token']}\n".encode())
    say(f"torpor: this is shown only now; `torpor tokens revoke {made['id']}` ends it")


def revoke(
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="See `torpor tokens list`.", show_default=False, autocompletion=token_ids)
    ],
    as_json: Json = False,
) -> None:
    """End one, at once."""
    with api_here() as api:
        api.revoke_token(token_id)
    show_json({"revoked": token_id}) if as_json else show_line(f"{token_id} is good no more")


app = group("tokens", "By what programs speak for you.", list_, {"list": list_, "create": create, "revoke": revoke})
