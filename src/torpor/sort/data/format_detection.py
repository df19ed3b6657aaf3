"""Detect the format of the input when the user does not give it."""

import codecs
from collections.abc import Sequence
from pathlib import Path

from torpor.sort.data.inputs import file_heads
from torpor.sort.errors import SortRefused
from torpor.sort.record import GENSORT, Format, Lines
from torpor.sort.sizes import KIB

EXAMINED = 64 * KIB
"""The bytes that are examined of each file."""


def detect(paths: Sequence[Path]) -> Format:
    """Lines if every file begins as text, gensort if none does. Refused if both are possible. Empty files count as text."""
    return examine(paths) or Lines()


def format_message(form: Format) -> str:
    """The message for a user who did not choose the format."""
    kind = "UTF-8 text" if isinstance(form, Lines) else "not UTF-8 text"
    return f"format: {form}, because the input is {kind} (--format chooses another)"


def examine(paths: Sequence[Path]) -> Format | None:
    """As `detect`, but None if every file is empty."""
    text: list[str] = []
    binary: list[str] = []
    may_be_records = True
    for file, beginning in file_heads(paths, EXAMINED):
        if not beginning:
            continue
        if is_text(beginning):
            text.append(file)
            may_be_records = may_be_records and has_record_lines(beginning)
        else:
            binary.append(file)
    if text and binary:
        raise _unclear(f"the input {text[0]} is text, but {binary[0]} is not")
    if text and may_be_records:
        raise _unclear(f"every line of the input {text[0]} has exactly {GENSORT.length} bytes, as records of gensort have")
    return GENSORT if binary else Lines() if text else None


def is_text(beginning: bytes) -> bool:
    """Whether the bytes are UTF-8 without NUL. If the file is longer, its last character may be cut."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning, final=len(beginning) < EXAMINED)
    except UnicodeDecodeError:
        return False
    return b"\0" not in beginning


def has_record_lines(beginning: bytes) -> bool:
    """Whether every line has the length of a record, newline included. If the file is longer, its last line is cut."""
    *lines, last = beginning.split(b"\n")
    if any(len(line) + 1 != GENSORT.length for line in lines):
        return False
    if len(beginning) < EXAMINED:
        return len(last) in ((0, GENSORT.length) if lines else (GENSORT.length,))
    return bool(lines) and len(last) < GENSORT.length


def _unclear(why: str) -> SortRefused:
    return SortRefused("unclear_format", f"{why}; choose with --format lines or --format {GENSORT}")
