"""The memory and the cores of a workspace are limited to its size. The real product."""

import json
from pathlib import Path

import pytest

from tests.support.product import Product, product
from tests.support.requirements import must_have

pytestmark = [pytest.mark.e2e, pytest.mark.long]

# The CPU seconds that four busy processes use together in three seconds.
BURN = """
import multiprocessing, os, time
def burn():
    until = time.monotonic() + 3
    while time.monotonic() < until:
        pass
    return time.process_time()
if __name__ == "__main__":
    begun = os.times()
    busy = [multiprocessing.Process(target=burn) for _ in range(4)]
    [one.start() for one in busy]
    [one.join() for one in busy]
    ended = os.times()
    print(ended.children_user + ended.children_system - begun.children_user - begun.children_system)
"""
TEMPLATE = """name = "small"
title = "Small"
description = "A small one."
command = ["{python}", "-m", "http.server", "--bind", "127.0.0.1", "{port}"]
cpu = 0.2
memory = "300M"
"""


def cpu_s(here: Product, name: str) -> float:
    return float(here.ok("exec", name, "--", "python3", "-c", BURN))


def allocates(here: Product, name: str, megabytes: int) -> bool:
    return here.run("exec", name, "--", "python3", "-c", f"b'x' * ({megabytes} << 20)").returncode == 0


def test_a_size_limits_memory_and_cores(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "small.toml").write_text(TEMPLATE)
    with product(tmp_path, TORPOR_TEMPLATES_DIR=str(tmp_path / "templates"), TORPOR_WORKSPACE_MAX_MEMORY_MB="600") as here:
        refused = here.run("create", "large", "--memory", "1G")
        assert refused.returncode == 1
        assert b"workspace_max_memory_mb" in refused.stderr
        created = here.run("create", "own", "--cpu", "0.2", "--memory", "500M", "--disk", "20G", "--wait")
        assert created.returncode == 0, created.stderr
        assert b"The disk size is not enforced" in created.stderr
        assert here.show("own")["size"] == {"cpu": 0.2, "memory_mb": 500, "disk_mb": 20_480}
        assert "0.2 cores, memory 500.0 MiB, disk 20.0 GiB" in here.ok("show", "own")
        assert allocates(here, "own", 350)
        assert not allocates(here, "own", 550)
        here.ok("create", "other", "-t", "small", "--wait")
        assert allocates(here, "other", 200)
        assert not allocates(here, "other", 350)

        weights = {one["what"]: one["ok"] for one in json.loads(here.ok("doctor", "--json"))["items"]}["confinement: CPU"]
        assert (b"by weight only" in created.stderr) is not weights
        must_have(weights, "a cgroup with the cpu controller")
        for name in ("own", "other"):
            assert cpu_s(here, name) < 1.5, "a fifth of a core for three seconds, and not several cores"
