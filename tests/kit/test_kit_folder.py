"""Only complete kits count, however a build ends, and one process builds at a time."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.small_disk import small_disk
from tests.support.waiting import wait_until
from torpor.domain.errors import Hopeless
from torpor.file_lock import PidLock
from torpor.kit import kit_folder, layout
from torpor.kit.contents import certificates
from torpor.kit.kit_folder import BUILDING, CURRENT, LOCK, current_kit, ensure_kit
from torpor.kit.manifest import Kit, is_intact
from torpor.paths import KIT_FOLDER

BUILD_TIMEOUT_S = 120.0
ENSURE = """
import os, sys
from pathlib import Path
from torpor.kit.kit_folder import ensure_kit
steps = []
kit = ensure_kit(Path(sys.argv[1]), os.environ, lambda done, total: steps.append(done / total))
assert steps == sorted(steps) and steps[-1:] in ([], [1.0])
print("built" if steps else "found", kit.path)
"""


def no_progress(done: int, total: int) -> None:
    pass


@pytest.fixture
def copied(kit_data: Path, kit: Kit, tmp_path: Path) -> Kit:
    """A kit that this test may change, in its own data directory."""
    shutil.copytree(kit_data, tmp_path / "data")
    made = current_kit(tmp_path / "data")
    assert made is not None
    return made


def data_of(kit: Kit) -> Path:
    return kit.path.parent.parent


def unfinished(data: Path) -> list[Path]:
    return list((data / KIT_FOLDER).glob(f"{BUILDING}*"))


def start(data: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", ENSURE, data], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_build_that_is_killed_leaves_no_kit_and_then_one_of_two_processes_builds_it(tmp_path: Path) -> None:
    with start(tmp_path) as killed:
        wait_until(lambda: [path for path in unfinished(tmp_path) if (path / layout.PYTHON).exists()])
        killed.kill()
    assert current_kit(tmp_path) is None
    assert unfinished(tmp_path) != []
    with start(tmp_path) as one, start(tmp_path) as other:
        said = [process.communicate(timeout=BUILD_TIMEOUT_S) for process in (one, other)]
    assert [error for _, error in said] == [b"", b""]
    (did, path), (also_did, same_path) = sorted(output.decode().split() for output, _ in said)
    assert (did, also_did) == ("built", "found")
    assert path == same_path
    kit = current_kit(tmp_path)
    assert kit is not None
    assert str(kit.path) == path
    assert is_intact(kit)
    assert unfinished(tmp_path) == []


def test_a_damaged_kit_is_built_again(copied: Kit) -> None:
    certificates = copied.path / layout.CERTIFICATES
    certificates.chmod(0o644)
    certificates.write_text("damaged")
    steps: list[int] = []
    kit = ensure_kit(data_of(copied), os.environ, lambda done, total: steps.append(done))
    assert steps
    assert kit == copied
    assert is_intact(kit)
    assert unfinished(data_of(copied)) == []


def test_other_contents_are_another_kit_and_the_last_two_are_kept(copied: Kit, tmp_path: Path) -> None:
    data, file = data_of(copied), tmp_path / "ca.pem"
    all_of_them = certificates(os.environ)
    blocks = all_of_them.split(b"-----END CERTIFICATE-----\n")
    kits = [copied]
    for count in (1, 2):
        file.write_bytes(b"-----END CERTIFICATE-----\n".join([*blocks[:count], b""]))
        kits.append(ensure_kit(data, {"SSL_CERT_FILE": str(file)}, no_progress))
        assert current_kit(data) == kits[-1]
    assert len({kit.manifest.hash for kit in kits}) == 3
    assert [kit.path.exists() for kit in kits] == [False, True, True]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"kit": "absent"}', '{"kit": "../../../etc"}'])
def test_a_damaged_record_of_the_current_kit_means_none(copied: Kit, content: str) -> None:
    (data_of(copied) / KIT_FOLDER / CURRENT).write_text(content)
    assert current_kit(data_of(copied)) is None


def test_a_folder_with_another_name_than_its_hash_does_not_count(copied: Kit) -> None:
    copied.path.rename(copied.path.with_name("0" * 64))
    assert current_kit(data_of(copied)) is None


def test_a_full_disk_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk:
        with pytest.raises(Hopeless, match=r"the kit cannot be built in .*No space left on device"):
            ensure_kit(disk, os.environ, no_progress)
        assert current_kit(disk) is None
        assert unfinished(disk) == []


def test_a_data_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Hopeless, match=r"the kit cannot be built in .*Not a directory"):
        ensure_kit(tmp_path / "file" / "data", os.environ, no_progress)


def test_a_build_of_another_process_that_never_ends_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit_folder, "LOCK_TIMEOUT_S", 0.0)
    (tmp_path / KIT_FOLDER).mkdir()
    lock = PidLock(tmp_path / KIT_FOLDER / LOCK)
    assert lock.take()
    try:
        with pytest.raises(Hopeless, match=f"process {os.getpid()} has been building it"):
            ensure_kit(tmp_path, os.environ, no_progress)
    finally:
        lock.close()
