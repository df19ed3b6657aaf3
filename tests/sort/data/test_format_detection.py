"""The format is detected from the input."""

from pathlib import Path

import pytest

from torpor.sort.data.format_detection import EXAMINED, detect
from torpor.sort.data.generate import generate
from torpor.sort.errors import SortRefused
from torpor.sort.record import GENSORT, Format, Lines

RECORD_LINES = b"".join(b"%098d\r\n" % number for number in range(3_000))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", Lines()),
        (b"pear\nplum\n", Lines()),
        (b"pear\r\nplum, without an end", Lines()),
        ("Äpfel\nПодсолнух\n".encode(), Lines()),
        (b"x" * (EXAMINED - 1) + "é".encode() + b"\n", Lines()),
        (b"x" * 200_000, Lines()),
        (b"x" * EXAMINED + b"\0", Lines()),
        (RECORD_LINES[:500] + b"short\n" + RECORD_LINES, Lines()),
        (b"x" * 100 + b"\n", Lines()),
        (b"x" * 98 + b"\n", Lines()),
        ("pear\nplum\n".encode("utf-16"), GENSORT),
        ("pear\nplum\n".encode("utf-16-le"), GENSORT),
        (b"pear\n\0\n", GENSORT),
        ("Äpfel\n".encode("latin-1"), GENSORT),
        (b"pear\n\xc3", GENSORT),
        (b"x" * (EXAMINED - 1) + b"\0", GENSORT),
    ],
    ids=[
        "empty",
        "text",
        "CR LF and no last newline",
        "text beyond ASCII",
        "a character across the end",
        "one long line",
        "a NUL after 64 KiB",
        "one line of another length",
        "101 bytes",
        "99 bytes",
        "UTF-16",
        "UTF-16 without a mark",
        "a NUL",
        "Latin-1",
        "a cut character",
        "a NUL as byte 65536",
    ],
)
def test_one_file(tmp_path: Path, content: bytes, expected: Format) -> None:
    (tmp_path / "in").write_bytes(content)
    assert detect([tmp_path / "in"]) == expected


@pytest.mark.parametrize("records", [1, 3, 655, 656, 3_000])
def test_ascii_benchmark_records_are_refused(tmp_path: Path, records: int) -> None:
    generate(records, tmp_path / "in", ascii=True)
    with pytest.raises(SortRefused) as caught:
        detect([tmp_path / "in"])
    assert caught.value.code == "unclear_format"
    assert f"every line of the input {tmp_path}/in has exactly 100 bytes" in caught.value.message
    assert "--format lines or --format gensort" in caught.value.message


def test_binary_benchmark_records_are_gensort(tmp_path: Path) -> None:
    generate(3_000, tmp_path / "in")
    assert detect([tmp_path / "in"]) == GENSORT


def test_several_files(tmp_path: Path) -> None:
    for name, content in {"empty": b"", "text": b"pear\n", "records": RECORD_LINES, "binary": b"\0" * 100}.items():
        (tmp_path / name).write_bytes(content)

    def of(*names: str) -> Format:
        return detect([tmp_path / name for name in names])

    assert of("empty", "text") == Lines()
    assert of("empty", "binary") == GENSORT
    assert of("records", "text") == Lines()
    for names in (("text", "binary"), ("binary", "records"), ("empty", "records")):
        with pytest.raises(SortRefused) as caught:
            of(*names)
        assert caught.value.code == "unclear_format"


def test_a_directory_is_all_its_files(tmp_path: Path) -> None:
    assert detect([tmp_path]) == Lines()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "binary").write_bytes(b"\0" * 100)
    (tmp_path / ".hidden").write_bytes(b"pear\n")
    assert detect([tmp_path]) == GENSORT
