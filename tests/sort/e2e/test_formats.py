"""`run` and `master` choose a format for the input if the user gives none, and report it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.sort.chaos.cluster import cluster
from tests.sort.e2e.commands import Ended, by_key, contents, generated, gnu_sort, joined, torpor_sort

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]

TEXT = b"pear,2\nplum,1\napple,3\n\xc3\xa4pfel,0\n"


def format_lines(err: bytes) -> list[str]:
    return [line for line in err.decode().splitlines() if line.startswith("format: ")]


@pytest.mark.parametrize(
    ("content", "expected", "line"),
    [
        (TEXT, gnu_sort(TEXT), "format: lines, because the input is UTF-8 text (--format chooses another)"),
        (b"", b"", "format: lines, because the input is UTF-8 text (--format chooses another)"),
        (
            ("z" * 49 + "\n" + "a" * 49 + "\n").encode("utf-16-le"),
            by_key(("z" * 49 + "\n" + "a" * 49 + "\n").encode("utf-16-le")),
            "format: gensort, because the input is not UTF-8 text (--format chooses another)",
        ),
    ],
    ids=["text", "empty", "UTF-16"],
)
def test_the_input_determines_the_format(tmp_path: Path, content: bytes, expected: bytes, line: str) -> None:
    (tmp_path / "in").write_bytes(content)
    done = torpor_sort("run", tmp_path / "in", "--output", tmp_path / "out", "--json")
    assert done.code == 0, done.err.decode()
    assert format_lines(done.err) == [line]
    assert joined(tmp_path / "out") == expected
    checked = torpor_sort("validate", tmp_path / "out", "--json")
    assert (checked.code, checked.json["in_order"]) == (0, True)
    assert format_lines(checked.err) == [line]


def test_utf_16_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes("pear\nplum\n".encode("utf-16"))
    done = torpor_sort("run", tmp_path / "in", "--output", tmp_path / "out")
    assert done.code == 1
    assert "check --format" in done.said
    assert not (tmp_path / "out").exists()


def test_ascii_benchmark_records_need_a_format(tmp_path: Path) -> None:
    made = generated(tmp_path / "in", 2_000, "--ascii")
    before = contents(tmp_path)
    refused = torpor_sort("run", made, "--output", tmp_path / "out")
    assert refused.code == 1
    assert "choose with --format lines or --format gensort" in refused.said
    assert format_lines(refused.err) == []
    assert contents(tmp_path) == before
    for form in ("lines", "gensort"):
        done = torpor_sort("run", made, "--output", tmp_path / form, "--format", form, "--json")
        assert (done.code, done.json["format"]) == (0, form)
        assert format_lines(done.err) == []


def test_a_key_field_implies_lines(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(TEXT)
    words = ("--key", "2", "--delimiter", ",")
    assert torpor_sort("run", tmp_path / "in", "--output", tmp_path / "out", *words).code == 0
    assert joined(tmp_path / "out") == gnu_sort(TEXT, "-t,", "-k2,2")


# ── a master and its workers ──────────────────────────────────────────────────────────────────────────────────────────

RECORDS = b"".join(bytes([255, key]) + bytes(98) for key in range(200))


def lead(inputs: Sequence[bytes], folder: Path, *options: str) -> tuple[Ended, bytes]:
    """The output and result of a master whose workers have these inputs, and what they wrote."""
    paths = []
    for index, content in enumerate(inputs):
        paths.append(folder / f"in.{index}")
        paths[-1].mkdir()
        (paths[-1] / "data").write_bytes(content)
    with cluster(paths, master_options=("--registration-timeout", "30", *options)) as here:
        here.start()
        code = here.master.wait()
        if code == 0:
            here.end_well()  # otherwise a worker that comes late looks for its master for a while
        written = [path for index in range(len(inputs)) for path in here.output(index).glob("partition.*")]
        joined = b"".join(path.read_bytes() for path in sorted(written, key=lambda path: path.name))
        return Ended(code, here.master.answer.read_bytes(), here.master.log.read_bytes()), joined


@pytest.mark.parametrize(
    ("inputs", "line"),
    [
        ([TEXT, b"", b"zebra\n"], "format: lines, because the input is UTF-8 text (--format chooses another)"),
        ([b"", b""], "format: lines, because the input is UTF-8 text (--format chooses another)"),
        ([RECORDS, b"", RECORDS], "format: gensort, because the input is not UTF-8 text (--format chooses another)"),
    ],
    ids=["text", "empty", "records"],
)
def test_the_inputs_of_the_workers_determine_the_format(tmp_path: Path, inputs: list[bytes], line: str) -> None:
    done, written = lead(inputs, tmp_path)
    assert done.code == 0, done.err.decode()
    assert format_lines(done.err) == [line]
    content = b"".join(inputs)
    assert written == (by_key(content) if "gensort" in line else gnu_sort(content))


def test_workers_whose_inputs_differ_are_refused_with_their_names(tmp_path: Path) -> None:
    done, written = lead([TEXT, RECORDS], tmp_path)
    assert (done.code, written) == (3, b"")
    for words in ("seems to be lines", "seems to be gensort", "index 0", "index 1", "choose one with --format"):
        assert words in done.err.decode(), words


def test_a_worker_with_lines_of_100_bytes_asks_for_a_format(tmp_path: Path) -> None:
    lines = (b"x" * 99 + b"\n") * 3
    done, written = lead([lines, lines], tmp_path)
    assert (done.code, written) == (3, b"")
    assert "choose with --format lines or --format gensort" in done.err.decode()
    (tmp_path / "again").mkdir()
    done, written = lead([lines, lines], tmp_path / "again", "--format", "lines")
    assert (done.code, written, format_lines(done.err)) == (0, lines * 2, [])
