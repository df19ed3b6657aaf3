"""list, show, history, explain, limits: show workspaces and their status."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from torpor.cli.options import Json, Name
from torpor.cli.output.console import show as show_text
from torpor.cli.output.console import show_json
from torpor.cli.target import api_here
from torpor.domain.states import Phase


def list_(
    phase: Annotated[
        Phase | None, typer.Option("--phase", case_sensitive=False, help="Only workspaces in this phase.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List workspaces and their status."""
    with api_here() as api:
        items = api.workspaces(phase)
    if as_json:
        show_json({"items": items})
        return
    from torpor.cli.output import render

    show_text(render.workspaces(items, _now()))


def show(name: Name, as_json: Json = False) -> None:
    """Show everything about one workspace."""
    with api_here() as api:
        workspace = api.workspace(name)
    if as_json:
        show_json(workspace)
        return
    from torpor.cli.output import render

    show_text(render.workspace(workspace, _now()))


def history(name: Name, as_json: Json = False) -> None:
    """List its operations, newest first, with duration and outcome."""
    with api_here() as api:
        items = api.operations(name)
    if as_json:
        show_json({"items": items})
        return
    from torpor.cli.output import render

    show_text(render.history(items, _now()))


def explain(name: Name, as_json: Json = False) -> None:
    """Explain its status, what comes next, and what you can do."""
    with api_here() as api:
        explanation = api.explain(name)
    if as_json:
        show_json(explanation)
        return
    from torpor.cli.output import render

    show_text(render.explanation(explanation, _now()))


def limits(as_json: Json = False) -> None:
    """Show how many workspaces may run, and which of yours do."""
    with api_here() as api:
        told = api.limits()
    if as_json:
        show_json(told)
        return
    from torpor.cli.output import render_users

    show_text(render_users.limits(told))


def _now() -> datetime:
    return datetime.now(UTC)
