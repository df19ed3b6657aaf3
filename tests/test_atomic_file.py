"""Test that a file is complete or absent."""

from pathlib import Path

import pytest

from torpor import atomic_file


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_replaced_and_private(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "file"
    for content in (b"first", b"second" * 100_000, b""):
        atomic_file.write(path, content, sync=sync)
        assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_earlier_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    replacing = atomic_file.replacing(path, tmp_path / "partial", mode=0o600, sync=True)
    with pytest.raises(ZeroDivisionError), replacing:
        raise ZeroDivisionError
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_was_left_under_the_partial_name_is_not_written_to(tmp_path: Path) -> None:
    path, partial, victim = tmp_path / "secret", tmp_path / "partial", tmp_path / "victim"
    partial.write_bytes(b"left")
    partial.chmod(0o666)
    atomic_file.write(path, b"first", partial=partial)
    assert path.stat().st_mode & 0o777 == 0o600
    victim.write_bytes(b"untouched")
    partial.symlink_to(victim)
    atomic_file.write(path, b"second", partial=partial)
    assert victim.read_bytes() == b"untouched"
    assert not path.is_symlink()
    assert path.read_bytes() == b"second"
