"""Data for the kernels: of every format, with few different bytes, so that keys tie early and late."""

from hypothesis import strategies as st

from torpor.sort.record import GENSORT, Fixed, Format, Lines

FORMATS: tuple[Format, ...] = (
    GENSORT,
    Fixed(1, 0, 1),
    Fixed(3, 1, 2),
    Fixed(7, 0, 7),
    Fixed(8, 3, 5),
    Fixed(12, 11, 1),
    Fixed(13, 2, 6),
    Fixed(33, 0, 33),
    Fixed(40, 5, 33),
    Lines(),
    Lines(1, b","),
    Lines(2, b","),
    Lines(3, b","),
    Lines(2, b"\0"),
)

# So few that keys often tie: the lowest, the highest, a delimiter and two that differ in one bit.
SYMBOLS = st.sampled_from([0, 0, 0, 1, 44, 97, 97, 99, 255])


@st.composite
def data_of(draw: st.DrawFn, format: Format, most: int = 40) -> bytes:  # noqa: A002
    if isinstance(format, Fixed):
        return b"".join(draw(st.lists(_record(format.length), max_size=most)))
    return b"".join(line + b"\n" for line in draw(st.lists(_line(), max_size=most)))


def _record(length: int) -> st.SearchStrategy[bytes]:
    # The byte that differs can be anywhere: hypothesis would rarely find two records that differ only late.
    late = st.tuples(st.integers(0, length - 1), SYMBOLS).map(
        lambda drawn: bytes(drawn[0]) + bytes([drawn[1]]) + bytes(length - drawn[0] - 1)
    )
    return late | st.lists(SYMBOLS, min_size=length, max_size=length).map(bytes)


def _line() -> st.SearchStrategy[bytes]:
    short = st.lists(SYMBOLS, max_size=12).map(bytes)
    long = st.tuples(st.sampled_from([5, 10, 63, 64, 127, 128, 129, 300]), short).map(lambda drawn: b"a" * drawn[0] + drawn[1])
    return short | long


@st.composite
def any_data(draw: st.DrawFn, most: int = 40) -> tuple[Format, bytes]:
    chosen = draw(st.sampled_from(FORMATS))
    return chosen, draw(data_of(chosen, most))
