"""Describe what a worker reads."""

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of one file, and the facts by which a change of the file is noticed."""

    path: str
    start: int
    end: int
    size: int
    """Of the whole file."""
    mtime_ns: int
    added: int = 0
    """1 if the range ends with a line without a newline, which the reader adds."""

    @property
    def length(self) -> int:
        return self.end - self.start + self.added


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that one worker reads, in order."""

    segments: tuple[Segment, ...] = ()

    @property
    def size(self) -> int:
        return sum(segment.length for segment in self.segments)

    @property
    def bases(self) -> tuple[int, ...]:
        """The position of each segment's first byte."""
        return tuple(accumulate((segment.length for segment in self.segments), initial=0))[:-1]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole records, contiguous in one segment."""

    number: int
    segment: int
    start: int
    """The offset in the file."""
    size: int
    """The bytes that the reader returns, including an added newline."""
    base: int
    """The position of the first byte."""
