"""Formats are parsed and printed, and invalid ones are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.sort.errors import SortRefused
from torpor.sort.record import GENSORT, MAX_RECORD, Fixed, Format, Lines, parse

GOOD: dict[str, Format] = {
    "gensort": Fixed(100, 0, 10),
    "fixed:100:0:10": GENSORT,
    "fixed:8:4:4": Fixed(8, 4, 4),
    "fixed:1:0:1": Fixed(1, 0, 1),
    f"fixed:{MAX_RECORD}:0:{MAX_RECORD}": Fixed(MAX_RECORD, 0, MAX_RECORD),
    "lines": Lines(),
    "lines:2:2c": Lines(2, b","),
    "lines:1:ff": Lines(1, b"\xff"),
}


@pytest.mark.parametrize("text", GOOD)
def test_valid_formats_are_parsed(text: str) -> None:
    assert parse(text) == GOOD[text]


BAD = [
    "",
    "Gensort",
    "gensort:100",
    "csv",
    "fixed",
    "fixed:100",
    "fixed:100:0",
    "fixed:100:0:10:1",
    "fixed:x:0:10",
    "fixed:-1:0:1",
    "fixed:0:0:0",
    "fixed:10:0:0",
    "fixed:10:0:11",
    "fixed:10:5:6",
    "fixed:10: 0:5",
    "fixed:²:0:1",
    "fixed:" + "9" * 5000 + ":0:1",
    f"fixed:{MAX_RECORD + 1}:0:10",
    "lines:2",
    "lines:0:2c",
    "lines:x:2c",
    "lines:-1:2c",
    "lines:2:",
    "lines:2:2c2c",
    "lines:2:0a",
    "lines:2:zz",
]


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:20])
def test_invalid_formats_are_refused(text: str) -> None:
    with pytest.raises(SortRefused) as caught:
        parse(text)
    assert caught.value.code == "bad_format"


def test_a_field_is_chosen_by_number_and_delimiter() -> None:
    assert parse("lines", key=2, delimiter=",") == Lines(2, b",")
    # A byte that is not UTF-8, as the command line passes it.
    assert parse("lines", key=1, delimiter="\udcff") == Lines(1, b"\xff")


@pytest.mark.parametrize(
    ("text", "key", "delimiter"),
    [
        ("lines", 2, None),
        ("lines", None, ","),
        ("lines", 0, ","),
        ("lines", -1, ","),
        ("lines", 1, ""),
        ("lines", 1, ",,"),
        ("lines", 1, "é"),
        ("lines", 1, "\n"),
        ("gensort", 1, ","),
        ("gensort", None, ","),
        ("fixed:10:0:5", 1, None),
        ("lines:2:2c", 3, ";"),
    ],
)
def test_an_invalid_field_is_refused(text: str, key: int | None, delimiter: str | None) -> None:
    with pytest.raises(SortRefused) as caught:
        parse(text, key=key, delimiter=delimiter)
    assert caught.value.code == "bad_format"


fixed = st.integers(1, MAX_RECORD).flatmap(
    lambda length: st.integers(0, length - 1).flatmap(
        lambda offset: st.integers(1, length - offset).map(lambda width: Fixed(length, offset, width))
    )
)
delimiters = st.integers(0, 255).filter(lambda byte: byte != 10).map(lambda byte: bytes([byte]))
formats = fixed | st.just(Lines()) | st.builds(Lines, st.integers(1, 10_000), delimiters)


@given(formats)
def test_a_format_is_parsed_from_its_own_text(format_: Format) -> None:
    assert parse(str(format_)) == format_
