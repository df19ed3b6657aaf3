"""A workspace runs, is stopped, archived and started on the real product."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.product import SERVE_HOME, Product, product
from tests.support.terminal_user import PATIENCE_S, TerminalUser
from tests.support.waiting import until, wait_until
from torpor.archives.packs.layout import root_path
from torpor.archives.tree import tree_root
from torpor.domain.records import ArchiveKey

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(tmp_path_factory.mktemp("life"), TORPOR_MAX_RUNNING_PER_USER="20") as running:
        yield running


def pid_of_program(here: Product, name: str) -> int:
    """The program's process on this machine, found by a variable of its environment."""
    mark = f"TORPOR_WORKSPACE={name}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark in (entry / "environ").read_bytes() and b"terminal.py" in (entry / "cmdline").read_bytes():
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError(f"no terminal program of {name} is running\n{here.log()}")


def test_a_file_in_the_home_survives_the_archive(here: Product) -> None:
    here.ok("create", "demo", "--wait")
    here.ok("exec", "demo", "--", "sh", "-c", "echo hello > ~/note")
    before = here.show("demo")
    assert here.home(before).is_dir()

    here.ok("archive", "demo", "--wait")
    archived = here.show("demo")
    assert archived["phase"] == "ARCHIVED"
    assert not here.home(before).exists(), "the volume is gone"
    assert (here.data / "archives" / root_path(ArchiveKey.parse(archived["archive_key"]))).exists(), "the archive is there"

    here.ok("start", "demo", "--wait")
    assert here.ok("exec", "demo", "--", "cat", "note") == "hello\n"
    awake = here.show("demo")
    assert (awake["generation"], awake["revision"]) == (before["generation"] + 1, before["revision"] + 1)
    kinds = [one["kind"] for one in json.loads(here.ok("history", "demo", "--json"))["items"]]
    assert kinds[::-1] == ["PROVISIONING", "STARTING", "STOPPING", "ARCHIVING", "RESTORING", "STARTING"]
    here.ok("delete", "demo", "--purge", "--wait")


def test_repeated_archiving_leaves_the_tree_unchanged(here: Product) -> None:
    here.ok("create", "dormouse", "--wait")
    here.ok(
        "exec", "dormouse", "--", "sh", "-c", "mkdir -p a/b; echo 1 > a/b/c; ln -s ../a a/l; chmod 600 a/b/c; umask 0; mkdir w"
    )
    here.ok("stop", "dormouse", "--wait")
    root = tree_root(here.home(here.show("dormouse")))
    for _ in range(3):
        here.ok("archive", "dormouse", "--wait")
        with_restore = here.run("stop", "dormouse", "--wait")
        assert with_restore.returncode == 0
        assert tree_root(here.home(here.show("dormouse"))) == root
    here.ok("delete", "dormouse", "--purge", "--wait")


def test_a_program_killed_by_hand_is_started_again(here: Product) -> None:
    here.ok("create", "phoenix", "--wait")
    before = here.show("phoenix")
    os.kill(pid_of_program(here, "phoenix"), signal.SIGKILL)
    here.until("phoenix", lambda seen: seen["revision"] == before["revision"] + 1 and seen["phase"] == "RUNNING")
    history = json.loads(here.ok("history", "phoenix", "--json"))["items"]
    assert [one["kind"] for one in history].count("STARTING") == 2
    assert pid_of_program(here, "phoenix")
    here.ok("delete", "phoenix", "--purge", "--wait")


def test_a_deleted_marker_is_reported_and_its_home_can_be_accepted(here: Product) -> None:
    here.ok("create", "unmarked", "--wait")
    here.ok("exec", "unmarked", "--", "sh", "-c", "echo precious > ~/note")
    here.ok("stop", "unmarked", "--wait")
    home = here.home(here.show("unmarked"))
    marker = home.parent / "marker.json"
    (home.parent / "epoch.json").write_text('{"epoch": "abc"}')
    marker.unlink()
    broken = here.until("unmarked", lambda seen: seen["phase"] == "ERROR")
    assert broken["error"]["reason"] == "MarkerUnreadable"
    assert f"the home exists, but its marker is missing: {marker}" in broken["error"]["message"]
    told = here.ok("explain", "unmarked")
    assert f"ls -la {home}" in told
    assert "torpor recover unmarked --accept" in told
    ways = here.run("recover", "unmarked")
    assert ways.returncode == 1
    assert "--accept" in ways.stderr.decode() + ways.stdout.decode()

    here.ok("recover", "unmarked", "--accept", "--wait")
    here.ok("start", "unmarked", "--wait")
    assert here.ok("exec", "unmarked", "--", "cat", "note") == "precious\n"
    here.ok("stop", "unmarked", "--wait")

    for name in ("marker.json", "epoch.json", "opened.json"):
        (home.parent / name).write_text('{"epoch": "abc", "revision": "abc", "generation": "abc"}')
    here.ok("delete", "unmarked", "--purge", "--wait")
    assert not home.parent.exists()


def test_a_deleted_volume_is_data_lost_and_never_an_empty_home(here: Product) -> None:
    here.ok("create", "lost", "--wait")
    here.ok("exec", "lost", "--", "sh", "-c", "echo precious > ~/note")
    here.ok("archive", "lost", "--wait")
    older = here.show("lost")["archive_key"]
    here.ok("start", "lost", "--wait")
    here.ok("stop", "lost", "--wait")
    volume = here.home(here.show("lost")).parent
    subprocess.run(["rm", "-rf", str(volume)], check=True)
    broken = here.until("lost", lambda seen: seen["phase"] == "ERROR")
    assert broken["error"]["reason"] == "DataLost"
    assert broken["health_status"] == "ERROR"

    started = here.run("start", "lost", "--wait", "--timeout", "5")
    assert started.returncode != 0
    assert here.show("lost")["phase"] == "ERROR"
    assert not [path for path in (here.data / "volumes").iterdir() if older.split("/")[0] in path.name]

    ways = here.run("recover", "lost")
    assert ways.returncode == 1
    assert older in ways.stderr.decode() + ways.stdout.decode()
    assert older in here.ok("explain", "lost")
    here.ok("recover", "lost", "--archive-key", older, "--wait")
    here.ok("start", "lost", "--wait")
    assert here.ok("exec", "lost", "--", "cat", "note") == "precious\n"
    here.ok("delete", "lost", "--purge", "--wait")


def test_start_cancels_archiving_at_once(here: Product) -> None:
    here.ok("create", "busy", "--wait")
    here.ok("exec", "busy", "--", "sh", "-c", "head -c 300000000 /dev/urandom > big")
    here.ok("stop", "busy", "--wait")
    before = here.show("busy")
    here.ok("archive", "busy")
    here.until("busy", lambda seen: seen["operation"] == "ARCHIVING")
    here.ok("start", "busy", "--wait")
    after = here.show("busy")
    assert after["generation"] == before["generation"], "the volume was never touched"
    outcomes = {one["kind"]: one["outcome"] for one in json.loads(here.ok("history", "busy", "--json"))["items"][::-1]}
    assert outcomes["ARCHIVING"] == "TURNED"
    here.ok("delete", "busy", "--purge", "--wait")


def test_any_command_that_listens_on_its_port(here: Product) -> None:
    here.ok("create", "site", "--template", "command", "--wait", "--", *SERVE_HOME)
    here.ok("exec", "site", "--", "sh", "-c", "echo served > index.html")
    assert here.get("site")[::2] == (200, b"served\n")
    here.ok("delete", "site", "--purge", "--wait")


def test_a_program_that_cannot_run_is_an_error_with_the_reason(here: Product) -> None:
    created = here.run("create", "broken", "--template", "command", "--wait", "--", "sh", "-c", "echo no luck; exit 7")
    assert created.returncode == 3
    error = here.show("broken")["error"]
    assert error["reason"] == "ActionFailed"
    assert error["context"]["exit_code"] == 7
    assert "no luck" in error["context"]["last_lines"]
    here.ok("delete", "broken", "--wait")


def test_a_restart_keeps_all_workspaces(here: Product) -> None:
    here.ok("create", "kept", "--wait")
    here.ok("exec", "kept", "--", "sh", "-c", "echo stays > ~/note")
    here.ok("create", "sleeper", "--wait")
    here.ok("archive", "sleeper", "--wait")
    assert here.stop() == 0
    began = time.monotonic()
    here.up()
    assert time.monotonic() - began < 20
    here.until("kept", lambda seen: seen["phase"] == "RUNNING" and seen["operation"] == "NONE")
    assert here.ok("exec", "kept", "--", "cat", "note") == "stays\n"
    assert here.show("sleeper")["phase"] == "ARCHIVED"
    here.ok("delete", "kept", "--purge", "--wait")
    here.ok("delete", "sleeper", "--purge", "--wait")


def test_many_missing_homes_set_the_latch_until_they_return_or_it_is_released(tmp_path: Path) -> None:
    with product(tmp_path, TORPOR_MAX_RUNNING_PER_USER="20", TORPOR_RECONCILER_INTERVAL="1") as here:
        names = ("one", "two", "three")
        for name in names:
            here.ok("create", name, "--wait")
            here.ok("stop", name, "--wait")
        aside = here.data / "aside"
        aside.mkdir()
        volumes = [here.home(here.show(name)).parent for name in names]
        for volume in volumes:
            volume.rename(aside / volume.name)
        wait_for_doctor(here, "torpor release process")
        assert {here.show(name)["phase"] for name in names} == {"STANDBY"}

        for volume in volumes:
            (aside / volume.name).rename(volume)
        here.ok("start", "one", "--wait")
        here.ok("stop", "one", "--wait")

        for volume in volumes:
            volume.rename(aside / volume.name)
        wait_for_doctor(here, "torpor release process")
        here.ok("release", "process")
        for name in names:
            assert here.until(name, lambda seen: seen["phase"] == "ERROR")["error"]["reason"] == "DataLost"


def wait_for_doctor(here: Product, words: str) -> None:
    wait_until(lambda: words in here.ok("doctor", "--json"), every_s=0.2, otherwise=here.log)


@pytest.mark.anyio
async def test_a_terminal_in_a_workspace(here: Product) -> None:
    here.ok("create", "sat", "--wait")
    async with TerminalUser(here.env(), "shell", "sat") as seat:
        seat.type(b"stty size; echo $TORPOR_WORKSPACE > ~/note\r")
        await seat.until(b"31 97")
        seat.resize(columns=120, rows=40)

        def has_resized() -> bool:
            seat.type(b"stty size\r")
            return b"40 120" in seat.shown

        await until(has_resized, within_s=PATIENCE_S, every_s=0.1)
        # Printed by the command itself: before it has the terminal, the shell would get Ctrl-C.
        seat.type(b"sh -c 'echo be\"\"gins; exec sleep 1000'\r")
        await seat.until(b"begins")
        seat.type(b"\x03")
        seat.type(b"exit 7\r")
        assert await seat.ended() == 7
        assert seat.is_as_before
    assert here.ok("exec", "sat", "--", "cat", "note") == "sat\n"
    here.ok("delete", "sat", "--purge", "--wait")
