"""What does a command do before it has read its own words?

To import what a command line needs takes longer than many a command. So what takes longest is begun before that.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from torpor.fast_imports import fast_imports

HELP = frozenset({"-h", "--help"})


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["sort"]:
        # It computes with whole numbers only: the threads that NumPy begins for linear algebra would turn round and wait.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with start_fork_server_early(words):
        with fast_imports():
            from torpor.cli.main import run
        code = run(words)
    sys.exit(code)


def start_fork_server_early(words: Sequence[str]) -> AbstractContextManager[None]:
    """What takes longest, if it will be wanted; in vain it ends with the block."""
    if not wants_workers(words):
        return nullcontext()
    from torpor.sort.worker.fork_server import start_early

    return start_early()


def wants_workers(words: Sequence[str]) -> bool:
    return list(words[:2]) == ["sort", "run"] and HELP.isdisjoint(words)
