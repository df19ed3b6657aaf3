"""gc: remove archives that are no longer needed."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.exit_codes import CommandError, ExitCode
from torpor.cli.options import Json
from torpor.cli.output.console import console, say, show, show_json
from torpor.cli.target import api_here

if TYPE_CHECKING:
    from torpor.cli.client import ApiClient, Record

POLL_S = 0.25
DOING = "removing archives that are no longer needed"


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed, and why.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait; exit code 5 after that.")
    ] = 600,
    as_json: Json = False,
) -> None:
    """Remove archives that are no longer needed."""
    from torpor.cli.output import render

    with api_here() as api:
        if dry_run:
            preview = api.gc_preview()
            show_json(preview) if as_json else show(render.gc_preview(preview, datetime.now(UTC)))
            return
        requested = api.gc_request()
        try:
            with _spinning(f"{DOING} (waiting at most {timeout:g} s)"):
                report = wait_for_report(api, requested, timeout_s=timeout)
        except KeyboardInterrupt:
            advice = "the collection continues; `torpor gc --dry-run` shows its result"
            raise CommandError(ExitCode.INTERRUPTED, "no longer waiting", code="interrupted", advice=advice) from None
    show_json(report) if as_json else show(render.gc_report(report))


def wait_for_report(
    api: "ApiClient",
    requested: "Record",
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> "Record":
    """The report of the first collection that started after the request; CommandError if it was skipped."""
    asked_at = datetime.fromisoformat(requested["requested_at"])
    began = clock()
    while True:
        standing = api.gc_report()
        if _answers(standing["report"], asked_at):
            return dict(standing["report"])
        if _answers(standing["skipped"], asked_at):
            raise CommandError(
                ExitCode.REFUSED,
                f"the collection did not finish: {standing['skipped']['skipped']}",
                code="collection_skipped",
                advice="nothing that is needed was removed; it is retried automatically",
                context={"report": standing["skipped"]},
            )
        if clock() - began >= timeout_s:
            raise CommandError(
                ExitCode.TIMED_OUT,
                f"no collection finished within {timeout_s:g} s",
                code="wait_timed_out",
                advice="the request stays active until a controller runs it, unless TORPOR_GC is off",
            )
        sleep(POLL_S)


def _answers(report: "Record | None", asked_at: datetime) -> bool:
    return report is not None and datetime.fromisoformat(report["started_at"]) > asked_at


@contextlib.contextmanager
def _spinning(doing: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        say(doing)
        yield
        return
    with console(stderr=True).status(doing):
        yield
