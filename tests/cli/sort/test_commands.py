"""The commands of the sort: arguments, status output and exit codes."""

import inspect
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.cli.conftest import Torpor, torpor_process
from tests.support.sort_reports import BEGAN, job
from torpor.cli.exit_codes import CommandError, ExitCode
from torpor.cli.output.colours import without_colours
from torpor.cli.sort import commands, exit_codes
from torpor.cli.sort.options import address, deadlines
from torpor.cli.sort.progress import ProgressLines, SortRate, progress_view, sorted_bytes, status_poller
from torpor.cli.sort.render import bars, plain, status_view
from torpor.sort.errors import PeerNotReady, PeerUnavailable, SortError, SortFailed, SortRefused, StaleAttempt
from torpor.sort.job.options import Deadlines, LocalOptions, MasterOptions, WorkerOptions
from torpor.sort.job.report import SortOutcome, as_plain, as_summary, as_text
from torpor.sort.job.status import JobStatus, WorkerStatus
from torpor.sort.machine.history import Transition
from torpor.sort.sizes import parse_size

# Modules that a command must not import if it does not sort.
HEAVY = {"numpy", "grpc", "google.protobuf", "torpor.sort"}


# ── usage ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

RUN = ("run", "in", "--output", "out")
MASTER = ("master", "--workers", "2", "--state", "state")
WORKER = ("worker", "127.0.0.1:7000", "--join", "join.json", "--input", "in", "--output", "out")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("frobnicate",), "No such command 'frobnicate'"),
        (("run", "in"), "Missing option '--output'"),
        (("run", "--output", "out"), "Missing argument 'INPUT'"),
        ((*RUN, "--workers", "0"), "Invalid value for '--workers'"),
        ((*RUN, "--threads", "0"), "Invalid value for '--threads'"),
        ((*RUN, "--hold", "Sorting"), "No such option: --hold"),
        (
            (*RUN, "--format", "csv"),
            "the format 'csv' is unknown; allowed are gensort, fixed:LENGTH:KEY_OFFSET:KEY_LENGTH, lines",
        ),
        ((*RUN, "--format", "fixed:10:5:6"), "the key is not within a record"),
        ((*RUN, "--format", "gensort", "--key", "2"), "--key and --delimiter can be used only with --format lines"),
        ((*RUN, "--key", "2"), "--key and --delimiter go together"),
        ((*RUN, "--format", "lines", "--key", "2"), "--key and --delimiter go together"),
        (
            (*RUN, "--memory", "2X"),
            "--memory '2X' is not a size; allowed are whole bytes or a number with K, M, G or T (such as 512M",
        ),
        ((*RUN, "--heartbeat", "0"), "--heartbeat 0 does not fit --heartbeat-lost 15"),
        ((*RUN, "--heartbeat", "20"), "--heartbeat 20 does not fit --heartbeat-lost 15"),
        ((*RUN, "--worker-grace", "-1"), "Invalid value for '--worker-grace'"),
        ((*RUN, "--report", "no/such/place.html"), "--report no/such/place.html cannot be written"),
        (("master", "--workers", "2"), "Missing option '--state'"),
        ((*MASTER, "--listen", "7000"), "--listen '7000' is not HOST:PORT"),
        ((*MASTER, "--format", "csv"), "the format 'csv' is unknown"),
        (
            (*MASTER, "--hold", "WaitingForShuffleSignal"),
            "there is no state 'WaitingForShuffleSignal'; allowed are Completed, Conf",
        ),
        (
            (*MASTER, "--hold", "Sorting:later"),
            "there is no moment 'later'; allowed are before-save, after-save, after-send, midway",
        ),
        (("worker", "127.0.0.1:7000", "--join", "j", "--output", "out"), "no input was given (use --input DIR)"),
        (("worker", "nowhere", *WORKER[2:]), "MASTER 'nowhere' is not HOST:PORT"),
        ((*WORKER, "--hold", "Configuring"), "there is no state 'Configuring'; allowed are Completed, Failed, Initializing"),
        ((*WORKER, "--index", "-1"), "Invalid value for '--index'"),
        ((*WORKER, "--listen", "host:99999"), "--listen 'host:99999' is not HOST:PORT"),
        (("status",), "Missing argument 'MASTER'"),
        (("status", "host:port"), "'host:port' is not HOST:PORT"),
        (("abort",), "Missing argument 'MASTER'"),
        (("abort", "host:port"), "'host:port' is not HOST:PORT"),
        (("generate", "ten", "file"), "Invalid value for 'RECORDS'"),
        (("generate", "10"), "Missing argument 'FILE'"),
        (("validate",), "Missing argument 'PATH'"),
    ],
)
def test_wrong_usage_is_reported_in_one_line(torpor: Torpor, words: tuple[str, ...], said: str) -> None:
    ended = torpor("sort", *words)
    assert (ended.code, ended.out) == (ExitCode.USAGE, b"")
    assert ended.said.startswith("torpor: ")
    assert ended.said.count("\n") == 1
    assert said in ended.said


def test_a_problem_is_json_with_the_json_option(torpor: Torpor) -> None:
    ended = torpor("sort", *RUN, "--format", "csv", "--json")
    assert ended.code == ExitCode.USAGE
    assert ended.json["code"] == "bad_format"


def test_sort_without_a_command_shows_the_help(torpor: Torpor) -> None:
    ended = torpor("sort")
    assert ended.code == 0
    for command in ("run", "master", "worker", "status", "abort", "join", "generate", "validate"):
        assert f"\n  {command} " in ended.text
    assert ended.text == torpor("sort", "--help").text


def test_defaults_are_those_of_the_sort(torpor: Torpor) -> None:
    """The defaults in the help texts are the real ones."""
    default = {
        (options, field.name): field.default
        for options in (LocalOptions, MasterOptions, WorkerOptions)
        for field in fields(options)
    }
    run, master, worker = (
        inspect.signature(command).parameters for command in (commands.run, commands.master, commands.worker)
    )
    assert parse_size(run["memory"].default) == default[LocalOptions, "memory"]
    assert parse_size(worker["memory"].default) == default[WorkerOptions, "memory"]
    assert run["workers"].default == default[LocalOptions, "workers"]
    assert run["tls"].default == default[LocalOptions, "tls"]
    assert default[MasterOptions, "format"] is None, "the inputs decide"
    for command in ("run", "master"):
        said_of_format = " ".join(torpor("sort", command, "--help").text.split())
        assert "default: lines if the input is UTF-8 text, else gensort." in said_of_format
    assert master["listen"].default == default[MasterOptions, "listen"]
    assert master["tls"].default is default[MasterOptions, "tls"]
    text = " ".join(torpor("sort", "run", "--help").text.split())
    said = dict(re.findall(r"(--[a-z-]+) SECONDS [^(]*\(default: ([0-9.]+)\)", text))
    told = Deadlines()
    assert said == {
        "--registration-timeout": f"{told.registration:g}",
        "--heartbeat": f"{told.heartbeat:g}",
        "--heartbeat-lost": f"{told.heartbeat_lost:g}",
        "--worker-grace": f"{told.worker_grace:g}",
        "--master-grace": f"{told.master_grace:g}",
        "--lock-wait": f"{told.lock:g}",
    }


def test_a_given_deadline_replaces_only_its_default() -> None:
    assert deadlines() == Deadlines()
    assert deadlines(heartbeat=0.1, heartbeat_lost=0.5) == replace(Deadlines(), heartbeat=0.1, heartbeat_lost=0.5)
    assert deadlines(registration=1, worker_grace=2, master_grace=3) == Deadlines(
        registration=1, worker_grace=2, master_grace=3
    )


@pytest.mark.parametrize("text", ["127.0.0.1:0", "[::1]:7000", "sorter.example:65535"])
def test_addresses(text: str) -> None:
    assert address(text, "MASTER") == text


def test_sort_help_imports_no_heavy_modules() -> None:
    seen = "import sys; from torpor.cli.main import run; run(['sort', 'run', '--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, timeout=60, check=True)
    assert "--output" in done.stdout
    assert not (HEAVY | {"rich"}) & set(done.stderr.split())


def test_wrong_usage_imports_neither_numpy_nor_grpc(tmp_path: Path) -> None:
    seen = (
        "import sys; from torpor.cli.main import run; run(['sort', 'run', 'in', '-o', 'out', '--format', 'csv']);"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    assert not {"numpy", "grpc"} & set(done.stdout.split())
    assert list(tmp_path.iterdir()) == []


# ── exit codes ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "exit_code", "code"),
    [
        (SortRefused("bad_format", "no such format"), ExitCode.USAGE, "bad_format"),
        (SortRefused("bad_size", "no such size"), ExitCode.USAGE, "bad_size"),
        (SortRefused("bad_hold", "no such state"), ExitCode.USAGE, "bad_hold"),
        (SortRefused("too_many", "there are 2 workers already"), ExitCode.REFUSED, "too_many"),
        (StaleAttempt("attempt 2 has taken over"), ExitCode.REFUSED, "stale"),
        (PeerUnavailable("nobody answers at 127.0.0.1:1"), ExitCode.UNREACHABLE, "unreachable"),
        (PeerNotReady("not ready"), ExitCode.UNREACHABLE, "not_yet"),
        (SortFailed("the disk is full"), ExitCode.ENDED_IN_ERROR, "broken"),
        (SortError("something"), ExitCode.ENDED_IN_ERROR, "sort_failed"),
        (FileNotFoundError(2, "No such file or directory", "join.json"), ExitCode.ENDED_IN_ERROR, "broken"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "interrupted"),
    ],
)
def test_every_error_ends_with_its_own_exit_code(error: BaseException, exit_code: ExitCode, code: str) -> None:
    with pytest.raises(CommandError) as raised, exit_codes.translate_sort_errors():
        raise error
    assert (raised.value.exit_code, raised.value.code) == (exit_code, code)
    if isinstance(error, SortError):
        assert raised.value.what == error.message
    if isinstance(error, OSError):
        assert raised.value.what == "join.json: No such file or directory"


def test_a_closed_output_is_not_an_error_of_the_sort() -> None:
    with pytest.raises(BrokenPipeError), exit_codes.translate_sort_errors():
        raise BrokenPipeError


def test_an_interruption_says_how_to_continue() -> None:
    with pytest.raises(CommandError) as raised, exit_codes.translate_sort_errors(interrupted="the same command goes on"):
        raise KeyboardInterrupt
    assert raised.value.as_text() == "torpor: interrupted (the same command goes on)"


def test_a_successful_sort_is_reported(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    commands.show_report(job(), tmp_path / "report.html", history=False, as_json=False)
    assert capfdbinary.readouterr() == (as_summary(job()).encode(), b"")
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    commands.show_report(job(), None, history=True, as_json=False)
    assert capfdbinary.readouterr() == (as_text(job()).encode(), b"")
    commands.show_report(job(), None, history=False, as_json=True)
    assert json.loads(capfdbinary.readouterr().out) == as_plain(job())


def test_a_failed_sort_is_reported_with_a_page_and_exits_with_3(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    failed = job(SortOutcome.FAILED, "worker 1: the disk is full")
    for as_json, text in ((False, as_text(failed)), (True, "")):
        page = tmp_path / f"{as_json}.html"
        with pytest.raises(CommandError) as raised:
            commands.show_report(failed, page, history=False, as_json=as_json)
        assert raised.value.exit_code == ExitCode.ENDED_IN_ERROR
        assert raised.value.as_text() == "torpor: the sort failed: worker 1: the disk is full (the history shows where)"
        # With --json the caller prints the problem, which contains the report.
        assert raised.value.as_problem()["report"] == as_plain(failed)
        assert capfdbinary.readouterr().out.decode() == text
        assert "the disk is full" in page.read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_does_not_hide_the_report(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    import typer

    with pytest.raises(typer.Exit) as raised:
        commands.show_report(job(), tmp_path, history=False, as_json=False)
    assert raised.value.exit_code == ExitCode.REFUSED
    out, err = capfdbinary.readouterr()
    assert out.decode() == as_summary(job())
    assert b"the report cannot be written" in err


# ── status ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def worker(index: int | None, state: str, progress: float, *, attempt: int = 1, size: int = 100_000_000) -> WorkerStatus:
    identity = f"host-{index}"
    return WorkerStatus(index, identity, attempt, "h:1", "h:2", state, state.upper(), progress, "", 0.5, size)


def job_status(*workers: WorkerStatus, state: str = "Sorting", expected: int = 2) -> JobStatus:
    history = (Transition("WaitingForWorkers", "Sampling", BEGAN, "all are there"),)
    return JobStatus(
        "a1b2", state, "workers sort their inputs", "h:0", "gensort", expected, workers, {"Sampling": 1.5}, history
    )


def test_each_change_is_one_plain_line() -> None:
    said: list[str] = []
    lines = ProgressLines(change=said.append)
    lines(job_status(state="WaitingForWorkers"))
    lines(job_status(worker(None, "Initializing", 0), state="WaitingForWorkers"))
    lines(job_status(worker(0, "Sorting", 20), worker(1, "Sampling", 10)))
    lines(job_status(worker(0, "Sorting", 30), worker(1, "Sampling", 10)))
    lines(job_status(worker(0, "Sorting", 15, attempt=2), worker(1, "Sorting\x1b[2J", 15)))
    assert said == [
        "master: WaitingForWorkers",
        "host-None: Initializing",
        "master: Sorting",
        "worker 0: Sorting",
        "worker 1: Sampling",
        "worker 0: Sorting (attempt 2)",
        "worker 1: Sorting\\x1b[2J",
    ]


@pytest.mark.parametrize(("progress", "done"), [(0, 0), (15, 0), (35, 50_000_000), (55, 100_000_000), (80, 100_000_000)])
def test_the_sorted_bytes_follow_from_the_progress(progress: float, done: float) -> None:
    assert sorted_bytes(worker(0, "Sorting", progress)) == pytest.approx(done)
    assert sorted_bytes(worker(0, "Merging", progress)) is None


def test_the_speed_is_measured_since_a_worker_was_first_seen_sorting() -> None:
    now = 100.0
    pace = SortRate(lambda: now)
    assert pace(job_status(worker(0, "Sorting", 15), worker(1, "Sampling", 10))) == {}
    now = 102.0
    assert pace(job_status(worker(0, "Sorting", 35), worker(1, "Sorting", 15))) == pytest.approx({"host-0": 25_000_000})
    now = 104.0
    # A new attempt starts from zero, and a worker that has sorted has no speed.
    assert pace(job_status(worker(0, "Sorting", 15, attempt=2), worker(1, "Sorting", 55))) == pytest.approx(
        {"host-1": 50_000_000}
    )
    now = 105.0
    assert pace(job_status(worker(0, "Sorting", 17, attempt=2), worker(1, "Merging", 80))) == pytest.approx(
        {"host-0": 5_000_000}
    )


def test_each_worker_has_one_bar() -> None:
    status = job_status(worker(0, "Sorting", 35), worker(1, "Shuffling", 60, attempt=3))
    lines = without_colours(bars(status, {"host-0": 123_400_000.0})).splitlines()
    assert lines[0] == "Sorting: workers sort their inputs"
    assert [part.strip() for part in lines[1].split("  ") if part and "━" not in part] == [
        "worker 0", "Sorting", "35 %", "47.7 MiB of 95.4 MiB", "123 MB/s",
    ]  # fmt: skip
    assert "worker 1  Shuffling (attempt 3)  ━" in lines[2]
    assert lines[2].endswith("60 %  95.4 MiB")
    assert len(lines) == 3


def test_the_status_is_polled_until_the_job_ends() -> None:
    said: list[str] = []
    standings = [job_status(state="WaitingForWorkers"), job_status(state="Sampling")]
    asked = threading.Event()

    def ask() -> JobStatus:
        if len(standings) == 1:
            asked.set()
        return standings.pop(0) if standings else job_status(state="Completed")

    with status_poller(ProgressLines(change=said.append)) as begin:
        begin(ask)
        assert asked.wait(30)
    # The last change is shown even if no poll came after it.
    assert said == ["master: WaitingForWorkers", "master: Sampling", "master: Completed"]


def test_workers_that_are_missing_are_counted() -> None:
    few = job_status(worker(None, "Initializing", 0), state="WaitingForWorkers", expected=4)
    lines = without_colours(bars(few, {})).splitlines()
    assert lines[0].endswith("(1 of 4 workers have registered)")


def test_the_status_is_shown_as_a_table() -> None:
    status = replace(job_status(worker(0, "Sorting", 35), worker(None, "Sampling", 10)), reason="lost \x1b[2J")
    text = without_colours(status_view(status))
    assert "\x1b" not in text
    assert text.splitlines()[0] == "Sorting: lost \\x1b[2J"
    assert ["0", "Sorting", "35", "%", "95.4", "MiB", "0.5", "s", "ago", "h:1", "host-0", "-"] in [
        line.split() for line in text.splitlines()
    ]
    assert "WORKER" not in without_colours(status_view(job_status(state="WaitingForWorkers")))


def test_the_status_is_available_as_json() -> None:
    told = json.loads(json.dumps(plain(job_status(worker(0, "Sorting", 35), worker(None, "Sampling", 10)))))
    assert told["workers"][0] == {
        "index": 0,
        "identity": "host-0",
        "attempt": 1,
        "control_address": "h:1",
        "data_address": "h:2",
        "state": "Sorting",
        "phase": "SORTING",
        "progress": 35,
        "message": "",
        "seen_seconds_ago": 0.5,
        "size_in_bytes": 100_000_000,
    }
    assert told["workers"][1]["index"] is None
    assert told["verdict"] is None
    assert told["durations_s"] == {"Sampling": 1.5}
    assert told["history"] == [
        {"from": "WaitingForWorkers", "to": "Sampling", "at": BEGAN, "reason": "all are there", "attempt": 0}
    ]


def test_at_a_terminal_the_bars_are_on_stderr_and_stdout_stays_clean(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress_view(print) as follow:
            follow(job_status(worker(0, "Sorting", 35), worker(1, "Sampling", 10)))
            follow.tell("a result")
        monkeypatch.undo()
        # Read while the other end is open: closing a terminal drops its content.
        drawn = ""
        while select.select([ours], [], [], 0.2)[0]:
            drawn += os.read(ours, 65536).decode()
    os.close(ours)
    assert "worker 0" in drawn
    assert "━" in drawn
    assert "a result" not in drawn
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == b"a result\n"


# ── the benchmark's tools ─────────────────────────────────────────────────────────────────────────────────────────────


def test_generate_and_validate(torpor: Torpor, tmp_path: Path) -> None:
    made = torpor("sort", "generate", "1000", str(tmp_path / "records"))
    assert (made.code, made.said) == (0, "")
    assert made.text == f"{tmp_path}/records: 1,000 records, 100,000 bytes\n"
    assert (tmp_path / "records").read_bytes().startswith(b"JimGrayRIP")
    found = torpor("sort", "validate", str(tmp_path / "records"))
    assert found.code == ExitCode.REFUSED
    assert found.text.startswith("First unordered record is record ")


def test_validate_accepts_sorted_data(torpor: Torpor, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a,2\nb,2\nc,1\n")
    ended = torpor("sort", "validate", str(tmp_path / "lines"), "--format", "lines", "--json")
    assert ended.code == 0
    assert {name: ended.json[name] for name in ("in_order", "records", "size_bytes", "unordered", "first_key")} == {
        "in_order": True,
        "records": 3,
        "size_bytes": 12,
        "unordered": 0,
        "first_key": b"a,2".hex(),
    }
    by_field = torpor(
        "sort", "validate", str(tmp_path / "lines"), "--format", "lines", "--key", "2", "--delimiter", ",", "--json"
    )
    assert by_field.code == ExitCode.REFUSED
    assert (by_field.json["in_order"], by_field.json["first_unordered"], by_field.json["duplicate_keys"]) == (False, 2, 1)


def test_generate_follows_its_options(torpor: Torpor, tmp_path: Path) -> None:
    made = torpor("sort", "generate", "7", str(tmp_path / "a"), "--ascii", "--seed", "5", "--threads", "1", "--json")
    assert made.json == {"file": f"{tmp_path}/a", "records": 7, "size_bytes": 700}
    assert torpor("sort", "generate", "12", str(tmp_path / "b"), "--ascii").code == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()[500:]
    assert torpor("sort", "generate", "12", str(tmp_path / "c"), "--ascii", "--skew").code == 0
    assert (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


def test_generate_does_not_overwrite_a_file(torpor: Torpor, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    ended = torpor("sort", "generate", "7", str(tmp_path / "mine"), "--json")
    assert (ended.code, ended.json["code"]) == (ExitCode.REFUSED, "exists")
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize(("name", "code"), [("cut", "truncated"), ("missing", "missing_input")])
def test_validate_says_which_file_is_wrong(torpor: Torpor, tmp_path: Path, name: str, code: str) -> None:
    (tmp_path / "cut").write_bytes(b"\0" * 150)
    ended = torpor("sort", "validate", str(tmp_path / name), "--json")
    assert (ended.code, ended.json["code"]) == (ExitCode.REFUSED, code)
    assert str(tmp_path / name) in ended.said


# ── real programs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_missing_master_is_unreachable() -> None:
    ended = torpor_process("sort", "status", "127.0.0.1:1", "--json")
    assert ended.code == ExitCode.UNREACHABLE
    assert ended.json["code"] == "unreachable"
