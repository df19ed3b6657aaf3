"""Does every value that a journal holds come back as it was, and is everything else refused by its place?"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.sort.data.segments import Inputs, Segment
from torpor.sort.documents import from_plain, to_plain
from torpor.sort.kernels.partition_boundaries import Boundary
from torpor.sort.machine.records import (
    Goal,
    GoalStage,
    MergeReport,
    OutputFile,
    PartitionMap,
    Report,
    ShuffleReport,
    SortReport,
)
from torpor.sort.machine.states import WorkerPhase
from torpor.sort.proof import Proof
from torpor.sort.record import Fixed, Format, Lines


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(Enum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    name: bytes
    x: int


@dataclass(frozen=True, slots=True)
class Circle:
    radius: float


@dataclass(frozen=True, slots=True)
class Square:
    side: int
    inner: "Shape | None" = None


Shape = Circle | Square


@dataclass(frozen=True, slots=True)
class Everything:
    number: int
    share: float
    text: str
    flag: bool
    raw: bytes
    maybe: int | None
    colour: Colour
    level: Level
    mixed: int | str | list[int]
    literal: Literal["a", "b"]
    pair: tuple[int, bytes]
    many: tuple[Colour, ...]
    names: frozenset[str]
    by_name: Mapping[str, Circle]
    by_number: dict[int, tuple[int, ...]]
    by_colour: Mapping[Colour, bool]
    by_pair: Mapping[tuple[int, int], Circle]
    shape: Shape
    other: Format | None
    point: Point
    derived: int = field(init=False, default=7)


numbers = st.integers()
shapes: st.SearchStrategy[Shape] = st.recursive(
    st.builds(Circle, st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.builds(Square, numbers, st.none() | inner),
    max_leaves=4,
)
everything = st.builds(
    Everything,
    number=numbers,
    share=st.floats(allow_nan=False, allow_infinity=False),
    text=st.text(),
    flag=st.booleans(),
    raw=st.binary(),
    maybe=st.none() | numbers,
    colour=st.sampled_from(Colour),
    level=st.sampled_from(Level),
    mixed=numbers | st.text() | st.lists(numbers),
    literal=st.sampled_from(["a", "b"]),
    pair=st.tuples(numbers, st.binary()),
    many=st.lists(st.sampled_from(Colour)).map(tuple),
    names=st.frozensets(st.text()),
    by_name=st.dictionaries(st.text(), st.builds(Circle, st.just(1.5))),
    by_number=st.dictionaries(numbers, st.lists(numbers).map(tuple)),
    by_colour=st.dictionaries(st.sampled_from(Colour), st.booleans()),
    by_pair=st.dictionaries(st.tuples(numbers, numbers), st.builds(Circle, st.just(0.5))),
    shape=shapes,
    other=st.none() | st.builds(Fixed, numbers, numbers, numbers) | st.builds(Lines, st.none() | numbers, st.binary()),
    point=st.builds(Point, st.binary(), numbers),
)


@given(everything)
def test_every_value_comes_back_through_json(value: Everything) -> None:
    assert from_plain(Everything, json.loads(json.dumps(to_plain(value)))) == value


EXAMPLE = Everything(
    number=1,
    share=0.5,
    text="t",
    flag=True,
    raw=b"\x00\xff",
    maybe=None,
    colour=Colour.RED,
    level=Level.LOW,
    mixed="m",
    literal="a",
    pair=(1, b"p"),
    many=(Colour.RED, Colour.BLUE),
    names=frozenset({"n", "m"}),
    by_name={"c": Circle(1.0)},
    by_number={-3: (1, 2)},
    by_colour={Colour.BLUE: False},
    by_pair={(0, 1): Circle(2.0)},
    shape=Square(2, Circle(3.0)),
    other=Lines(2, b","),
    point=Point(b"k", 9),
)


def test_the_document_is_for_people_too() -> None:
    plain = to_plain(EXAMPLE)
    assert isinstance(plain, dict)
    assert plain["raw"] == "00ff"
    assert plain["colour"] == "red"
    assert plain["level"] == 1
    assert plain["shape"] == {"is": "Square", "side": 2, "inner": {"is": "Circle", "radius": 3.0}}
    assert plain["by_number"] == {"-3": [1, 2]}
    assert plain["by_colour"] == {"blue": False}
    assert plain["by_pair"] == [[[0, 1], {"radius": 2.0}]]
    assert plain["names"] == ["m", "n"]
    assert "derived" not in plain


WRONG: dict[str, tuple[list[str | int], Any, str]] = {
    "a text for a number": (["number"], "1", "number: a whole number was expected, not '1'"),
    "true for a number": (["number"], True, "number: a whole number was expected, not True"),
    "a fraction for a whole number": (["number"], 1.0, "number: a whole number"),
    "a number for true": (["flag"], 1, "flag: true or false"),
    "null for a text": (["text"], None, "text: a text was expected, not None"),
    "true for a share": (["share"], True, "share: a number"),
    "infinity": (["share"], float("inf"), "share: a finite number"),
    "no hexadecimal": (["raw"], "0g", "raw: a text of hexadecimal digits"),
    "no such colour": (["colour"], "green", "colour: one of red, blue was expected, not 'green'"),
    "no such level": (["level"], 3, "level: one of 1, 2"),
    "a list for a level": (["level"], [1], "level: one of 1, 2"),
    "no such literal": (["literal"], "c", "literal: one of a, b"),
    "nothing of the union": (["mixed"], 1.5, "mixed: int or str or list"),
    "wrong within the union": (["mixed"], [1, "2"], "mixed.1: a whole number"),
    "wrong in the optional": (["maybe"], "x", "maybe: int or NoneType"),
    "one too many in a pair": (["pair"], [1, "00", 2], "pair: 2 values were expected, not 3"),
    "wrong in a pair": (["pair", 1], 3, "pair.1: a text of hexadecimal digits"),
    "wrong in a list": (["many", 1], "green", "many.1: one of red, blue"),
    "a text for a list": (["many"], "red", "many: a list was expected"),
    "twice in a set": (["names"], ["a", "a"], "names: a set was expected"),
    "twice in a mapping": (["by_pair"], [[[0, 1], {"radius": 1.0}]] * 2, "by_pair: a mapping was expected"),
    "wrong in a mapping": (["by_name", "c", "radius"], "big", "by_name.c.radius: a number was expected, not 'big'"),
    "a list for a mapping": (["by_name"], [], "by_name: an object was expected"),
    "a name that is no number": (["by_number"], {"x": []}, "by_number.x: a whole number was expected as name"),
    "a number in other clothes": (["by_number"], {"03": []}, "by_number.03: a whole number"),
    "a name that is no colour": (["by_colour"], {"green": True}, "by_colour.green: one of red, blue"),
    "an unknown class": (["shape", "is"], "Line", "shape.is: one of Circle, Square was expected, not 'Line'"),
    "a class that is a list": (["shape", "is"], [], "shape.is: one of Circle, Square"),
    "deep in a union": (["shape", "inner", "radius"], None, "shape.inner.radius: a number"),
    "an unknown field": (["point", "y"], 1, "point.y: Point has no such field"),
    "an unknown field at the top": (["more"], 1, "more: Everything has no such field"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_by_its_place(case: str) -> None:
    path, value, message = WRONG[case]
    plain: Any = json.loads(json.dumps(to_plain(EXAMPLE)))
    inner = plain
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(ValueError) as caught:
        from_plain(Everything, plain)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", [name for name in Everything.__dataclass_fields__ if name != "derived"])
def test_no_field_may_be_missing(name: str) -> None:
    plain: Any = to_plain(EXAMPLE)
    del plain[name]
    with pytest.raises(ValueError, match=f"^{name}: Everything needs this field"):
        from_plain(Everything, plain)


@pytest.mark.parametrize("plain", [None, [], "text", 3])
def test_a_document_of_another_kind_is_refused(plain: object) -> None:
    with pytest.raises(ValueError, match=r"^the document: an object"):
        from_plain(Everything, plain)


def test_what_could_not_be_read_again_is_not_written() -> None:
    with pytest.raises(ValueError, match="radius: a number was expected, not 'wide'"):
        to_plain(Circle("wide"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="radius: a finite number"):
        to_plain(Circle(float("nan")))
    with pytest.raises(ValueError, match="inner: Circle or Square or NoneType was expected"):
        to_plain(Square(1, Point(b"", 1)))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Ambiguous:
    value: str | bytes


def test_members_that_nobody_could_tell_apart_are_no_codec() -> None:
    with pytest.raises(TypeError, match="tell apart"):
        to_plain(Ambiguous("x"))


PROOF = Proof(3, 300, 2**64 - 1)
OF_THE_PRODUCT: list[tuple[Any, Any]] = [
    (Inputs, Inputs((Segment("/in/\udcff name", 0, 10, 10, 1_700_000_000_000_000_001, 1),))),
    (PartitionMap, PartitionMap((Boundary(b"\x00k", 1, 2), Boundary(b"z", 0, 2**40)), (0, 0, 1))),
    (Report, SortReport(PROOF, (PROOF, Proof()), 1.25)),
    (Report, ShuffleReport(PROOF)),
    (Report, MergeReport((OutputFile(4, PROOF, b"\n", b"\xff" * 10),))),
    (Goal, Goal(GoalStage.SORT, declared={2: (PROOF,)}, send=((1, 2),), wants=WorkerPhase.SORTING)),
    (Format, Fixed(100, 0, 10)),
    (dict[int, Report], {0: ShuffleReport(PROOF)}),
]


@pytest.mark.parametrize(("declared", "value"), OF_THE_PRODUCT)
def test_the_records_of_the_sort_come_back(declared: Any, value: Any) -> None:
    assert from_plain(declared, json.loads(json.dumps(to_plain(value, declared)))) == value


@dataclass(frozen=True)
class Placed:
    folder: Path
    file: Path | None = None


@pytest.mark.parametrize("placed", [Placed(Path("/a/b"), Path("c")), Placed(Path())])
def test_paths(placed: Placed) -> None:
    assert from_plain(Placed, json.loads(json.dumps(to_plain(placed)))) == placed
    with pytest.raises(ValueError, match="folder: a path was expected"):
        from_plain(Placed, {"folder": 1, "file": None})
