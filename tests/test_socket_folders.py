"""Test that the socket folders of dead processes are removed, and no others."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor import child_launcher, socket_folders
from torpor.domain.errors import Hopeless
from torpor.socket_folders import LOCK, hold, sweep

HOLDS = """
import asyncio, os, socket, sys
from pathlib import Path
from torpor.socket_folders import hold

held = asyncio.run(hold(Path(sys.argv[1])))
socket.socket(socket.AF_UNIX).bind(str(held.folder / "api.sock"))
if len(sys.argv) > 2:
    os.chown(held.folder, int(sys.argv[2]), int(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""
ANOTHER_USER = 54321
NAMES = ("torpor-a1b2c3d_", f"torpor-{'0f' * 10}", f"torpor-bus-{'0f' * 10}")


@pytest.fixture
def where() -> Iterator[Path]:
    """Not pytest's folder, whose path may be too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="tmp-", dir="/tmp") as folder:
        yield Path(folder)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_is_removed_when_its_process_was_killed_and_not_before(where: Path, name: str) -> None:
    assert_removed_when_killed(where, where / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of another user")
def test_root_removes_the_folder_of_a_postgresql_that_ran_as_another_user(where: Path) -> None:
    assert_removed_when_killed(where, where / NAMES[1], str(child_launcher.NOBODY))


def assert_removed_when_killed(where: Path, folder: Path, *owner: str) -> None:
    argv = (sys.executable, "-c", HOLDS, str(folder), *owner)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        sweep(where)
        assert names_in(folder) == ["api.sock", LOCK]
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    sweep(where)
    assert not folder.exists()


@pytest.mark.anyio
async def test_a_folder_is_gone_after_its_release(where: Path) -> None:
    with await hold(where / NAMES[0]) as held:
        assert held.folder.stat().st_mode & 0o777 == 0o700
        with pytest.raises(Hopeless, match="in use by another process"):
            await hold(held.folder)
    assert names_in(where) == []


def test_foreign_folders_are_kept(where: Path) -> None:
    without_lock = where / NAMES[0]
    without_lock.mkdir()
    with_another_name = where / "torpor-data"
    with_another_name.mkdir()
    (with_another_name / LOCK).touch()
    target = where / "target"
    target.mkdir()
    (target / LOCK).touch()
    (where / NAMES[1]).symlink_to(target)
    with_more = where / NAMES[2]
    with_more.mkdir()
    (with_more / LOCK).touch()
    (with_more / "notes").write_text("kept")
    sweep(where)
    assert without_lock.is_dir()
    assert (with_another_name / LOCK).exists()
    assert (target / LOCK).exists()
    assert (with_more / "notes").read_text() == "kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of another user")
@pytest.mark.anyio
async def test_a_folder_of_another_user_stays_and_is_not_used(where: Path) -> None:
    folder = where / NAMES[0]
    folder.mkdir(mode=0o700)
    (folder / LOCK).touch()
    os.chown(folder, ANOTHER_USER, ANOTHER_USER)
    sweep(where)
    assert (folder / LOCK).exists()
    with pytest.raises(Hopeless, match="mode 0700"):
        await hold(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of another user")
def test_root_follows_no_links_in_the_folder_of_another_user(where: Path) -> None:
    target = where / "target"
    target.mkdir()
    for name in (LOCK, "precious.lock"):
        (target / name).touch()
    linked_folder = where / NAMES[0]
    linked_folder.symlink_to(target)
    linked_lock = where / NAMES[1]
    linked_lock.mkdir()
    (linked_lock / LOCK).symlink_to(target / LOCK)
    linked_entry = where / NAMES[2]
    linked_entry.mkdir()
    (linked_entry / LOCK).touch()
    (linked_entry / "more.lock").symlink_to(target / "precious.lock")
    (linked_entry / "more").symlink_to(target)
    for path in (linked_folder, linked_lock, linked_entry):
        os.chown(path, child_launcher.NOBODY, child_launcher.NOBODY, follow_symlinks=False)
    sweep(where)
    assert names_in(target) == ["precious.lock", LOCK]
    assert linked_folder.is_symlink()
    assert (linked_lock / LOCK).is_symlink()
    assert (linked_entry / "more").is_symlink()


@pytest.mark.anyio
async def test_waiting_for_a_folder_does_not_block_the_loop(where: Path) -> None:
    with await hold(where / NAMES[0]) as held:
        waiting = asyncio.ensure_future(hold(held.folder))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
    with await asyncio.wait_for(waiting, 30) as again:
        assert again.folder == held.folder
    assert names_in(where) == []


@pytest.mark.anyio
async def test_a_held_folder_survives_every_sweep(where: Path) -> None:
    stop, lost = threading.Event(), []

    def sweep_again_and_again() -> None:
        while not stop.is_set():
            sweep(where)

    sweepers = [threading.Thread(target=sweep_again_and_again) for _ in range(2)]
    for sweeper in sweepers:
        sweeper.start()
    try:
        for number in range(300):
            with await hold(where / f"torpor-{number:08}") as held:
                try:
                    with socket.socket(socket.AF_UNIX) as listener:
                        listener.bind(str(held.folder / "api.sock"))
                except OSError as error:
                    lost.append(error)
    finally:
        stop.set()
        for sweeper in sweepers:
            sweeper.join()
    assert lost == []
    assert names_in(where) == []


def test_a_long_temporary_directory_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 80)
    assert socket_folders.root() == Path("/tmp")
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    assert socket_folders.root() == Path("/var/tmp")
