"""logs, open: show the output of a workspace's program, and open it in a browser."""

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
    tail: Annotated[int, typer.Option("--tail", metavar="N", min=1, help="How many lines, counted from the end.")] = 200,
    raw: Annotated[bool, typer.Option("--raw", help="Do not escape control characters.")] = False,
    as_json: Json = False,
) -> None:
    """Print the output of its program; control characters are escaped."""
    if raw and as_json:
        raise usage("--raw and --json cannot be used together", "leave one of them out")
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
        typer.Option(
            "--port", "-p", min=1, max=65535, help="Another port in the workspace, such as a dev server.", show_default=False
        ),
    ] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Only print the address.")] = False,
    as_json: Json = False,
) -> None:
    """Open a workspace in a browser; this wakes it."""
    with api_here() as api:
        url = api.workspace(name).get("url")
    if not url:
        raise CommandError(
            ExitCode.REFUSED, f"{name} has no address", code="no_url", advice=f"`torpor explain {name}` shows the cause"
        )
    url = at_port(url, port)
    if as_json:
        show_json({"url": url})
    else:
        show_line(url)
    if not (print_only or as_json) and not _browse(url):
        say("torpor: this machine has no browser (open the address above in yours)")


def at_port(url: str, port: int | None) -> str:
    """The URL of a port: its host name starts with the port (`torpor.domain.hostnames`)."""
    scheme, _, rest = url.partition("://")
    return url if port is None else f"{scheme}://{port}--{rest}"


def shell_code(exit_code: int) -> int:
    """The exit code as shells report it: 128 plus the signal for a command that a signal ended (negative here)."""
    return 128 - exit_code if exit_code < 0 else exit_code


def _browse(url: str) -> bool:
    if sys.platform == "linux" and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        # Only browsers for terminals could be found: one would take this terminal, and cannot show a workspace.
        return False
    import webbrowser

    try:
        return webbrowser.open(url)
    except (OSError, webbrowser.Error):
        return False
