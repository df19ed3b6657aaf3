"""Test that a line that cannot be written is dropped, counted, and reported when writing works again."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from torpor import metrics
from torpor.assemble.streams import lossy_stream

# Without a timeout the first full pipe would block it forever.
WRITES_WITHIN_S = 20.0
# It logs a line for each line of its standard input, and confirms that on standard output.
LOGS_WHEN_ASKED = """
import sys
import structlog
from torpor.assemble.logs import configure_log
from torpor.settings import load

configure_log(load({"TORPOR_LOG_FORMAT": sys.argv[1]}))
for line in sys.stdin:
    structlog.get_logger().info(line.strip())
    print("done")
"""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A stream that refuses data when it is full."""
    heard, said = os.pipe()
    os.set_blocking(heard, False)
    os.set_blocking(said, False)
    yield heard, said
    os.close(heard)
    os.close(said)


def fill(said: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(said, b" ")


def drain(heard: int) -> str:
    found = b""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(heard, 1 << 20):
            found += data
    return found.decode()


def test_lost_lines_are_counted_and_reported(pipe: tuple[int, int]) -> None:
    heard, said = pipe
    before = metrics.log_lines_lost_total._value.get()
    with os.fdopen(os.dup(said), "w") as file:
        stream = lossy_stream(file, lambda count: f"{count} lost")
        print("first", file=stream)
        assert drain(heard) == "first\n"
        fill(said)
        print("second", file=stream, flush=True)
        print("third\nfourth", file=stream)
        drain(heard)
        print("fifth", file=stream)
        assert drain(heard) == "3 lost\nfifth\n"
        print("sixth", file=stream)
        assert drain(heard) == "sixth\n"
    assert metrics.log_lines_lost_total._value.get() == before + 3


def test_an_incomplete_line_does_not_affect_the_next(pipe: tuple[int, int]) -> None:
    heard, said = pipe
    with os.fdopen(os.dup(said), "w") as file:
        stream = lossy_stream(file, lambda count: f"{count} lost")
        print("x" * (1 << 20), file=stream)
        assert set(drain(heard)) == {"x"}
        print("whole", file=stream)
        assert drain(heard) == "\n1 lost\nwhole\n"


def test_a_blocked_reader_does_not_delay_writes() -> None:
    heard, said = os.pipe()
    try:
        with os.fdopen(said, "w") as file:
            stream = lossy_stream(file, lambda count: f"{count} lost")
            began = time.monotonic()
            for _ in range(200):
                print("x" * 10_000, file=stream)
            assert time.monotonic() - began < WRITES_WITHIN_S, "no line waits for the reader"
            os.set_blocking(heard, False)
            kept = drain(heard).count("x" * 10_000 + "\n")
            assert 0 < kept < 200
            print("whole", file=stream)
            assert drain(heard) == f"\n{200 - kept} lost\nwhole\n"
    finally:
        os.close(heard)


def test_writing_to_a_missing_stream_does_not_fail() -> None:
    print("into the void", file=lossy_stream(None, str))


def log(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin
    assert process.stdout
    process.stdin.write(line + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_the_log_says_how_many_of_its_lines_were_lost_in_its_own_format(pipe: tuple[int, int], log_format: str) -> None:
    heard, said = pipe
    argv = (sys.executable, "-c", LOGS_WHEN_ASKED, log_format)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True) as process:
        fill(said)
        log(process, "lost")
        log(process, "lost_too")
        drain(heard)
        log(process, "written")
        assert process.stdin
        process.stdin.close()
        assert process.wait(30) == 0
    notice, line = drain(heard).splitlines()
    if log_format == "json":
        assert (json.loads(notice)["event"], json.loads(notice)["count"]) == ("log_lines_lost", 2)
        assert json.loads(line)["event"] == "written"
    else:
        assert "log_lines_lost" in notice
        assert "count=2" in notice
        assert "written" in line
