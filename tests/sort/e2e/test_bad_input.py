"""Input that cannot be sorted is refused with a clear message, and no file is changed."""

import os
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.sort.e2e.commands import contents, torpor_sort
from tests.sort.workers import fixed_records
from torpor.sort.record import GENSORT

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]

RECORDS = fixed_records(50, GENSORT, seed=1)


class Case:
    """The arguments of `run`, and files to make in a folder; `said` is part of its one line."""

    def __init__(self, code: int, said: str, *words: str, make: Callable[[Path], object] = lambda folder: None) -> None:
        self.code, self.said, self.words, self.make = code, said, words, make


def write(name: str, data: bytes) -> Callable[[Path], object]:
    def make(folder: Path) -> object:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        return (folder / name).write_bytes(data)

    return make


CASES: Mapping[str, Case] = {
    "truncated": Case(
        1,
        "/in/b has 4999 bytes, not a whole number of records of 100 bytes",
        "in",
        "--output",
        "out",
        make=write("in/b", RECORDS[:-1]),
    ),
    "missing": Case(1, "/nowhere", "in", "nowhere", "--output", "out"),
    "a pipe": Case(1, "/in/pipe", "in", "--output", "out", make=lambda folder: os.mkfifo(folder / "in" / "pipe")),
    "not empty": Case(1, "out holds precious", "in", "--output", "out", make=write("out/precious", b"mine")),
    "output is a file": Case(1, "out", "in", "--output", "out", make=write("out", b"mine")),
    "output in the input": Case(1, "is inside the input", "in", "--output", "in/out"),
    "input in the output": Case(1, "is inside the output", "out/in", "--output", "out", make=write("out/in/a", RECORDS)),
    "scratch in the input": Case(1, "is inside the input", "in", "--output", "out", "--scratch", "in/scratch"),
    "a format that there is not": Case(2, "the format 'csv' is unknown", "in", "--output", "out", "--format", "csv"),
    "a record beyond the memory": Case(2, "1 to 65536 bytes", "in", "--output", "out", "--format", "fixed:65537:0:10"),
    "a field of no lines": Case(2, "go together", "in", "--output", "out", "--key", "2"),
    "a memory that is no size": Case(2, "--memory '2X' is not a size", "in", "--output", "out", "--memory", "2X"),
    "too little memory": Case(
        2, "give at least --memory 8M", "in", "--output", "out", "--memory", "7M", "--workers", "2", "--min-share", "0"
    ),
    "a share that is no size": Case(2, "--min-share '1X' is not a size", "in", "--output", "out", "--min-share", "1X"),
    "a line without an end": Case(
        3,
        "/in/long has a line of 17825792 bytes at byte 0; a line may have at most 16777216, newline included; shorten or",
        "in",
        "--output",
        "out",
        "--format",
        "lines",
        make=write("in/long", bytes(17 << 20)),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_bad_input_is_refused_in_one_line_and_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    write("in/a", RECORDS)(tmp_path)
    case.make(tmp_path)
    before = contents(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = torpor_sort("run", *case.words)
    assert case.said in done.said
    assert done.code == case.code
    assert contents(tmp_path) == before
    assert done.out == b"" or case.code == 3


def test_an_unreadable_input_is_named(tmp_path: Path) -> None:
    """Root may read everything, unless it gives that up."""
    folder = tmp_path / "in" / "closed"
    folder.parent.mkdir()
    folder.mkdir(mode=0o000)
    prefix = () if os.getuid() else ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    if prefix and shutil.which("setpriv") is None:
        pytest.skip("root can read everything, and there is no setpriv to give that up")
    done = torpor_sort("run", folder.parent, "--output", tmp_path / "out", prefix=prefix)
    assert done.code == 1
    assert str(folder) in done.said
    assert "Permission denied" in done.said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--hold", "Dreaming"), "there is no state 'Dreaming'"),
        (("--listen", "127.0.0.1:70000"), "is not HOST:PORT"),
    ],
)
def test_a_master_refuses_invalid_options(tmp_path: Path, words: tuple[str, str], said: str) -> None:
    done = torpor_sort("master", "--workers", 1, "--state", tmp_path / "state", *words)
    assert done.code == 2
    assert said in done.said
    assert not (tmp_path / "state").exists()


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = torpor_sort("master", "--workers", 1, "--state", tmp_path / "state", "--listen", f"127.0.0.1:{port}")
        assert done.code != 0
        assert f"port {port} of 127.0.0.1 is in use" in done.said
        assert not (tmp_path / "state" / "join.json").exists()


def test_validate_distinguishes_sorted_and_unsorted_data(tmp_path: Path) -> None:
    records = sorted(RECORDS[at : at + 100] for at in range(0, len(RECORDS), 100))
    (tmp_path / "sorted").write_bytes(b"".join(records))
    (tmp_path / "unsorted").write_bytes(b"".join([*records[1:], records[0]]))
    assert torpor_sort("validate", tmp_path / "sorted").code == 0
    unsorted = torpor_sort("validate", tmp_path / "unsorted")
    assert unsorted.code == 1
    assert b"49" in unsorted.out
    assert torpor_sort("validate", tmp_path / "nowhere").code == 1
