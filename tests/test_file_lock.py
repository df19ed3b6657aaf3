"""Test that one process holds a lock, and that its holder can be read."""

import os
import subprocess
import sys
from pathlib import Path

from torpor.file_lock import PidLock, is_current, try_lock

HOLDS = """
import sys
from pathlib import Path
from torpor.file_lock import PidLock

lock = PidLock(Path(sys.argv[1]))
assert lock.take()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_names_its_holder_and_is_free_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = PidLock(path)
    argv = (sys.executable, "-c", HOLDS, str(path))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        assert not lock.take()
        assert lock.holder == str(holder.pid)
        holder.kill()
    assert lock.take()
    assert lock.holder == str(os.getpid())
    lock.close()
    lock.close()
    assert path.read_text() == ""


def test_closing_a_lock_that_was_not_taken_leaves_the_holder_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held, other = PidLock(path), PidLock(path)
    assert held.take()
    assert not other.take()
    other.close()
    assert held.holder == str(os.getpid())
    held.close()


def test_a_lock_on_a_removed_directory_does_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    assert try_lock(descriptor)
    assert is_current(descriptor, folder)
    folder.rmdir()
    assert not is_current(descriptor, folder)
    folder.mkdir()
    assert not is_current(descriptor, folder)
    os.close(descriptor)
