"""The product recovers from a kill -9 at the worst moments."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.product import TORPOR, Product, free_port, processes_with, product
from tests.support.waiting import wait_until
from torpor.archives.tree import tree_root

pytestmark = pytest.mark.e2e

HOME_MB = 500


def fill(home: Path) -> None:
    """About 500 MB: a few large files and many small ones, with the owner of the home."""
    owner = home.stat()
    made = []
    for number in range(8):
        path = home / f"large-{number}"
        with path.open("wb") as file:
            for _ in range(HOME_MB // 8 // 4):
                file.write(os.urandom(4 << 20))
        made.append(path)
    for folder in range(10):
        directory = home / f"folder-{folder}"
        directory.mkdir()
        made.append(directory)
        for number in range(100):
            small = directory / f"small-{number}"
            small.write_text(f"{folder} {number}\n" * 20, encoding="utf-8")
            made.append(small)
    for path in made:
        os.chown(path, owner.st_uid, owner.st_gid)


def asleep(here: Product) -> str:
    """A stopped workspace with a full home; returns the hash of its tree."""
    here.ok("create", "demo", "--wait")
    fill(here.home(here.show("demo")))
    here.ok("stop", "demo", "--wait")
    return tree_root(here.home(here.show("demo")))


def wait_for_bytes(folder: Path, at_least: int = 50_000_000) -> None:
    """Wait until this much is written below this folder, which was empty: in the middle of the operation."""
    wait_until(lambda: sum(path.stat().st_size for path in files_below(folder)) >= at_least, within_s=60)


def files_below(folder: Path) -> list[Path]:
    found = []
    for where, _, names in os.walk(folder):
        found += [path for name in names if (path := Path(where, name)).is_file()]
    return found


def half_made(volumes: Path) -> list[str]:
    return [path.name for path in volumes.iterdir() if path.name.startswith("ws-") and not (path / "marker.json").exists()]


@pytest.mark.long
def test_a_kill_while_archiving_or_restoring_loses_nothing(tmp_path: Path) -> None:
    with product(tmp_path) as here:
        root = asleep(here)

        here.ok("archive", "demo")
        wait_for_bytes(here.data / "archives")
        here.kill()
        here.up()
        here.until("demo", lambda seen: seen["phase"] == "ARCHIVED" and seen["operation"] == "NONE", within_s=120)
        assert not [path for path in (here.data / "volumes").iterdir() if path.name.startswith("ws-")]

        here.ok("stop", "demo")
        wait_for_bytes(here.data / "volumes")
        here.kill()
        assert half_made(here.data / "volumes"), "killed too late to show anything"
        here.up()
        awake = here.until("demo", lambda seen: seen["phase"] == "STANDBY" and seen["operation"] == "NONE", within_s=120)
        assert tree_root(here.home(awake)) == root
        volumes = [path.name for path in (here.data / "volumes").iterdir() if path.name.startswith("ws-")]
        assert volumes == [here.home(awake).parent.name], "half-made volumes of earlier attempts are thrown away"


def test_a_killed_product_restarts_a_running_workspace_exactly_once(tmp_path: Path) -> None:
    with product(tmp_path) as here:
        mark = f"mark-{os.getpid()}-{time.time_ns()}"
        serve = f"exec python3 -X {mark} -m http.server --bind 127.0.0.1 $PORT"
        here.ok("create", "demo", "--template", "command", "--wait", "--", "sh", "-c", serve)
        here.ok("exec", "demo", "--", "sh", "-c", "echo hello > ~/note")
        assert len(running(mark)) == 1
        here.kill()
        here.up()
        here.until("demo", lambda seen: seen["phase"] == "RUNNING" and seen["operation"] == "NONE")
        assert here.ok("exec", "demo", "--", "cat", "note") == "hello\n"
        assert len(running(mark)) == 1


def running(mark: str) -> list[int]:
    """The program itself, without its parents, whose arguments contain its command line."""
    found = []
    for pid in processes_with(mark):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[0].endswith(b"python3") and words[2] == mark.encode():
            found.append(pid)
    return found


def test_a_killed_database_is_started_again_and_nothing_is_lost(tmp_path: Path) -> None:
    with product(tmp_path) as here:
        here.ok("create", "demo", "--wait")
        pid = int((here.data / "postgres" / "cluster" / "postmaster.pid").read_text().split()[0])
        server = [one for one in processes_with(str(here.data / "postgres" / "cluster")) if one != os.getpid()]
        assert server, f"no postgres with process id {pid} (in its own view) was found"
        for one in server:
            os.kill(one, signal.SIGKILL)
        wait_until(lambda: here.run("show", "demo").returncode == 0, within_s=60, every_s=0.2, otherwise=here.log)
        here.ok("stop", "demo", "--wait")
        here.ok("start", "demo", "--wait")


def test_another_port_and_another_data_path_work(tmp_path: Path) -> None:
    with product(tmp_path) as here:
        here.ok("create", "demo", "--wait")
        assert here.stop() == 0
        moved = here.data.with_name("moved")
        here.data.rename(moved)
        here.data, here.port = moved, free_port()
        here.up()
        here.until("demo", lambda seen: seen["phase"] == "RUNNING" and seen["operation"] == "NONE")
        assert here.show("demo")["url"] == f"http://demo.localhost:{here.port}"


def test_ctrl_c_before_it_is_ready_ends_the_product(tmp_path: Path) -> None:
    process = subprocess.Popen([TORPOR, "up"], env=Product(tmp_path / "data").env(), stdout=subprocess.PIPE, text=True)
    wait_until((tmp_path / "data" / "postgres").exists, every_s=0.005)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert not processes_with(str(tmp_path / "data")), said


def test_a_second_up_is_refused_and_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with product(tmp_path) as here:
        second = subprocess.run([TORPOR, "up"], env=here.env(), capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 1
        assert "already running" in second.stderr
        assert str(here.data) in second.stderr

        other = {**here.env(), "TORPOR_DATA": str(tmp_path / "other")}
        third = subprocess.run([TORPOR, "up"], env=other, capture_output=True, text=True, timeout=60, check=False)
        assert third.returncode == 1
        assert f"port {here.port} is in use" in third.stderr
        assert here.ok("list")
