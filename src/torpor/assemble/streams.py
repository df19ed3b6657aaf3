"""Make standard output and standard error drop a line instead of raising or waiting.

A full disk, a closed pipe, or a reader that has stopped reading (a pager, Ctrl-S) must not stop a loop that logs or the
shutdown: everything runs on the event loop.
"""

import io
import os
import select
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from torpor import metrics

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Notice = Callable[[int], str]

# How long a write waits for a slow reader. After a lost line no write waits until the reader has caught up.
PATIENCE_S = 0.2
# A pipe that is ready accepts this much without waiting.
PIECE_BYTES = select.PIPE_BUF


def lossy_stream(stream: TextIO | None, notice: Notice) -> TextIO:
    """The same stream. The first line that can be written again is preceded by `notice` of the number of lines lost."""
    raw = _LossyWriter(_descriptor_of(stream), notice)
    encoding = stream.encoding if stream is not None else "utf-8"
    # With line buffering a line comes in one piece, so it is written or dropped as a whole.
    return io.TextIOWrapper(raw, encoding, errors="backslashreplace", line_buffering=True)  # type: ignore[type-var]


def _descriptor_of(stream: TextIO | None) -> int:
    """Without a stream, the caller closed the descriptor before the start; its number may belong to any file now."""
    return stream.fileno() if stream is not None else os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


class _LossyWriter(io.RawIOBase):
    """Write whole lines, or count them as lost."""

    def __init__(self, descriptor: int, notice: Notice) -> None:
        self._descriptor = descriptor
        self._notice = notice
        self._lost = 0
        self._is_torn = False
        self._is_inside_lost_line = False

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        given = bytes(data)
        lines = self._without_rest_of_lost_line(given)
        if not lines:
            return len(given)
        if self._write_all(self._due_notice() + lines):
            self._lost, self._is_torn = 0, False
        else:
            self._lose(lines)
        return len(given)

    def _lose(self, lines: bytes) -> None:
        self._is_inside_lost_line = not lines.endswith(b"\n")
        count = lines.count(b"\n") + self._is_inside_lost_line
        self._lost += count
        metrics.log_lines_lost_total.inc(count)

    def _without_rest_of_lost_line(self, data: bytes) -> bytes:
        """A very long line comes in pieces; without the first one the others are useless."""
        if not self._is_inside_lost_line:
            return data
        _, ended, lines = data.partition(b"\n")
        self._is_inside_lost_line = not ended
        return lines

    def _due_notice(self) -> bytes:
        if not self._lost:
            return b""
        # When the disk filled up in the middle of a line, the beginning of the line was written.
        begin = "\n" if self._is_torn else ""
        return f"{begin}{self._notice(self._lost)}\n".encode(errors="backslashreplace")

    def _write_all(self, data: bytes) -> bool:
        rest = memoryview(data)
        try:
            while rest and self._is_ready():
                rest = rest[os.write(self._descriptor, rest[:PIECE_BYTES]) :]
        except OSError:
            pass
        self._is_torn |= 0 < len(rest) < len(data)
        return not rest

    def _is_ready(self) -> bool:
        """Whether a piece can be written without waiting; also true for a closed pipe, where the write then fails."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(0 if self._lost else PATIENCE_S * 1000))
