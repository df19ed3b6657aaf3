"""The fork server starts early, and ends with the command if it is not used."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from torpor.cli.entry_point import wants_workers

MARK = "TORPOR_TEST_MARK"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["sort", "run", "in", "-o", "out"], True),
        (["sort", "run"], True),
        (["sort", "run", "--help"], False),
        (["sort", "run", "in", "-h"], False),
        (["sort"], False),
        (["sort", "validate", "run"], False),
        (["run", "sort"], False),
        ([], False),
    ],
)
def test_only_a_local_sort_starts_the_fork_server(words: list[str], wanted: bool) -> None:
    assert wants_workers(words) is wanted


@pytest.mark.parametrize(
    "words", [["--no-such-option"], ["in", "--output", "out", "--format", "csv"], ["in", "--output", "out"]]
)
def test_a_failed_command_leaves_no_process(tmp_path: Path, words: list[str]) -> None:
    mark = secrets.token_hex(8)
    done = subprocess.run(
        [sys.executable, "-m", "torpor", "sort", "run", *words],
        env={**os.environ, MARK: mark},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert done.stderr.startswith("torpor: ")
    assert living(mark) == []
    assert list(tmp_path.iterdir()) == []


def living(mark: str) -> list[str]:
    """The processes that inherited the mark."""
    return [entry.name for entry in Path("/proc").iterdir() if entry.name.isdecimal() and mark in environment_of(entry)]


def environment_of(process: Path) -> str:
    try:
        return (process / "environ").read_text(errors="replace")
    except OSError:  # The process has ended.
        return ""
