"""What does a worker read, said as a value?"""

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of one file, and by what one would notice that the file was changed."""

    path: str
    start: int
    end: int
    size: int
    """Of the whole file."""
    mtime_ns: int
    added: int = 0
    """1 where the range ends with a line that lacks its newline, which the reader adds."""

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
    """Of what the reader gives, an added newline included."""
    base: int
    """The position of the first byte."""
