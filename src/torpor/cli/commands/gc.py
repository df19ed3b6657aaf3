"""gc: which archives does nobody need any more, and away with them."""

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
DOING = "collecting archives that nobody needs"


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done, and why.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait at most; exit code 5 beyond.")
    ] = 600,
    as_json: Json = False,
) -> None:
    """Collect the archives that nobody refers to any more."""
    from torpor.cli.output import render

    with api_here() as api:
        if dry_run:
            preview = api.gc_preview()
            show_json(preview) if as_json else show(render.gc_preview(preview, datetime.now(UTC)))
            return
        requested = api.gc_request()
        try:
            with _spinning(f"{DOING} (waiting for it at most {timeout:g} s)"):
                report = wait_for_report(api, requested, timeout_s=timeout)
        except KeyboardInterrupt:
            advice = "the collection goes on; `torpor gc --dry-run` shows what came of it"
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
    """The report of the first collection that began after it was asked for; Ended when that one was skipped."""
    asked_at = datetime.fromisoformat(requested["requested_at"])
    began = clock()
    while True:
        standing = api.gc_report()
        if _answers(standing["report"], asked_at):
            return dict(standing["report"])
        if _answers(standing["skipped"], asked_at):
            raise CommandError(
                ExitCode.REFUSED,
                f"the collection did not come to its end: {standing['skipped']['skipped']}",
                code="collection_skipped",
                advice="nothing was removed that is needed; it is tried again by itself",
                context={"report": standing["skipped"]},
            )
        if clock() - began >= timeout_s:
            raise CommandError(
                ExitCode.TIMED_OUT,
                f"no collection had come to its end after {timeout_s:g} s",
                code="wait_timed_out",
                advice="it was asked for, and a controller does it as soon as one leads, unless TORPOR_GC is off",
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
