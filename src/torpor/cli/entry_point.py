"""Start a command before its arguments are parsed.

Importing the command line takes longer than many commands, so slow preparations start before it.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

from torpor.fast_imports import fast_imports

HELP = frozenset({"-h", "--help"})


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["sort"]:
        # The sort uses only integers: the threads that NumPy starts for linear algebra would be idle.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with start_fork_server_early(words):
        with fast_imports():
            from torpor.cli.main import run
        code = run(words)
    sys.exit(code)


def start_fork_server_early(words: Sequence[str]) -> AbstractContextManager[None]:
    """Start the fork server if the command needs it; if it is not used, it ends with the block."""
    # Without NumPy, the command itself says what is missing.
    if not wants_workers(words) or find_spec("numpy") is None:
        return nullcontext()
    from torpor.sort.worker.fork_server import start_early

    return start_early()


def wants_workers(words: Sequence[str]) -> bool:
    return list(words[:2]) == ["sort", "run"] and HELP.isdisjoint(words)
