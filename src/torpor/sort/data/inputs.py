"""Find the input files of a worker, cut them into ranges and chunks, and read them.

A position is a byte offset in all segments laid end to end. A line without a newline at the end of its file gets one, and
positions and sizes include it.
"""
# ruff: noqa: A002 - format is the product's word for it

import errno
import os
import stat
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import assert_never

from torpor.sort.data.files import to_sort_failed
from torpor.sort.data.segments import Chunk, Inputs, Segment
from torpor.sort.errors import SortFailed, SortRefused
from torpor.sort.kernels.sample import positions
from torpor.sort.record import Fixed, Format, Lines
from torpor.sort.sizes import KIB, MIB

MAX_LINE = 16 * MIB
"""Including its newline. Each thread holds a whole line several times, regardless of `--memory`."""
MEASURED = 256 * MIB
"""How far a line that is too long is measured for the error message, in each direction: a file can be one line of any size."""
MAX_SAMPLED_KEY = 1 * KIB
"""A boundary need not be an existing key, so it need not be longer than what distinguishes keys."""
HELD_OPEN = 16
"""The number of files that a reader keeps open. Beyond it, only files that are being read are open."""
FIRST_WINDOW, LARGEST_WINDOW = 4 * KIB, 1 * MIB
"""How much is read at once to find the end of a line: first, and at most."""
NEWLINE = b"\n"


# ---- which files


def find(paths: Sequence[Path], format: Format) -> Inputs:
    """The files, and the files below directories except hidden ones. A directory without files has no records."""
    return Inputs(tuple(_segment(file, format) for path in paths for file in _files(path)))


def file_heads(paths: Sequence[Path], size: int) -> Iterator[tuple[str, bytes]]:
    """Each file with its first bytes. `find` refuses what is not a file."""
    for path in paths:
        for file in _files(path):
            # Opening a pipe would wait for its writer.
            if stat.S_ISREG(_stat(file).st_mode):
                try:
                    with Path(file).open("rb") as opened:
                        yield file, opened.read(size)
                except OSError as error:
                    raise _refused(error, file, "the input file") from error


def _files(path: Path) -> list[str]:
    top = str(path.absolute())
    if not stat.S_ISDIR(_stat(top).st_mode):
        return [top]
    found: list[str] = []
    unread = [top]
    while unread:
        directory = unread.pop()
        for entry in _entries(directory):
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                unread.append(entry.path)
            else:
                found.append(entry.path)
    # All paths have the same beginning, so this is the order of their relative paths.
    return sorted(found, key=os.fsencode)


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError as error:
        raise _refused(error, directory, "the input directory") from error


def _stat(path: str) -> os.stat_result:
    try:
        return Path(path).stat()
    except OSError as error:
        raise _refused(error, path, "the input") from error


def _refused(error: OSError, path: str, what: str) -> SortRefused:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return SortRefused("missing_input", f"{what} {path} does not exist; allowed are files and directories")
    return SortRefused("unreadable_input", f"{what} {path} cannot be read: {error.strerror}")


def _segment(path: str, format: Format) -> Segment:
    facts = _stat(path)
    if stat.S_ISDIR(facts.st_mode):
        # Following the link could lead to a loop, and leaving it out would lose its records without a message.
        raise SortRefused(
            "special_input", f"the input {path} is a link to a directory; give that directory as an input of its own"
        )
    if not stat.S_ISREG(facts.st_mode):
        raise SortRefused("special_input", f"the input {path} is neither a file nor a directory, and only these can be sorted")
    try:
        # Only opening a file shows whether it can be read.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            last = os.pread(descriptor, 1, facts.st_size - 1) if facts.st_size else NEWLINE
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _refused(error, path, "the input file") from error
    match format:
        case Fixed(length=length):
            if facts.st_size % length:
                raise SortRefused(
                    "truncated",
                    f"the input file {path} has {facts.st_size} bytes, not a whole number of records of {length} bytes each",
                )
            added = 0
        case Lines():
            added = int(last != NEWLINE)
        case _:
            assert_never(format)
    return Segment(path, 0, facts.st_size, facts.st_size, facts.st_mtime_ns, added)


def check_unchanged(inputs: Inputs) -> None:
    """SortFailed if a file has changed since it was found."""
    for path, segment in {segment.path: segment for segment in inputs.segments}.items():
        try:
            facts = Path(path).stat()
        except OSError as error:
            raise to_sort_failed(error, path, "checking the input file") from error
        _compare(segment, facts)


def _compare(segment: Segment, facts: os.stat_result) -> None:
    if facts.st_size != segment.size:
        raise SortFailed(
            f"the input file {segment.path} was changed during the sort: from {segment.size} to {facts.st_size} bytes"
        )
    if facts.st_mtime_ns != segment.mtime_ns:
        raise SortFailed(f"the input file {segment.path} was changed during the sort: it was written again")


# ---- reading


@dataclass(slots=True)
class _OpenInput:
    descriptor: int
    users: int = 0


class InputReader:
    """Read anywhere in the inputs, from any thread. SortFailed names a file that fails, ends early or was changed."""

    def __init__(self, inputs: Inputs, format: Format) -> None:
        self.inputs = inputs
        self.format = format
        self._held: OrderedDict[str, _OpenInput] = OrderedDict()
        self._lock = threading.Lock()

    def __enter__(self) -> "InputReader":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def read(self, chunk: Chunk, out: memoryview) -> int:
        """Fill `out`, which may be larger, with the chunk. Returns the size of the chunk."""
        segment = self.inputs.segments[chunk.segment]
        size = min(chunk.size, segment.end - chunk.start)
        self._fill(segment, chunk.start, out[:size])
        if size < chunk.size:
            out[size : chunk.size] = NEWLINE
        return chunk.size

    def at(self, segment: Segment, start: int, size: int) -> bytes:
        found = bytearray(size)
        self._fill(segment, start, memoryview(found))
        return bytes(found)

    def close(self) -> None:
        """No thread may be reading."""
        with self._lock:
            for held in self._held.values():
                os.close(held.descriptor)
            self._held.clear()

    def _fill(self, segment: Segment, start: int, out: memoryview) -> None:
        with self._descriptor(segment) as descriptor:
            while out:
                try:
                    size = os.preadv(descriptor, [out], start)
                except OSError as error:
                    raise to_sort_failed(error, segment.path, "reading the input file") from error
                if not size:
                    raise SortFailed(
                        f"the input file {segment.path} ends at byte {start}, but had {segment.size} bytes when it was found"
                    )
                out, start = out[size:], start + size

    @contextmanager
    def _descriptor(self, segment: Segment) -> Iterator[int]:
        with self._lock:
            held = self._held.get(segment.path) or self._opened(segment)
            self._held.move_to_end(segment.path)
            held.users += 1
        try:
            yield held.descriptor
        finally:
            with self._lock:
                held.users -= 1

    def _opened(self, segment: Segment) -> _OpenInput:
        idle = [path for path, held in self._held.items() if not held.users]
        for path in idle[: max(0, len(self._held) + 1 - HELD_OPEN)]:
            os.close(self._held.pop(path).descriptor)
        try:
            descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise to_sort_failed(error, segment.path, "opening the input file") from error
        try:
            _compare(segment, os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        held = self._held[segment.path] = _OpenInput(descriptor)
        return held


def _newline_from(reader: InputReader, segment: Segment, start: int, stop: int) -> int | None:
    """The offset of the first newline in start..stop."""
    window = FIRST_WINDOW
    while start < stop:
        data = reader.at(segment, start, min(window, stop - start))
        found = data.find(NEWLINE)
        if found >= 0:
            return start + found
        start, window = start + len(data), min(window * 4, LARGEST_WINDOW)
    return None


def _newline_before(reader: InputReader, segment: Segment, start: int, stop: int) -> int | None:
    """The offset of the last newline in start..stop."""
    window = FIRST_WINDOW
    while start < stop:
        low = max(start, stop - window)
        found = reader.at(segment, low, stop - low).rfind(NEWLINE)
        if found >= 0:
            return low + found
        stop, window = low, min(window * 4, LARGEST_WINDOW)
    return None


def _behind_line(reader: InputReader, segment: Segment, begin: int, searched: int) -> int:
    """The end of the line that begins at or before `begin` and has no newline before `searched`; an added newline counts."""
    limit = begin + MAX_LINE
    found = _newline_from(reader, segment, searched, min(segment.end, limit))
    if found is not None:
        return found + 1
    if segment.end + segment.added <= limit:
        return segment.end + segment.added
    raise _too_long(reader, segment, begin, limit)


def _too_long(reader: InputReader, segment: Segment, begin: int, searched: int) -> SortFailed:
    """The error for a line around `begin` that has no newline up to `searched`."""
    low, high = max(segment.start, begin - MEASURED), min(segment.end, searched + MEASURED)
    before = _newline_before(reader, segment, low, begin)
    behind = _newline_from(reader, segment, searched, high)
    start = low if before is None else before + 1
    stop = high if behind is None else behind + 1
    is_measured = (before is not None or low == segment.start) and (behind is not None or high == segment.end)
    size = f"{'' if is_measured else 'more than '}{stop - start}"
    return SortFailed(
        f"the input file {segment.path} has a line of {size} bytes at byte {start}; a line may have at most {MAX_LINE}, "
        "newline included; shorten or remove it, or choose --format fixed for records without newlines"
    )


# ---- cutting


def cut(inputs: Inputs, format: Format, workers: int) -> tuple[Inputs, ...]:
    """Divide the inputs among the workers: contiguous ranges of whole records, each with about the same number of bytes."""
    size, bases = inputs.size, inputs.bases
    with InputReader(inputs, format) as reader:
        cuts = [0]
        for worker in range(1, workers):
            cuts.append(max(cuts[-1], _aligned(reader, bases, size * worker // workers, size)))
    cuts.append(size)
    return tuple(
        Inputs(tuple(_within(inputs, bases, low, high, last=worker == workers - 1)))
        for worker, (low, high) in enumerate(pairwise(cuts))
    )


def _aligned(reader: InputReader, bases: Sequence[int], position: int, size: int) -> int:
    """A place for a cut near this position."""
    if position >= size:
        return size
    index = bisect_right(bases, position) - 1
    segment, base = reader.inputs.segments[index], bases[index]
    match reader.format:
        case Fixed(length=length):
            return position - (position - base) % length
        case Lines():
            if position == base:
                return position
            # The byte after a newline is a valid place, so the search begins one byte earlier.
            offset = segment.start + position - base - 1
            return base + _behind_line(reader, segment, offset, offset) - segment.start
        case _:
            assert_never(reader.format)


def _within(inputs: Inputs, bases: Sequence[int], low: int, high: int, *, last: bool) -> Iterator[Segment]:
    for segment, base in zip(inputs.segments, bases, strict=True):
        begin, end = max(low, base), min(high, base + segment.length)
        if begin < end:
            yield Segment(
                segment.path,
                segment.start + begin - base,
                min(segment.end, segment.start + end - base),
                segment.size,
                segment.mtime_ns,
                segment.added if end == base + segment.length else 0,
            )
        elif not segment.length and (low <= base < high or (last and base == high)):
            yield segment  # A reader checks that it stays empty.


def chunks(inputs: Inputs, format: Format, chunk_bytes: int) -> list[Chunk]:
    """Chunks of at most so many bytes, or of one record that is longer."""
    found: list[Chunk] = []
    with InputReader(inputs, format) as reader:
        for index, (segment, base) in enumerate(zip(inputs.segments, inputs.bases, strict=True)):
            for start, size in _pieces(reader, segment, chunk_bytes):
                found.append(Chunk(len(found), index, start, size, base + start - segment.start))
    return found


def _pieces(reader: InputReader, segment: Segment, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    start, finish = segment.start, segment.end + segment.added
    while start < finish:
        stop = min(finish, start + chunk_bytes)
        match reader.format:
            case Fixed(length=length):
                stop = start + max(length, (stop - start) // length * length)
            case Lines():
                if stop < finish:
                    newline = _newline_before(reader, segment, start, stop)
                    stop = _behind_line(reader, segment, start, stop) if newline is None else newline + 1
            case _:
                assert_never(reader.format)
        yield start, stop - start
        start = stop


# ---- samples of the keys


def sample(inputs: Inputs, format: Format, count: int, seed: int) -> list[tuple[bytes, int]]:
    """About `count` keys with their positions; the same ones for the same arguments. Every byte is equally likely to be hit."""
    bases = inputs.bases
    with InputReader(inputs, format) as reader:
        match format:
            case Fixed(length=length):
                hits = [int(number) * length for number in positions(inputs.size // length, count, seed)]
                return [_record_at(reader, format, bases, position) for position in hits]
            case Lines():
                return list(_lines_behind(reader, format, bases, positions(inputs.size, count, seed).tolist()))
            case _:
                assert_never(format)


def _record_at(reader: InputReader, format: Fixed, bases: Sequence[int], position: int) -> tuple[bytes, int]:
    index = bisect_right(bases, position) - 1
    segment = reader.inputs.segments[index]
    offset = segment.start + position - bases[index] + format.key_offset
    return reader.at(segment, offset, min(format.key_length, MAX_SAMPLED_KEY)), position


def _lines_behind(
    reader: InputReader, format: Lines, bases: Sequence[int], ascending: Sequence[int]
) -> Iterator[tuple[bytes, int]]:
    """The line that begins after each of these positions. After a segment's last line comes its first."""
    until, found = 0, (b"", 0)
    for position in ascending:
        # Many positions can be in one long line. The result for the first is used for the others, so no byte is read twice.
        if position >= until:
            index = bisect_right(bases, position) - 1
            segment, base = reader.inputs.segments[index], bases[index]
            offset = min(segment.start + position - base, segment.end)
            behind = _behind_line(reader, segment, offset, offset)
            until = base + behind - segment.start
            begin = behind if behind < segment.end else segment.start
            found = _key_at(reader, format, segment, begin), base + begin - segment.start
        yield found


def _key_at(reader: InputReader, format: Lines, segment: Segment, begin: int) -> bytes:
    window = MAX_SAMPLED_KEY if format.field is None else FIRST_WINDOW
    while True:
        data = reader.at(segment, begin, min(window, segment.end - begin))
        line, newline, _ = data.partition(NEWLINE)
        if format.field is None:
            return line
        fields = line.split(format.delimiter, format.field)
        key = fields[format.field - 1] if len(fields) >= format.field else b""
        is_whole = newline or len(fields) > format.field or begin + len(data) == segment.end
        if is_whole or len(key) >= MAX_SAMPLED_KEY or window >= MAX_LINE:
            return key[:MAX_SAMPLED_KEY]
        window *= 8
