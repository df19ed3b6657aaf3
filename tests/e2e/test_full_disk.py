"""A workspace that fills the disk is paused; the product and the other workspaces continue."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.product import SERVE_HOME, Product, product
from tests.support.requirements import must_have
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

DISK_MB, RESERVE_MB = 800, 240
# At most 100 MB a second, so that it is noticed between a half and a quarter of the reserve on any disk.
FILL = """
import time
with open("big", "wb", buffering=0) as file:
    while True:
        file.write(bytes(1_000_000))
        time.sleep(0.01)
"""


@contextmanager
def small_ext4(folder: Path) -> Iterator[Path]:
    """A new disk in a file. (The kernel does not count writes to a tmpfs.)"""
    must_have(os.getuid() == 0, "root, to mount a small disk")
    must_have(shutil.which("mkfs.ext4"), "mkfs.ext4")
    image, disk = folder / "image", folder / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(DISK_MB << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, disk], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small disk could not be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def free_mb(disk: Path) -> int:
    return shutil.disk_usage(disk).free >> 20


def test_a_workspace_fills_the_disk(tmp_path: Path) -> None:
    with (
        small_ext4(tmp_path) as disk,
        product(disk, TORPOR_DISK_RESERVE=str(RESERVE_MB), TORPOR_MAX_RUNNING_PER_USER="9") as here,
    ):
        for name in ("filler", "calm"):
            here.ok("create", name, "--template", "command", "--wait", "--", *SERVE_HOME)
        here.ok("create", "asleep", "--template", "command", "--wait", "--", *SERVE_HOME)
        here.ok("stop", "asleep", "--wait")
        with (disk / "occupied").open("wb") as file:  # so that the rest is filled soon
            os.posix_fallocate(file.fileno(), 0, (free_mb(disk) - RESERVE_MB - 80) << 20)
        big = here.home(here.show("filler")) / "big"
        filling = subprocess.Popen([here.command, "exec", "filler", "--", "python3", "-c", FILL], env=here.env())
        try:
            paused = here.until("filler", lambda seen: seen["conditions"]["infra.container_ready"]["reason"] == "Paused")
            assert (paused["phase"], paused["error"]) == ("RUNNING", None)
            assert "almost full" in here.ok("explain", "filler")
            written = wait_until(lambda: big.stat().st_size, within_s=5)
            here.until("asleep", lambda seen: (seen["disk_bytes"] or 0) > 0)
            assert free_mb(disk) > 0, "not all of the reserve is gone"

            check_what_still_works(here, disk)
            assert big.stat().st_size == written, "what was paused has written no more"

            here.ok("exec", "filler", "--", "truncate", "--size", "0", "big")
            seen = here.until("filler", lambda seen: seen["conditions"]["infra.container_ready"]["reason"] == "Ready")
            assert seen["phase"] == "RUNNING"
            wait_until(lambda: big.stat().st_size > written, within_s=20, otherwise=here.log)  # it continued from where it was
        finally:
            filling.send_signal(signal.SIGINT)
            filling.wait(20)
        here.ok("exec", "filler", "--", "rm", "big")
        here.ok("start", "asleep", "--wait")
        check_one_that_takes_all_at_once(here, disk)


def check_one_that_takes_all_at_once(here: Product, disk: Path) -> None:
    """No process is seen to write, and there is no moment before the disk is full."""
    nearly_all_of_it = str((free_mb(disk) - 16) << 20)
    allocate = [here.command, "exec", "asleep", "--", "fallocate", "--length", nearly_all_of_it, "big"]
    # The guard can pause the command before it exits, so its end is awaited only after there is space again.
    with subprocess.Popen(allocate, env=here.env()) as allocating:
        try:
            here.until("asleep", lambda seen: seen["conditions"]["infra.container_ready"]["reason"] == "Paused")
            wait_until(lambda: free_mb(disk) > 50, within_s=5)  # the reserved space is free for the others
            here.ok("exec", "asleep", "--", "rm", "big")
            here.until("asleep", lambda seen: seen["conditions"]["infra.container_ready"]["reason"] == "Ready")
            assert allocating.wait(20) == 0
        finally:
            allocating.kill()
    assert here.get("asleep")[0] == 200


def check_what_still_works(here: Product, disk: Path) -> None:
    refused = here.run("start", "asleep")
    assert refused.returncode == 1
    for words in ("disk of the homes", "disk_reserve keeps 240 MiB free", "enlarge the disk"):
        assert words in refused.stderr.decode()
    assert here.run("create", "another").returncode == 1
    assert here.show("calm")["conditions"]["infra.container_ready"]["reason"] == "Ready", "only what writes is paused"
    assert here.get("calm")[0] == 200
    here.ok("archive", "asleep", "--wait")
    assert here.run("start", "asleep").returncode == 1, "a restore is refused, too"
    here.ok("archive", "calm", "--wait")
    assert free_mb(disk) > 0
