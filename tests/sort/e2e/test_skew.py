"""Every worker gets its share for any distribution of keys."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.sort.e2e.commands import ALL_WORKERS, by_key, by_slices, contents, generated, joined, sorted_well

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]

RECORDS = 60_000
WORKERS = 4
MOST = 1.3
WORDS = ("--workers", WORKERS, *ALL_WORKERS, "--memory", "64M", "--no-sync")


def uniform(path: Path) -> bytes:
    return np.random.default_rng(4).bytes(RECORDS * 100)


def half_equal_half_zipf(path: Path) -> bytes:
    return generated(path / "generated", RECORDS, "--skew").read_bytes()


def all_equal(path: Path) -> bytes:
    records = np.frombuffer(uniform(path), np.uint8).reshape(-1, 100).copy()
    records[:, :10] = 7
    return records.tobytes()


def ascending(path: Path) -> bytes:
    return b"".join(sorted(by_slices(uniform(path), 100)))


def descending(path: Path) -> bytes:
    return b"".join(sorted(by_slices(uniform(path), 100), reverse=True))


MADE: Mapping[str, Callable[[Path], bytes]] = {
    "half equal, half Zipf": half_equal_half_zipf,
    "all equal": all_equal,
    "ascending": ascending,
    "descending": descending,
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
def test_no_worker_writes_much_more_than_its_share(tmp_path: Path, make: Callable[[Path], bytes]) -> None:
    data = make(tmp_path)
    (tmp_path / "in").write_bytes(data)
    report = sorted_well(tmp_path / "in", "--output", tmp_path / "out", *WORDS)
    assert joined(tmp_path / "out") == by_key(data)
    written = [worker["records_out"] for worker in report["workers"]]
    assert sum(written) == RECORDS
    assert max(written) * WORKERS / RECORDS <= MOST, written
    assert report["skew"] == pytest.approx(max(written) * WORKERS / RECORDS)
    # The files agree with the report: the same number of partitions for each worker, in order.
    sizes = [len(file) for _, file in sorted(contents(tmp_path / "out").items())]
    each = len(sizes) // WORKERS
    assert [sum(sizes[at : at + each]) // 100 for at in range(0, len(sizes), each)] == written
