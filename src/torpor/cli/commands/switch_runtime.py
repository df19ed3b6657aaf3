"""switch-runtime: move all workspaces to another runtime."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.exit_codes import CommandError, ExitCode, usage
from torpor.cli.options import Json
from torpor.cli.output.console import say, show_json, show_line
from torpor.cli.prompts import confirm
from torpor.cli.target import api_here

if TYPE_CHECKING:
    from torpor.cli.client import ApiClient, Record

POLL_S = 0.5


def switch_runtime(
    target: Annotated[
        str | None,
        typer.Argument(help="process, docker, podman or kubernetes; without it, show the runtime.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End a move that is in progress, and start what ran before.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait; exit code 5 after that.")
    ] = 3600,
    as_json: Json = False,
) -> None:
    """Move all workspaces to another runtime: archive them now, restore them there.

    When all are archived, restart Torpor with the other runtime. Nothing is lost if you stop in between.
    """
    if cancel and (target is not None or dry_run):
        raise usage("--cancel takes no runtime and no --dry-run")
    with api_here() as api:
        if target is None:
            told = api.cancel_switch() if cancel else api.runtime()
            show_json(told) if as_json else show_line(status_line(told))
            return
        if dry_run or not yes:
            preview = api.switch_preview(target)
            if dry_run and as_json:
                show_json(preview)
                return
            for line in preview_lines(preview):
                show_line(line) if dry_run else say(line)
            if dry_run:
                return
            confirm(f"Stop and archive all workspaces, to move them to {target!r}?", "nothing was changed")
        api.switch_runtime(target)
        told = wait_until_archived(api, target, timeout_s=timeout, tell=say)
    show_json(told) if as_json else show_line(restart_line(target))


def wait_until_archived(
    api: "ApiClient",
    target: str,
    *,
    timeout_s: float,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> "Record":
    """Wait until no home is left; CommandError if that needs a user, or takes longer than the timeout."""
    deadline, last = clock() + timeout_s, None
    while True:
        told = api.runtime()
        switch = told["switch"]
        if switch is None or switch["target"] != target:
            raise CommandError(ExitCode.REFUSED, "the move was canceled", code="not_switching", advice="start it again")
        if switch["homes_left"] == 0:
            return told
        if switch["homes_left"] != last:
            last = switch["homes_left"]
            tell(f"{last} {'workspace is' if last == 1 else 'workspaces are'} not archived yet")
        if switch["stuck_count"] == last:
            raise CommandError(
                ExitCode.ENDED_IN_ERROR,
                f"{last} {'workspace' if last == 1 else 'workspaces'} cannot be archived",
                code="homes_not_moved",
                advice="`torpor explain NAME` shows what to do; recover or delete them and repeat the command, or stay here "
                "with `torpor switch-runtime --cancel`",
                more=[f"{one['workspace']} ({one['owner']}): {one['message']}" for one in switch["stuck"]],
            )
        if clock() >= deadline:
            raise CommandError(
                ExitCode.TIMED_OUT,
                f"{last} workspaces are not archived after {timeout_s:g} s",
                code="wait_timed_out",
                advice="archiving continues; repeat the command to wait on, or stay here with `torpor switch-runtime --cancel`",
            )
        sleep(POLL_S)


def preview_lines(preview: "Record") -> list[str]:
    lines = [
        f"Workspaces to archive and move to {preview['target']!r}: {preview['workspaces']}. Running ones, which are stopped: "
        f"{preview['running']}.",
        "No workspace can start until Torpor runs with that runtime.",
    ]
    if preview["cannot_run"]:
        lines.append("That runtime cannot run these, which stay archived:")
        lines += [f"  {one['workspace']} ({one['owner']}): {one['why']}" for one in preview["cannot_run"]]
    return lines


def restart_line(target: str) -> str:
    return (
        f"All workspaces are archived. Now stop every Torpor process, and start it with TORPOR_RUNTIME={target}. "
        "To stay here instead: torpor switch-runtime --cancel"
    )


def status_line(told: "Record") -> str:
    where = f"The homes are at the runtime {told['world']}." if told["world"] else "No controller has started yet."
    switch = told["switch"]
    if switch is None:
        return where
    if switch["homes_left"] == 0:
        return f"{where} {restart_line(switch['target'])}"
    return f"{where} A move to {switch['target']!r} is in progress: {switch['homes_left']} not archived yet."
