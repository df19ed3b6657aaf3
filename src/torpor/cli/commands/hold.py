"""hold: keep a workspace awake for a time and a reason."""

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.exit_codes import usage
from torpor.cli.options import Json, Name
from torpor.cli.output.console import show, show_json, show_line
from torpor.cli.target import api_here

if TYPE_CHECKING:
    from torpor.cli.client import ApiClient

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
ALL = "all"

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([smhd])")


def hold(
    name: Name,
    duration: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long: 90s, 5m, 1h, 2d.", show_default=False)
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="The reason.", show_default=False)] = None,
    end: Annotated[
        str | None, typer.Option("--end", metavar="ID", help="End this one; `all` ends all.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Keep a workspace awake for a reason; list what does without options."""
    seconds = None if duration is None else seconds_of(duration)
    if end is not None and (seconds is not None or reason is not None):
        raise usage("--end cannot be used with --for or --reason", f"`torpor hold {name}` lists what can be ended")
    if (seconds is None) != (reason is None):
        raise usage("--for and --reason must be used together", f"such as: torpor hold {name} --for 1h --reason 'a long build'")
    with api_here() as api:
        if end is not None:
            _end(api, name, end, as_json=as_json)
        elif seconds is not None and reason is not None:
            _begin(api, name, reason, seconds, as_json=as_json)
        else:
            _list(api, name, as_json=as_json)


def seconds_of(duration: str) -> float:
    found = _DURATION.fullmatch(duration.strip())
    if found is None:
        raise usage(f"{duration!r} is not a duration", "use a number and a unit: 90s, 5m, 1h, 2d")
    return float(found[1]) * UNITS_S[found[2]]


def _begin(api: "ApiClient", name: str, reason: str, seconds: float, *, as_json: bool) -> None:
    lease = api.hold(name, reason, seconds)
    if as_json:
        show_json(lease)
        return
    show_line(
        f"{name} stays awake until {lease['expires_at']} ({lease['reason']}); `torpor hold {name} --end {lease['id']}` ends it"
    )


def _list(api: "ApiClient", name: str, *, as_json: bool) -> None:
    items = api.holds(name)
    if as_json:
        show_json({"items": items})
        return
    from torpor.cli.output import render

    show(render.holds(items, datetime.now(UTC)))


def _end(api: "ApiClient", name: str, lease_id: str, *, as_json: bool) -> None:
    api.end_holds(name, None if lease_id == ALL else lease_id)
    left = api.holds(name)
    if as_json:
        show_json({"items": left})
    elif lease_id != ALL:
        show_line(f"{lease_id} no longer keeps {name} awake")
    elif left:
        # Users without the role `manage` end only their own.
        show_line(f"you no longer keep {name} awake; others still do (`torpor hold {name}` lists them)")
    else:
        show_line(f"nothing keeps {name} awake any more")
