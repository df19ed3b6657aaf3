"""Other programs that sort the same records produce the same bytes."""

import random
import zlib
from itertools import pairwise
from pathlib import Path

import pytest

from tests.sort.e2e.commands import (
    ALL_WORKERS,
    by_slices,
    cluster,
    generated,
    gnu_sort,
    joined,
    running,
    sorted_well,
    torpor_sort,
)

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]

# A byte that is in no record, so that the whole line is one field and its first ten bytes are the key.
BY_TEN_BYTES = ("-t", "\x01", "-k1.1,1.10")
GOLDEN = "7a27e2d0d55de"
"""The checksum of the first 1,000,000 binary records, as published by the benchmark."""


@pytest.fixture(scope="module")
def ascii_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files, one in a subfolder. There are few keys, so the order of equal keys matters."""
    folder = tmp_path_factory.mktemp("ascii")
    (folder / "b").mkdir()
    generated(folder / "a", 30_000, "--ascii")
    generated(folder / "b" / "a", 20_000, "--ascii", "--skew", "--seed", "100000")
    (folder / "c").write_bytes((folder / "a").read_bytes()[700:800])
    return folder


@pytest.fixture(scope="module")
def ascii_sorted(ascii_folder: Path) -> bytes:
    names = ("a", "b/a", "c")
    return gnu_sort(b"".join((ascii_folder / name).read_bytes() for name in names), *BY_TEN_BYTES)


@pytest.mark.parametrize(
    ("workers", "memory"),
    [(1, "512M"), (1, "4M"), (3, "12M")],
    ids=["in memory", "spilled", "three, spilled"],
)
def test_ascii_records_have_the_order_of_gnu_sort(
    ascii_folder: Path, ascii_sorted: bytes, tmp_path: Path, workers: int, memory: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in ascii_folder.rglob("*")}
    words = ("--format", "gensort", "--workers", workers, *ALL_WORKERS, "--memory", memory)
    report = sorted_well(ascii_folder, "--output", tmp_path / "out", *words)
    assert joined(tmp_path / "out") == ascii_sorted
    assert (report["records"], report["size_bytes"]) == (50_001, 5_000_100)
    assert [worker["index"] for worker in report["workers"]] == list(range(workers))
    assert {path: path.stat().st_mtime_ns for path in ascii_folder.rglob("*")} == before


def test_equal_keys_are_ordered_by_the_index_of_the_worker(tmp_path: Path) -> None:
    """Equal keys come first from worker 0, although it registers last."""
    inputs = [generated(tmp_path / str(index), 8_000, "--ascii", "--skew", "--seed", index * 8_000) for index in range(2)]
    with (
        cluster(tmp_path, 2, "--format", "gensort") as job,
        running(*job.worker(1, inputs[1], "--index", 1)) as second,
        running(*job.worker(0, inputs[0], "--index", 0)) as first,
    ):
        assert (first.ended().code, second.ended().code, job.master.ended().code) == (0, 0, 0)
    expected = gnu_sort(b"".join(path.read_bytes() for path in inputs), *BY_TEN_BYTES)
    assert job.output(2) == expected


def odd_lines() -> bytes:
    """Lines that are empty, without fields, with NULs and high bytes, long, equal, and a last one without its newline."""
    dice = random.Random(20)
    words = [b"", b"a", b"a\0", b"a\0b", b"\xff\xfe", b"\x80", b"pear", b"pear ", b"plum" * 40, b"\r", b"\t"]
    lines = [b"", b",", b",,", b"no field at all", b"x" * 300_000, b"x" * 300_000 + b",y", b"z," + b"k" * 70_000 + b"\0"]
    for _ in range(30_000):
        fields = [dice.choice(words) for _ in range(dice.randrange(4))]
        lines.append(b",".join([*fields, b"%d" % dice.randrange(500)]))
    dice.shuffle(lines)
    return b"\n".join([*lines, b"pear,without an end"])


@pytest.mark.parametrize(
    ("format_words", "gnu_words"),
    [((), ()), (("--key", "2", "--delimiter", ","), ("-t,", "-k2,2"))],
    ids=["whole lines", "by field"],
)
def test_lines_have_the_order_of_gnu_sort(tmp_path: Path, format_words: tuple[str, ...], gnu_words: tuple[str, ...]) -> None:
    data = odd_lines()
    (tmp_path / "lines").write_bytes(data)
    words = ("--format", "lines", *format_words, "--workers", 2, *ALL_WORKERS, "--memory", "16M")
    sorted_well(tmp_path / "lines", "--output", tmp_path / "out", *words)
    assert joined(tmp_path / "out") == gnu_sort(data, *gnu_words)


def test_fixed_records_have_the_order_of_python(tmp_path: Path) -> None:
    """A key of seven bytes in the middle, with few different values."""
    dice = random.Random(7)
    records = [dice.randbytes(5) + dice.choice(b"abc").to_bytes() * 6 + dice.randbytes(8) for _ in range(60_000)]
    (tmp_path / "records").write_bytes(b"".join(records))
    words = ("--format", "fixed:19:5:7", "--workers", 2, *ALL_WORKERS, "--memory", "8M")
    expected = sorted(records, key=lambda record: record[5:12])
    sorted_well(tmp_path / "records", "--output", tmp_path / "out", *words)
    assert joined(tmp_path / "out") == b"".join(expected)


def test_the_validators_checksum_is_zlibs(tmp_path: Path) -> None:
    made = generated(tmp_path / "made", 20_000, "--seed", 5)
    checked = torpor_sort("validate", made, "--json")
    records = by_slices(made.read_bytes(), 100)
    assert checked.json["checksum"] == f"{sum(map(zlib.crc32, records)):x}"
    pairs = list(pairwise(records))
    assert checked.json["unordered"] == sum(one[:10] > other[:10] for one, other in pairs)
    assert checked.code == 1


def test_a_million_records_have_the_golden_checksum(tmp_path: Path) -> None:
    """Before and after the sort."""
    made = generated(tmp_path / "made", 1_000_000)
    assert torpor_sort("validate", made, "--json").json["checksum"] == GOLDEN
    sorted_well(made, "--output", tmp_path / "out", "--memory", "64M", "--no-sync")
    checked = torpor_sort("validate", tmp_path / "out", "--json")
    assert (checked.code, checked.json["checksum"], checked.json["records"]) == (0, GOLDEN, 1_000_000)
