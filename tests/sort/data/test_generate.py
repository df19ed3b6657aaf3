"""Generating leaves the right file, or none."""

from pathlib import Path

import pytest

from tests.sort.kernels import slow_generator
from tests.support.small_disk import small_disk
from torpor.sort.data.generate import RECORDS_AT_ONCE, GeneratedFile, generate
from torpor.sort.errors import SortFailed, SortRefused
from torpor.sort.kernels.lcg import LENGTH

SEVERAL_BLOCKS = 2 * RECORDS_AT_ONCE + 1234


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_same_bytes_with_any_number_of_threads(tmp_path: Path, threads: int) -> None:
    path = tmp_path / "records"
    assert generate(SEVERAL_BLOCKS, path, threads=threads) == GeneratedFile(SEVERAL_BLOCKS, SEVERAL_BLOCKS * LENGTH)
    states = slow_generator.states(SEVERAL_BLOCKS)
    data = path.read_bytes()
    assert len(data) == SEVERAL_BLOCKS * LENGTH
    for number in [*range(100), RECORDS_AT_ONCE - 1, RECORDS_AT_ONCE, 2 * RECORDS_AT_ONCE, SEVERAL_BLOCKS - 1]:
        assert data[number * LENGTH :][:LENGTH] == slow_generator.binary(number, states[number])
    assert names(tmp_path) == ["records"]


@pytest.mark.parametrize("ascii_", [False, True])
@pytest.mark.parametrize("skew", [False, True])
def test_a_range_equals_that_part_of_all_records(tmp_path: Path, ascii_: bool, skew: bool) -> None:
    generate(5000, tmp_path / "whole", ascii=ascii_, skew=skew)
    generate(1000, tmp_path / "range", ascii=ascii_, skew=skew, first=1234)
    assert (tmp_path / "range").read_bytes() == (tmp_path / "whole").read_bytes()[1234 * LENGTH : 2234 * LENGTH]


def test_binary_ascii_and_skewed_records_are_generated(tmp_path: Path) -> None:
    for name, ascii_, skew in [("binary", False, False), ("ascii", True, False), ("skewed", False, True)]:
        generate(1000, tmp_path / name, ascii=ascii_, skew=skew)
    binary, ascii_text, skewed = ((tmp_path / name).read_bytes() for name in ("binary", "ascii", "skewed"))
    assert (binary[:10], ascii_text[:10]) == (b"JimGrayRIP", b"AsfAGHM5om")
    assert ascii_text.isascii()
    assert ascii_text.count(b"\r\n") == 1000
    assert binary.count(b"JimGrayRIP") == 1
    assert skewed.count(b"JimGrayRIP") > 400


def test_no_records_are_an_empty_file(tmp_path: Path) -> None:
    assert generate(0, tmp_path / "records") == GeneratedFile(0, 0)
    assert (tmp_path / "records").read_bytes() == b""


def test_progress_adds_up_to_the_size(tmp_path: Path) -> None:
    heard: list[int] = []
    generate(SEVERAL_BLOCKS, tmp_path / "records", threads=3, progress=heard.append)
    assert sum(heard) == SEVERAL_BLOCKS * LENGTH
    assert len(heard) == 3


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"precious")
    with pytest.raises(SortRefused, match="exists and is not overwritten") as refused:
        generate(10, path)
    assert refused.value.code == "exists"
    assert path.read_bytes() == b"precious"
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    with pytest.raises(SortRefused, match="exists"):
        generate(10, dangling)
    assert names(tmp_path) == ["dangling", "records"]


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "records"

    def meanwhile(_: int) -> None:
        path.write_bytes(b"precious")

    with pytest.raises(SortRefused, match="exists"):
        generate(10, path, progress=meanwhile)
    assert path.read_bytes() == b"precious"
    assert names(tmp_path) == ["records"]


@pytest.mark.parametrize(("records", "first"), [(-1, 0), (1, -1), (2, 2**128 - 1)])
def test_invalid_record_numbers_are_refused(tmp_path: Path, records: int, first: int) -> None:
    with pytest.raises(SortRefused, match="do not exist"):
        generate(records, tmp_path / "records", first=first)
    assert names(tmp_path) == []


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        with pytest.raises(SortFailed, match="records: no space is left on the device"):
            generate(SEVERAL_BLOCKS, disk / "records")
        assert names(disk) == []


def test_a_failure_in_one_thread_ends_all_and_leaves_no_file(tmp_path: Path) -> None:
    heard: list[int] = []

    def stumble(size: int) -> None:
        heard.append(size)
        if len(heard) == 2:
            raise RuntimeError("stumbled")

    with pytest.raises(RuntimeError, match="stumbled"):
        generate(100 * RECORDS_AT_ONCE, tmp_path / "records", threads=2, progress=stumble)
    assert len(heard) < 100
    assert names(tmp_path) == []


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SortFailed, match="No such file or directory"):
        generate(10, tmp_path / "missing" / "records")
