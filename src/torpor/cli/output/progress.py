"""Show the progress of `--wait` on standard error.

At a terminal one line that is redrawn; anywhere else one plain line for each change.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator

from torpor.cli.client import Record
from torpor.cli.output.console import console, say

REFRESH_PER_SECOND = 10


@contextlib.contextmanager
def wait_progress() -> Iterator[Callable[[Record], None]]:
    if not sys.stderr.isatty():
        yield _ProgressLines()
        return
    from rich.live import Live
    from rich.spinner import Spinner

    from torpor.cli.output.colours import progress_line

    spinner = Spinner("dots", style="cyan")
    with Live(spinner, console=console(stderr=True), refresh_per_second=REFRESH_PER_SECOND, transient=True) as live:
        yield lambda workspace: live.update(progress_line(workspace, spinner))


class _ProgressLines:
    def __init__(self) -> None:
        self._last = ""

    def __call__(self, workspace: Record) -> None:
        from torpor.cli.output.wording import change_line

        line = change_line(workspace)
        if line != self._last:
            say(line)
            self._last = line
