"""Are the socket folders of dead processes removed, and no others?"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from torpor import socket_folders
from torpor.domain.errors import Hopeless
from torpor.socket_folders import LOCK, hold, sweep

HOLDS = """
import socket, sys
from pathlib import Path
from torpor.socket_folders import hold

held = hold(Path(sys.argv[1]))
socket.socket(socket.AF_UNIX).bind(str(held.folder / "api.sock"))
print("held", flush=True)
sys.stdin.read()
"""
NAMES = ("torpor-a1b2c3d_", f"torpor-{'0f' * 10}", f"torpor-bus-{'0f' * 10}")


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_is_removed_when_its_process_was_killed_and_not_before(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    argv = (sys.executable, "-c", HOLDS, str(folder))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        sweep(tmp_path)
        assert sorted(path.name for path in folder.iterdir()) == ["api.sock", LOCK]
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    sweep(tmp_path)
    assert not folder.exists()


def test_a_folder_is_gone_after_its_release(tmp_path: Path) -> None:
    with hold(tmp_path / NAMES[0]) as held:
        assert held.folder.stat().st_mode & 0o777 == 0o700
        with pytest.raises(Hopeless, match="in use by another process"):
            hold(held.folder)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    without_lock = tmp_path / NAMES[0]
    without_lock.mkdir()
    with_another_name = tmp_path / "torpor-data"
    with_another_name.mkdir()
    (with_another_name / LOCK).touch()
    target = tmp_path / "target"
    target.mkdir()
    (target / LOCK).touch()
    (tmp_path / NAMES[1]).symlink_to(target)
    with_more = tmp_path / NAMES[2]
    with_more.mkdir()
    (with_more / LOCK).touch()
    (with_more / "notes").write_text("kept")
    sweep(tmp_path)
    assert without_lock.is_dir()
    assert (with_another_name / LOCK).exists()
    assert (target / LOCK).exists()
    assert (with_more / "notes").read_text() == "kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of another user")
def test_a_folder_of_another_user_stays_and_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / NAMES[0]
    folder.mkdir(mode=0o700)
    (folder / LOCK).touch()
    os.chown(folder, 65534, 65534)
    sweep(tmp_path)
    assert (folder / LOCK).exists()
    with pytest.raises(Hopeless, match="mode 0700"):
        hold(folder)


def test_a_held_folder_survives_every_sweep(tmp_path: Path) -> None:
    stop, lost = threading.Event(), []

    def sweep_again_and_again() -> None:
        while not stop.is_set():
            sweep(tmp_path)

    sweepers = [threading.Thread(target=sweep_again_and_again) for _ in range(2)]
    for sweeper in sweepers:
        sweeper.start()
    try:
        for number in range(300):
            with hold(tmp_path / f"torpor-{number:08}") as held:
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
    assert list(tmp_path.iterdir()) == []


def test_a_long_temporary_directory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 80)
    assert socket_folders.root() == Path("/tmp")
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    assert socket_folders.root() == Path("/var/tmp")
