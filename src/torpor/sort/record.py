"""Define what a record is and which of its bytes are its key."""

from dataclasses import dataclass

from torpor.sort.errors import SortRefused

ALLOWED = "gensort, fixed:LENGTH:KEY_OFFSET:KEY_LENGTH, lines"


@dataclass(frozen=True, slots=True)
class Fixed:
    """Records of one length, binary or text. The bytes of the key are compared as unsigned numbers."""

    length: int
    key_offset: int
    key_length: int

    def __str__(self) -> str:
        return "gensort" if self == GENSORT else f"fixed:{self.length}:{self.key_offset}:{self.key_length}"


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of text, ordered as by `LC_ALL=C sort -s`: by the whole line or by one field."""

    field: int | None = None
    """Counted from 1."""
    delimiter: bytes = b""

    def __str__(self) -> str:
        return "lines" if self.field is None else f"lines:{self.field}:{self.delimiter.hex()}"


Format = Fixed | Lines

# A record of the ASCII variant has 100 bytes including CR LF, so both variants have one reader.
GENSORT = Fixed(length=100, key_offset=0, key_length=10)


def parse(text: str, *, key: int | None = None, delimiter: str | None = None) -> Format:
    """Parse `--format` with `--key` and `--delimiter`, or the `str` of a format."""
    match text.split(":"):
        case ["gensort"]:
            _no_field(text, key, delimiter)
            return GENSORT
        case ["fixed", *numbers]:
            _no_field(text, key, delimiter)
            return _fixed(text, numbers)
        case ["lines"]:
            return _lines(key, delimiter)
        case ["lines", field, delimiter_hex]:
            _no_field(text, key, delimiter)
            return _lines_from_text(text, field, delimiter_hex)
        case _:
            raise SortRefused("bad_format", f"the format {text!r} is unknown; allowed are {ALLOWED}")


def _fixed(text: str, numbers: list[str]) -> Fixed:
    if len(numbers) != 3 or not all(map(_is_number, numbers)):
        raise SortRefused(
            "bad_format", f"the format {text!r} is not fixed:LENGTH:KEY_OFFSET:KEY_LENGTH with three whole numbers"
        )
    length, offset, width = map(int, numbers)
    if not (0 < length <= MAX_RECORD and width > 0 and offset + width <= length):
        raise SortRefused("bad_format", f"in the format {text!r} the key is not within a record of 1 to {MAX_RECORD} bytes")
    return Fixed(length, offset, width)


def _lines(key: int | None, delimiter: str | None) -> Lines:
    if key is None and delimiter is None:
        return Lines()
    if key is None or delimiter is None:
        raise SortRefused(
            "bad_format", "--key and --delimiter go together: the number of the field, and the byte between fields"
        )
    # A byte that is not UTF-8 comes from the command line as a surrogate.
    encoded = delimiter.encode(errors="surrogateescape")
    if key < 1 or len(encoded) != 1 or encoded == b"\n":
        raise SortRefused(
            "bad_format", f"--key counts from 1 and --delimiter is one byte, not --key {key} --delimiter {delimiter!r}"
        )
    return Lines(key, encoded)


def _lines_from_text(text: str, field: str, delimiter_hex: str) -> Lines:
    try:
        delimiter = bytes.fromhex(delimiter_hex)
    except ValueError:
        delimiter = b""
    if not _is_number(field) or int(field) < 1 or len(delimiter) != 1 or delimiter == b"\n":
        raise SortRefused(
            "bad_format", f"the format {text!r} is not lines:FIELD:DELIMITER, a number from 1 and one byte in hexadecimal"
        )
    return Lines(int(field), delimiter)


def _is_number(text: str) -> bool:
    """Whether the text is a number of at most 18 digits. Larger numbers are meaningless here, and Python refuses to parse very
    long ones."""
    return text.isascii() and text.isdecimal() and len(text) <= 18


def _no_field(text: str, key: int | None, delimiter: str | None) -> None:
    if key is not None or delimiter is not None:
        raise SortRefused("bad_format", f"--key and --delimiter can be used only with --format lines, not with {text!r}")


# A record must fit several times into the smallest memory of a worker.
MAX_RECORD = 64 * 1024
