"""The product works and stops in order when its output cannot be written."""

import contextlib
import http.client
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.product import TORPOR, Product
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

READY_WITHIN_S = 90
ENDED_WITHIN_S = 60
WORKS_WITHIN_S = 60


def asked(here: Product, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=10)
    try:
        connection.request("GET", path, headers={"Host": f"localhost:{here.port}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


@contextlib.contextmanager
def up(here: Product, output: int) -> Iterator["subprocess.Popen[bytes]"]:
    """As `torpor up -d` and `torpor up 2>&1 | ...` start it: all output goes to one place."""
    process = subprocess.Popen(
        [TORPOR, "up"], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=here.env(), cwd=here.data.parent
    )
    os.close(output)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(ENDED_WITHIN_S)


def works_and_ends(here: Product, process: "subprocess.Popen[bytes]") -> None:
    wait_until(lambda: process.poll() is not None or asked(here, "/health/ready")[0] == 200, within_s=READY_WITHIN_S)
    assert process.poll() is None, f"it ended with {process.returncode}"
    created = here.run("create", "demo", "--wait", timeout_s=WORKS_WITHIN_S)
    assert created.returncode == 0, created.stderr.decode()
    lost = re.search(r"^torpor_log_lines_lost_total (\S+)$", asked(here, "/metrics")[1], re.MULTILINE)
    assert lost is not None
    assert float(lost[1]) > 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(ENDED_WITHIN_S) == 0


def test_the_product_works_with_its_log_on_a_full_disk(tmp_path: Path) -> None:
    here = Product(tmp_path / "data")
    with up(here, os.open("/dev/full", os.O_WRONLY)) as process:
        works_and_ends(here, process)


def test_the_product_works_without_a_reader_of_its_output(tmp_path: Path) -> None:
    here = Product(tmp_path / "data")
    heard, said = os.pipe()
    with up(here, said) as process:
        with os.fdopen(heard, encoding="utf-8") as lines:
            assert any(line.startswith("torpor is ready at") for line in lines), "it ended before it was ready"
        works_and_ends(here, process)
