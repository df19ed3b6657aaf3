"""A whole sort works as documented, from an empty folder to the report page."""

from pathlib import Path

import numpy as np
import pytest

from tests.sort.e2e.commands import (
    ALL_WORKERS,
    by_key,
    cluster,
    contents,
    generated,
    joined,
    running,
    sorted_well,
    torpor_sort,
)
from tests.sort.workers import fixed_records
from torpor.sort.record import GENSORT
from torpor.sort.sizes import MIB

pytestmark = pytest.mark.e2e


def test_two_runs_write_the_same_files_and_report_as_json(tmp_path: Path) -> None:
    records = fixed_records(30_000, GENSORT, seed=2, keys=500)
    (tmp_path / "in").write_bytes(records)
    words = (tmp_path / "in", "--workers", 3, *ALL_WORKERS, "--memory", "24M")
    first = torpor_sort("run", *words, "--output", tmp_path / "one", "--json", "--report", tmp_path / "page.html")
    again = torpor_sort("run", *words, "--output", tmp_path / "two", "--tls", "--json")
    assert (first.code, again.code) == (0, 0), again.err.decode()
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert joined(tmp_path / "one") == by_key(records)

    one, two = first.json, again.json
    for name in ("outcome", "format", "records", "size_bytes", "checksum", "partitions", "skew"):
        assert one[name] == two[name], name
    assert one.keys() == two.keys()
    assert one["job"] != two["job"]
    page = (tmp_path / "page.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert one["job"] in page
    assert "<svg" in page
    text = torpor_sort("validate", tmp_path / "one")
    assert (text.code, text.out.splitlines()[0]) == (0, b"Records: 30000")


def test_without_proof_and_sync_the_bytes_are_the_same_and_the_outcome_is_unproven(tmp_path: Path) -> None:
    records = fixed_records(5_000, GENSORT, seed=3)
    (tmp_path / "in").write_bytes(records)
    done = torpor_sort("run", tmp_path / "in", "--output", tmp_path / "out", "--no-proof", "--no-sync", "--json")
    assert (done.code, done.json["outcome"], done.json["checksum"]) == (0, "unproven", None)
    assert joined(tmp_path / "out") == by_key(records)


def test_a_job_with_tls_succeeds(tmp_path: Path) -> None:
    """As between hosts, here by `--tls`; a caller without the job's certificate gets no answer."""
    records = fixed_records(5_000, GENSORT, seed=5)
    (tmp_path / "in").write_bytes(records)
    with cluster(tmp_path, 1, "--tls", "--report", tmp_path / "page.html") as job:
        assert torpor_sort("status", job.address).code == 6
        assert torpor_sort("status", job.state).code == 0
        with running(*job.worker(0, tmp_path / "in")) as worker:
            assert worker.ended().code == 0
        done = job.master.ended()
    assert (done.code, done.json["outcome"]) == (0, "valid")
    # With --json the address is on standard error.
    assert job.address.encode() in done.err
    assert job.output(1) == by_key(records)
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("records", "workers"), [(0, 1), (1, 2), (2, 3)], ids=["an empty directory", "one record", "more workers than records"]
)
def test_empty_and_tiny_inputs_are_sorted(tmp_path: Path, records: int, workers: int) -> None:
    (tmp_path / "in").mkdir()
    if records:
        (tmp_path / "in" / "few").write_bytes(fixed_records(records, GENSORT, seed=8))
        (tmp_path / "in" / "none").touch()
    report = sorted_well(tmp_path / "in", "--output", tmp_path / "out", "--workers", workers, *ALL_WORKERS)
    assert joined(tmp_path / "out") == (by_key((tmp_path / "in" / "few").read_bytes()) if records else b"")
    assert (report["records"], report["size_bytes"]) == (records, records * 100)


@pytest.mark.parametrize(("size_mib", "allowed", "started"), [(0, 60, 1), (33, 3, 2)], ids=["one record", "33 MiB"])
def test_a_small_input_gets_fewer_workers_than_allowed(tmp_path: Path, size_mib: int, allowed: int, started: int) -> None:
    records = np.random.default_rng(6).bytes(max(1, size_mib * MIB // 100) * 100)
    (tmp_path / "in").write_bytes(records)
    words = (tmp_path / "in", "--output", tmp_path / "out", "--workers", allowed, "--memory", "256M", "--no-sync")
    done = torpor_sort("run", *words, "--json")
    assert done.code == 0, done.err.decode()
    assert (len(done.json["workers"]), done.json["workers_not_started"]) == (started, allowed - started)
    assert done.json["partitions"] % started == 0
    assert joined(tmp_path / "out") == by_key(records)


def test_a_report_has_the_number_of_workers_not_started(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(fixed_records(1, GENSORT, seed=7))
    done = torpor_sort("run", tmp_path / "in", "--output", tmp_path / "out", "--workers", 60, "--memory", "4M")
    assert done.code == 0, done.err.decode()
    assert b"59 workers more, not started: the input is too small (--min-share)" in done.out


def test_success_is_three_lines_and_the_history_is_an_option(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(fixed_records(100, GENSORT, seed=9))
    short = torpor_sort("run", tmp_path / "in", "--output", tmp_path / "short")
    assert short.code == 0, short.err.decode()
    assert len(short.out.splitlines()) == 3
    assert short.out.splitlines()[2].startswith(b"valid: 100 records")
    long = torpor_sort("run", tmp_path / "in", "--output", tmp_path / "long", "--history")
    assert long.code == 0, long.err.decode()
    assert long.out.startswith(b"history of master\n")
    assert b"\nhistory of worker 0\n" in long.out


@pytest.mark.parametrize("words", [(), ("--history",)], ids=["short", "with its history"])
def test_a_worker_prints_its_history_if_requested(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "in").write_bytes(fixed_records(100, GENSORT, seed=9))
    with cluster(tmp_path, 1) as job, running(*job.worker(0, tmp_path / "in", *words)) as worker:
        ended = worker.ended()
        assert ended.code == 0, ended.err.decode()
        assert job.master.ended().code == 0
    assert (b"Merging -> Completed" in ended.err) == bool(words)


def test_generate_does_not_overwrite_a_file(tmp_path: Path) -> None:
    made = generated(tmp_path / "made", 10)
    again = torpor_sort("generate", 20, made)
    assert again.code != 0
    assert str(made) in again.said
    assert made.stat().st_size == 1_000
