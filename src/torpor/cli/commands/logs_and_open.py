"""logs, open: look at what runs in a workspace."""

import os
import sys
from typing import Annotated

import typer

from torpor.cli.exit_codes import CommandError, ExitCode, usage
from torpor.cli.options import Json, Name
from torpor.cli.output.console import say, show_bytes, show_json, show_line, show_text
from torpor.cli.target import api_here


def logs(
    name: Name,
    tail: Annotated[int, typer.Option("--tail", metavar="N", min=1, help="How many of the last lines.")] = 200,
    raw: Annotated[bool, typer.Option("--raw", help="The bytes as they are, with control characters.")] = False,
    as_json: Json = False,
) -> None:
    """What its program wrote; control characters are escaped."""
    if raw and as_json:
        raise usage("--raw and --json are two different forms", "leave one of them out")
    with api_here() as api:
        text = api.logs(name, tail)
    if as_json:
        show_json({"items": text.decode("utf-8", "replace").splitlines()})
    elif raw:
        show_bytes(text)
    else:
        from torpor.cli.output.wording import escaped_bytes

        show_text(escaped_bytes(text))


def open_(
    name: Name,
    port: Annotated[
        int | None,
        typer.Option("--port", "-p", min=1, max=65535, help="What else listens in it: a dev server, say.", show_default=False),
    ] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Only print the address.")] = False,
    as_json: Json = False,
) -> None:
    """Open it in a browser; opening wakes it."""
    with api_here() as api:
        url = api.workspace(name).get("url")
    if not url:
        raise CommandError(
            ExitCode.REFUSED, f"{name} has no address", code="no_url", advice=f"`torpor explain {name}` says how it stands"
        )
    url = at_port(url, port)
    if as_json:
        show_json({"url": url})
    else:
        show_line(url)
    if not (print_only or as_json) and not _browse(url):
        say("torpor: there is no browser here (open the address above in one)")


def at_port(url: str, port: int | None) -> str:
    """The host name of one of its ports, which begins with it (domain/hostnames.py)."""
    scheme, _, rest = url.partition("://")
    return url if port is None else f"{scheme}://{port}--{rest}"


def shell_code(exit_code: int) -> int:
    """A command that a signal ended has a negative code, which shells tell as 128 and the signal."""
    return 128 - exit_code if exit_code < 0 else exit_code


def _browse(url: str) -> bool:
    if sys.platform == "linux" and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        # What could be found here is for terminals: it would take this one, and cannot show a workspace.
        return False
    import webbrowser

    try:
        return webbrowser.open(url)
    except (OSError, webbrowser.Error):
        return False
