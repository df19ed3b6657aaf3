"""A file exists only when it is complete, and incomplete or foreign files are recognised."""

import errno
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.small_disk import fill, small_disk
from torpor.atomic_file import sync_directory
from torpor.sort.data.files import (
    FileKind,
    FileManifest,
    atomic_file,
    digest,
    is_whole,
    read_manifest,
    remove,
    temporary,
    to_sort_failed,
    write_manifest,
)
from torpor.sort.errors import SortFailed
from torpor.sort.kernels.partition_boundaries import Boundary
from torpor.sort.proof import Proof

DATA = os.urandom(5_000_000)
MANIFEST = FileManifest(
    "run.00001",
    "job-1",
    FileKind.RUN,
    "abc",
    Proof(50_000, len(DATA), 2**64 - 1),
    {"pieces": [1, 2], "chunk": 3, "note": "x"},
)


def listed(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# ---- atomic files


@pytest.mark.parametrize("sync", [True, False])
def test_the_final_name_appears_when_everything_is_written(tmp_path: Path, sync: bool) -> None:
    final = tmp_path / "partition.00000"
    with atomic_file(final, 3, sync=sync) as writer:
        writer.write(DATA[:1_000_000])
        writer.write(b"")
        writer.write(np.zeros(0, dtype=np.uint8))
        writer.write(np.frombuffer(DATA, dtype=np.uint8)[1_000_000:2_000_000])
        writer.write(memoryview(DATA)[2_000_000:])
        assert listed(tmp_path) == ["partition.00000.3.partial"]
    assert listed(tmp_path) == ["partition.00000"]
    assert final.read_bytes() == DATA
    assert writer.size == len(DATA)


def test_the_final_file_is_replaced_atomically(tmp_path: Path) -> None:
    final = tmp_path / "file"
    final.write_bytes(b"before")
    temporary(final, 1).write_bytes(b"left over from a life that was killed, and longer")
    with atomic_file(final, 1, sync=True) as writer:
        writer.write(b"after")
        assert final.read_bytes() == b"before"
    assert final.read_bytes() == b"after"


def test_a_file_can_be_written_in_any_order(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "file", 0, sync=False) as writer:
        writer.write_at(b"world", 6)
        writer.write_at(memoryview(b"hello "), 0)
    assert (tmp_path / "file").read_bytes() == b"hello world"
    assert listed(tmp_path) == ["file"]


@pytest.mark.parametrize("trouble", [RuntimeError, KeyboardInterrupt])
def test_a_failed_write_leaves_no_file(tmp_path: Path, trouble: type[BaseException]) -> None:
    def give_up() -> None:
        with atomic_file(tmp_path / "file", 0, sync=True) as writer:
            writer.write(b"half")
            raise trouble

    with pytest.raises(trouble):
        give_up()
    assert listed(tmp_path) == []


def test_a_path_that_cannot_be_written_is_an_error_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "taken").mkdir()
    for final in (tmp_path / "file/below", tmp_path / "missing/below", tmp_path / "taken"):
        with (
            pytest.raises(SortFailed, match=f"writing the output {final}: "),
            atomic_file(final, 0, sync=True, doing="writing the output"),
        ):
            pass
    assert listed(tmp_path) == ["file", "taken"]


def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        final = disk / "partition.00007"
        message = f"^writing the output {final}: no space is left on the device$"
        with pytest.raises(SortFailed, match=message), atomic_file(final, 0, sync=True, doing="writing the output") as writer:
            writer.write(DATA)
        assert listed(disk) == []
        with pytest.raises(SortFailed, match=message), atomic_file(final, 0, sync=True, doing="writing the output") as writer:
            writer.write_at(DATA, 0)
        assert listed(disk) == []
        fill(disk)
        with pytest.raises(SortFailed, match=r"writing the manifest .*no space is left"):
            write_manifest(disk / "run.json", MANIFEST, 0, sync=True)
        assert listed(disk) == ["filler"]


@pytest.mark.parametrize(
    ("number", "told"),
    [(errno.EDQUOT, "the disk quota is used up"), (errno.EIO, "input/output error"), (errno.EROFS, "read-only")],
)
def test_disk_errors_are_described(number: int, told: str) -> None:
    found = to_sort_failed(OSError(number, os.strerror(number)), "/a/file", "writing the run")
    assert found.message.startswith("writing the run /a/file: ")
    assert told in found.message


KILLED = """
import os, signal, sys
from pathlib import Path
from torpor.sort.data.files import atomic_file
with atomic_file(Path(sys.argv[1]), 2, sync=True) as writer:
    writer.write(b"half of it")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_no_file_under_the_final_name(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "file"])
    assert found.returncode == -signal.SIGKILL
    assert listed(tmp_path) == ["file.2.partial"]


# ---- manifests


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run.00001"
    path.write_bytes(DATA)
    return path


def test_a_manifest_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "run.00001.json"
    for manifest in (MANIFEST, replace(MANIFEST, extra={}, kind=FileKind.OUTPUT)):
        write_manifest(path, manifest, 0, sync=True)
        assert read_manifest(path) == manifest
    assert listed(tmp_path) == ["run.00001.json"]


def test_an_invalid_manifest_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert read_manifest(path) is None
    write_manifest(path, MANIFEST, 0, sync=False)
    good = path.read_bytes()
    for bad in (
        b"",
        good[:-10],
        b"[]",
        b"\xff",
        good.replace(b"job-1", b"job-1\xff"),
        good.replace(b'"records":50000', b'"records":"5"'),
    ):
        path.write_bytes(bad)
        assert read_manifest(path) is None, bad


def test_a_file_of_another_size_or_name_is_not_complete(run: Path) -> None:
    assert is_whole(run, MANIFEST)
    assert not is_whole(run, replace(MANIFEST, name="run.00002"))
    for size in (len(DATA) - 1, len(DATA) + 1, 0):
        os.truncate(run, size)
        assert not is_whole(run, MANIFEST)
    run.unlink()
    assert not is_whole(run, MANIFEST)
    run.mkdir()
    assert not is_whole(run, replace(MANIFEST, proof=Proof(0, run.stat().st_size)))


def test_removing_may_be_repeated(run: Path) -> None:
    remove(run)
    remove(run)
    remove(run / "below")
    assert not run.exists()
    run.mkdir()
    with pytest.raises(SortFailed, match=f"removing {run}"):
        remove(run)
    remove(run.parent / "missing/below")
    sync_directory(run.parent)


def test_other_boundaries_have_another_digest() -> None:
    different = [
        (),
        (Boundary(b"", 0, 0),),
        (Boundary(b"", 0, 0), Boundary(b"", 0, 0)),
        (Boundary(b"a", 0, 0),),
        (Boundary(b"a", 1, 0),),
        (Boundary(b"a", 0, 1),),
        (Boundary(b"a", 0, 0), Boundary(b"b", 0, 0)),
        (Boundary(b"b", 0, 0), Boundary(b"a", 0, 0)),
        # Bytes that look like the beginning of the next boundary.
        (Boundary(b"a1 0 0\nb", 0, 0),),
    ]
    assert len({digest(boundaries) for boundaries in different}) == len(different)
    # The digest is kept on disks, so it must not change with the program.
    assert digest([Boundary(b"key", 1, 200)]) == digest((Boundary(b"key", 1, 200),))
    assert digest([Boundary(b"key", 1, 200)]) == "140c4cb23157890d81663b5e2ac3e3778594ca85391704622d720355246ac17a"
