"""Test which log lines are written."""

import subprocess
import sys

import pytest

LOGS_AT_EVERY_LEVEL = """
import os
import structlog
from torpor.assemble.logs import configure_log
from torpor.settings import load

early = structlog.get_logger()
configure_log(load(os.environ))
for log in (early, structlog.get_logger()):
    for level in ("debug", "info", "warning", "error"):
        getattr(log, level)(f"a_line_of_{level}")
"""


def levels_written(**environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOGS_AT_EVERY_LEVEL],
        env={"HOME": "/", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [word.removeprefix("a_line_of_") for word in done.stderr.split() if word.startswith("a_line_of_")]


@pytest.mark.parametrize(
    ("environment", "levels"),
    [
        ({}, ["info", "warning", "error"]),
        ({"TORPOR_LOG_LEVEL": "debug"}, ["debug", "info", "warning", "error"]),
        ({"TORPOR_LOG_LEVEL": "error"}, ["error"]),
    ],
)
def test_lines_below_the_level_are_not_written(environment: dict[str, str], levels: list[str]) -> None:
    assert levels_written(**environment) == 2 * levels
