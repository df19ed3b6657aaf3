"""Every record that is saved or sent as JSON is decoded to an equal record, and all other documents are refused by place."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.sort.data.segments import Inputs, Segment
from torpor.sort.debug_breakpoints import Breakpoint, Moment
from torpor.sort.documents import decode, encode
from torpor.sort.job.options import ForkRequest, WorkerOptions


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    name: bytes
    x: int


@dataclass(frozen=True, slots=True)
class Circle:
    radius: float


@dataclass(frozen=True, slots=True)
class Everything:
    number: int
    share: float
    text: str
    flag: bool
    raw: bytes
    maybe: int | None
    colour: Colour
    pair: tuple[int, bytes]
    many: tuple[Colour, ...]
    by_name: Mapping[str, int | str | list[int]]
    by_number: Mapping[int, tuple[Circle, ...]]
    by_colour: Mapping[Colour, bool]
    circle: Circle | None
    point: Point
    folder: Path
    later: int = 7


numbers = st.integers(-(2**63), 2**64 - 1)
texts = st.text(st.characters(exclude_categories=()))  # Names of files may contain lone surrogates.
circles = st.builds(Circle, st.floats(allow_nan=False, allow_infinity=False))
everything = st.builds(
    Everything,
    number=numbers,
    share=st.floats(allow_nan=False, allow_infinity=False),
    text=texts,
    flag=st.booleans(),
    raw=st.binary(),
    maybe=st.none() | numbers,
    colour=st.sampled_from(Colour),
    pair=st.tuples(numbers, st.binary()),
    many=st.lists(st.sampled_from(Colour)).map(tuple),
    by_name=st.dictionaries(st.text(), numbers | st.text() | st.lists(numbers)),
    by_number=st.dictionaries(numbers, st.lists(circles).map(tuple)),
    by_colour=st.dictionaries(st.sampled_from(Colour), st.booleans()),
    circle=st.none() | circles,
    point=st.builds(Point, st.binary(), numbers),
    folder=st.just(Path("/a/b")),
)


@given(everything)
def test_round_trip(value: Everything) -> None:
    document = encode(value)
    assert document.isascii()
    assert b"\n" not in document
    assert decode(Everything, document) == value


EXAMPLE = Everything(
    number=1,
    share=0.5,
    text="t",
    flag=True,
    raw=b"\x00\xff",
    maybe=None,
    colour=Colour.RED,
    pair=(1, b"p"),
    many=(Colour.RED, Colour.BLUE),
    by_name={"c": [1, 2]},
    by_number={-3: (Circle(1.5),)},
    by_colour={Colour.BLUE: False},
    circle=Circle(2.0),
    point=Point(b"k", 9),
    folder=Path("/a"),
)

WRONG: dict[str, tuple[list[str | int], Any, str]] = {
    "a text for a number": (["number"], "1", "Expected `int`, got `str` - at `$.number`"),
    "true for a number": (["number"], True, "Expected `int`, got `bool` - at `$.number`"),
    "a fraction for a whole number": (["number"], 1.5, "Expected `int`, got `float` - at `$.number`"),
    "a number for true": (["flag"], 1, "Expected `bool`, got `int` - at `$.flag`"),
    "null for a text": (["text"], None, "Expected `str`, got `null` - at `$.text`"),
    "invalid base64": (["raw"], "0g", "Invalid base64 encoded string - at `$.raw`"),
    "an unknown member": (["colour"], "green", "Invalid enum value 'green' - at `$.colour`"),
    "a value outside the union": (["maybe"], "x", "Expected `int | null`, got `str` - at `$.maybe`"),
    "a wrong value in a list": (["many", 1], "green", "Invalid enum value 'green' - at `$.many[1]`"),
    "a list for a mapping": (["by_colour"], [], "Expected `object`, got `array` - at `$.by_colour`"),
    "a key that is not a number": (["by_number"], {"x": []}, "Expected `int`, got `str` - at `key` in `$.by_number`"),
    "a wrong value in a record": (["circle", "radius"], None, "Expected `float`, got `null` - at `$.circle.radius`"),
    "a number for a path": (["folder"], 1, "Expected a path, got `1` - at `$.folder`"),
    "an unknown field": (["more"], 1, "Object contains unknown field - at `$.more`"),
    "an unknown field inside": (["circle", "more"], 1, "Object contains unknown field - at `$.circle.more`"),
    "an unknown field in a list": (
        ["by_number", "-3", 0, "more"],
        1,
        "Object contains unknown field - at `$.by_number.-3[0].more`",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_refused_and_its_place_is_named(case: str) -> None:
    path, value, message = WRONG[case]
    plain: Any = json.loads(encode(EXAMPLE))
    inner = plain
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(ValueError) as caught:
        decode(Everything, json.dumps(plain).encode())
    assert str(caught.value) == f"this is not a Everything: {message}"


@pytest.mark.parametrize("name", [name for name in Everything.__dataclass_fields__ if name != "later"])
def test_a_missing_field_without_default_is_refused(name: str) -> None:
    plain: Any = json.loads(encode(EXAMPLE))
    del plain[name]
    with pytest.raises(ValueError, match=f"Object missing required field `{name}`"):
        decode(Everything, json.dumps(plain).encode())


@pytest.mark.parametrize("document", [b"null", b"[]", b'"text"', b"3", b"", b"{", b"\xff"])
def test_another_document_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError):
        decode(Everything, document)


@pytest.mark.parametrize("radius", ["wide", float("nan"), float("inf"), None])
def test_a_record_that_could_not_be_decoded_again_is_not_encoded(radius: Any) -> None:
    with pytest.raises(ValueError):
        encode(Circle(radius))


@dataclass(frozen=True, slots=True)
class Unsupported:
    value: object = field(default_factory=object)


def test_a_value_without_a_form_in_json_is_a_mistake_of_the_program() -> None:
    with pytest.raises(NotImplementedError, match="object"):
        encode(Unsupported())


def test_the_request_to_the_fork_server() -> None:
    segment = Segment("/in/\udcff name", 0, 10, 10, 1_700_000_000_000_000_001, 1)
    options = WorkerOptions(
        "127.0.0.1:1",
        Path("/join"),
        (Path("/in"),),
        Path("/out"),
        slice=Inputs((segment,)),
        hold=Breakpoint("Sorting", Moment.MIDWAY),
    )
    request = ForkRequest(3, options, Path("/log"))
    assert decode(ForkRequest, encode(request)) == request
