"""The report describes the result of a sort, as text and as JSON."""

import json
from dataclasses import replace

import pytest

from tests.support.sort_reports import BEGAN, job, worker
from torpor.sort.job.report import JobReport, SortOutcome, as_plain, as_summary, as_text, seconds_text, size_text
from torpor.sort.proof import Proof


def test_the_text_ends_with_table_facts_and_verdict() -> None:
    assert as_text(job()).split("\n\n")[-3:] == [
        "worker  attempts  read  written  share  Sampling  Sorting  Shuffling  Merging  retries  resent  identity\n"
        "     0         1   300      250   0.83   0.250 s  0.250 s    0.250 s  0.250 s        1       0  host-0\n"
        "     1         2   300      350   1.17   0.250 s  0.375 s    0.125 s  0.125 s        1       0  host-1",
        "job       a1b2\n"
        "format    gensort\n"
        "sorted by 2 workers, in 4 partitions\n"
        "skew      1.17 (the largest share; 1 is an equal share)\n"
        "checksum  0x00000000000000ab\n"
        "master    Sampling 0.250 s, Configuring 0.250 s, Sorting 0.250 s, Shuffling 0.250 s, Merging 0.250 s",
        "valid: 600 records, 60.00 kB in 1.25 s (0 MB/s), after waiting 0.750 s for workers\n",
    ]


def test_the_summary_is_three_lines_and_the_verdict_is_last() -> None:
    assert as_summary(replace(job(), not_started=2)).splitlines() == [
        "job a1b2, format gensort, checksum 0x00000000000000ab",
        "sorted by 2 workers, in 4 partitions, skew 1.17, 2 workers more, not started: the input is too small (--min-share)",
        "valid: 600 records, 60.00 kB in 1.25 s (0 MB/s), after waiting 0.750 s for workers",
    ]


def test_the_text_has_every_history() -> None:
    blocks = as_text(job()).split("\n\n")
    assert [block.splitlines()[0] for block in blocks[:3]] == [
        "history of master",
        "history of worker 0",
        "history of worker 1",
    ]
    assert "  [+0.500 s] Sorting -> Failed: killed (attempt 1)" in blocks[2].splitlines()
    assert "  [+0.500 s] Failed -> Initializing: started again (attempt 1)" in blocks[2].splitlines()


def test_a_failure_has_its_reason() -> None:
    assert as_text(job(SortOutcome.FAILED, "worker 1: the disk is full")).endswith(
        "\n\nfailed after 2.00 s: worker 1: the disk is full\n"
    )


@pytest.mark.parametrize("outcome", [SortOutcome.UNPROVEN, SortOutcome.FAILED])
def test_without_proof_no_checksum_is_claimed(outcome: SortOutcome) -> None:
    assert "checksum  not taken" in as_text(job(outcome))
    assert as_plain(job(outcome))["checksum"] is None


def test_an_unproven_result_is_shown_as_unproven() -> None:
    assert as_text(job(SortOutcome.UNPROVEN)).splitlines()[-1].startswith("unproven: 600 records")


def test_a_job_that_never_began() -> None:
    nothing = JobReport("a1b2", SortOutcome.FAILED, "gensort", partitions=0, seconds=0.0, reason="nobody came")
    assert (nothing.skew, nothing.megabytes_per_second) == (0.0, 0.0)
    assert as_text(nothing).endswith("failed after 0.000 s: nobody came\n")
    assert as_plain(nothing)["workers"] == []


def test_skew_is_relative_to_a_fair_share_in_bytes() -> None:
    even = job(workers=(worker(0, 200), worker(1, 200), worker(2, 200)))
    assert even.skew == 1.0
    # Half of the records, but three quarters of the bytes.
    heavy, light = replace(worker(0, 10), written=Proof(10, 3_000, 0)), replace(worker(1, 10), written=Proof(10, 1_000, 0))
    uneven = job(workers=(heavy, light))
    assert (uneven.share(heavy), uneven.share(light), uneven.skew) == (1.5, 0.5, 1.5)


def test_speed_is_in_megabytes_per_second_since_all_workers_registered() -> None:
    fast = replace(job(), proof=Proof(10**7, 10**9, 0))
    assert (fast.seconds, fast.working_seconds, fast.waited_seconds) == (2.0, 1.25, 0.75)
    assert fast.megabytes_per_second == 800.0
    assert replace(fast, history=()).megabytes_per_second == 500.0
    # A restarted master has run shorter than its job.
    assert replace(fast, seconds=0.1).waited_seconds == 0.0


def test_programs_read_the_same_names_and_every_transition() -> None:
    plain = json.loads(json.dumps(as_plain(job())))
    assert {name: value for name, value in plain.items() if name not in ("workers", "history", "durations_s")} == {
        "job": "a1b2",
        "outcome": "valid",
        "reason": "",
        "format": "gensort",
        "records": 600,
        "size_bytes": 60_000,
        "checksum": "0x00000000000000ab",
        "partitions": 4,
        "workers_not_started": 0,
        "seconds": 2.0,
        "working_s": 1.25,
        "waited_s": 0.75,
        "megabytes_per_second": 0.048,
        "skew": pytest.approx(350 / 300),
    }
    second = plain["workers"][1]
    assert {name: value for name, value in second.items() if name not in ("history", "durations_s")} == {
        "index": 1,
        "identity": "host-1",
        "attempts": 2,
        "records_in": 300,
        "size_in_bytes": 30_000,
        "records_out": 350,
        "size_out_bytes": 35_000,
        "share": pytest.approx(350 / 300),
        "retries": 1,
        "resent_parts": 0,
    }
    assert second["durations_s"]["Sorting"] == 0.375
    assert second["history"][3] == {"from": "Sorting", "to": "Failed", "at": BEGAN + 0.5, "reason": "killed", "attempt": 1}
    assert plain["durations_s"]["Configuring"] == 0.25
    assert len(plain["history"]) == len(job().history)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0.000 s"), (0.0123, "0.012 s"), (1.634, "1.63 s"), (75.24, "75.2 s"), (12345.6, "12,346 s")]
)
def test_times_have_significant_digits(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1_000, "1.00 kB"), (10**9, "1.00 GB"), (2 * 10**15, "2,000.00 TB")]
)
def test_sizes_are_in_powers_of_ten(size: int, text: str) -> None:
    assert size_text(size) == text
