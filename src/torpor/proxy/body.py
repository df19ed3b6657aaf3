"""Find the end of a body.

The bytes after a request's body are not forwarded with it: they would be a second request that was not judged. A complete
response is distinguished from a broken one. The bytes themselves are not changed.
"""

import re
from enum import Enum, auto
from typing import assert_never

from torpor.proxy.request_head import BadHead, Chunked, Framing, Length, NoBody, UntilClose, is_trailer

LONGEST_CHUNK_LINE_BYTES = 4096
LARGEST_TRAILER_BYTES = 16 * 1024
_CHUNK_TOO_LONG = "A chunk of the body is longer than it says."
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\x09\x20-\x7e\x80-\xff]*)?")


class _BodyState(Enum):
    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILER = auto()
    REST = auto()
    DONE = auto()


class Body:
    """Tracks one body whose bytes arrive in pieces of any size."""

    __slots__ = ("_is_chunked", "_left", "_line", "_reading", "_trailer_bytes")

    def __init__(self, framing: Framing) -> None:
        self._line = b""
        self._left = 0
        self._trailer_bytes = 0
        self._is_chunked = False
        match framing:
            case NoBody():
                self._reading = _BodyState.DONE
            case Length(size_bytes):
                self._reading, self._left = _BodyState.DATA, size_bytes
            case Chunked():
                self._reading, self._is_chunked = _BodyState.SIZE, True
            case UntilClose():
                self._reading = _BodyState.REST
            case _:
                assert_never(framing)

    @property
    def is_complete(self) -> bool:
        return self._reading is _BodyState.DONE

    @property
    def may_end(self) -> bool:
        """Whether the body is complete if the connection ends now."""
        return self._reading in (_BodyState.DONE, _BodyState.REST)

    def take(self, data: bytes) -> int:
        """How many of these bytes belong to the body; raises BadHead for malformed chunks."""
        if self._reading is _BodyState.REST:
            return len(data)
        at = 0
        while at < len(data) and self._reading is not _BodyState.DONE:
            at = self._take_data(data, at) if self._reading is _BodyState.DATA else self._take_line(data, at)
        return at

    def _take_data(self, data: bytes, at: int) -> int:
        taken = min(self._left, len(data) - at)
        self._left -= taken
        if self._left == 0:
            self._reading = _BodyState.DATA_END if self._is_chunked else _BodyState.DONE
        return at + taken

    def _take_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\n", at)
        stop = len(data) if end < 0 else end + 1
        self._line += data[at:stop]
        if len(self._line) > LONGEST_CHUNK_LINE_BYTES:
            raise BadHead(400, "A line between the chunks of the body is too long.")
        if self._reading is _BodyState.DATA_END and self._line[:1] not in (b"", b"\r"):
            # Checked at once, so that the bad line is not forwarded.
            raise BadHead(400, _CHUNK_TOO_LONG)
        if end >= 0:
            if not self._line.endswith(b"\r\n") or b"\r" in self._line[:-2] or b"\0" in self._line:
                raise BadHead(400, "A line between the chunks of the body does not end in CR LF.")
            line, self._line = self._line[:-2], b""
            self._understand(line)
        return stop

    def _understand(self, line: bytes) -> None:
        if self._reading is _BodyState.SIZE:
            match = _CHUNK_LINE.fullmatch(line)
            if match is None:
                raise BadHead(400, "The size of a chunk of the body is not a number.")
            self._left = int(match[1], 16)
            self._reading = _BodyState.DATA if self._left else _BodyState.TRAILER
        elif self._reading is _BodyState.DATA_END:
            if line:
                raise BadHead(400, _CHUNK_TOO_LONG)
            self._reading = _BodyState.SIZE
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > LARGEST_TRAILER_BYTES:
                raise BadHead(431, "The trailer of the body is too long.")
            if not line:
                self._reading = _BodyState.DONE
            elif not is_trailer(line):
                raise BadHead(400, "The trailer of the body has a line that is not allowed there.")
