"""kit: build and show the files that Torpor runs in containers."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from torpor.cli.command_group import group
from torpor.cli.exit_codes import CommandError, ExitCode
from torpor.cli.options import Data, Json
from torpor.cli.output.console import console, say, show, show_json
from torpor.cli.target import settings_here

if TYPE_CHECKING:
    from torpor.kit.manifest import Kit

DOING = "building the kit"
BUILD_COMMAND = "`torpor kit build` builds it"


def build(data: Data = None, as_json: Json = False) -> None:
    """Build the kit, unless there is a complete one."""
    from torpor.kit.kit_folder import ensure_kit

    with build_progress() as progress:
        kit = ensure_kit(settings_here(data=data).data, os.environ, progress)
    _show(kit, as_json=as_json)


def show_(data: Data = None, as_json: Json = False) -> None:
    """Show the kit that was built last, after a check of its files."""
    from torpor.kit.kit_folder import current_kit
    from torpor.kit.manifest import is_intact

    place = settings_here(data=data).data
    kit = current_kit(place)
    if kit is None:
        raise CommandError(ExitCode.REFUSED, f"there is no kit in {place}", code="no_kit", advice=BUILD_COMMAND)
    if not is_intact(kit):
        what = f"files of the kit in {kit.path} have changed since it was built"
        raise CommandError(ExitCode.REFUSED, what, code="kit_damaged", advice=f"{BUILD_COMMAND} again")
    _show(kit, as_json=as_json)


def _show(kit: "Kit", *, as_json: bool) -> None:
    record = {"path": str(kit.path), **asdict(kit.manifest)}
    if as_json:
        show_json(record)
        return
    from torpor.cli.output import render

    show(render.kit(record))


@contextlib.contextmanager
def build_progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, or one line if that is not a terminal. Nothing if no kit has to be built."""
    with contextlib.ExitStack() as opened:
        draw: Callable[[int, int], None] | None = None

        def progress(done: int, total: int) -> None:
            nonlocal draw
            if draw is None:
                draw = opened.enter_context(_drawn())
            draw(done, total)

        yield progress


@contextlib.contextmanager
def _drawn() -> Iterator[Callable[[int, int], None]]:
    if not sys.stderr.isatty():
        say(DOING)
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("files"))
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(DOING)
        yield lambda done, total: bar.update(task, completed=done, total=total)


app = group(
    "kit", "The files that Torpor runs in containers.", lambda as_json: show_(None, as_json), {"build": build, "show": show_}
)
