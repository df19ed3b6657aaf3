"""Tell the data of a stream from its keep-alive messages, and find where a close frame can be inserted.

An unused WebSocket sends pings without end. Only the headers of the frames are parsed; payloads are neither read nor kept.
"""

from typing import Protocol

# Text, binary and continuation frames. Close, ping and pong only show that the other side is connected.
DATA = frozenset({0x0, 0x1, 0x2})
CONTROL = frozenset({0x8, 0x9, 0xA})
_KNOWN = DATA | CONTROL

# How many bytes of length follow the second byte, by its value.
_LENGTH_BYTES = {126: 2, 127: 8}
_MASK_BYTES = 4
_LONGEST_SHORT_FRAME_BYTES = 2 + _MASK_BYTES + 125
_LONGEST_PAYLOAD_BYTES = 1 << 63


def close_frame(code: int, *, is_masked: bool = False) -> bytes:
    """A frame that closes a WebSocket. Frames of a client are masked; here with zeros, because nothing has to be hidden."""
    return (b"\x88\x82\x00\x00\x00\x00" if is_masked else b"\x88\x02") + code.to_bytes(2)


class StreamParser(Protocol):
    @property
    def is_between(self) -> bool:
        """Whether the position is between two frames, so that one can be inserted."""
        ...

    def take(self, piece: bytes) -> bool:
        """Whether any of these bytes, the next of the stream, are data."""
        ...


class RawStreamParser:
    """An unknown protocol: every byte counts as data."""

    is_between = False

    def take(self, piece: bytes) -> bool:
        return bool(piece)


class WebSocketParser:
    """One direction of a WebSocket, in pieces of any size."""

    __slots__ = ("_header", "_is_data", "_is_lost", "_left")

    def __init__(self) -> None:
        self._header = b""
        """The received part of an incomplete header."""
        self._left = 0
        """Bytes of the present payload that have not arrived."""
        self._is_data = False
        self._is_lost = False
        """The stream is not a valid WebSocket: from here on every byte counts as data, which keeps the workspace awake."""

    @property
    def is_between(self) -> bool:
        return not (self._left or self._header or self._is_lost)

    def take(self, piece: bytes) -> bool:
        if not (self._left or self._header or self._is_lost) and len(piece) > 1:
            # One short, complete frame: the common case for keystrokes and pings.
            kind, second = piece[0] & 0x0F, piece[1]
            if second & 0x7F < 126 and kind in _KNOWN and len(piece) == (second & 0x7F) + (6 if second > 0x7F else 2):
                return kind in DATA
        found = False
        at, end = 0, len(piece)
        while at < end:
            if self._is_lost:
                return True
            if self._left:
                found = found or self._is_data
                taken = min(self._left, end - at)
                self._left -= taken
                at += taken
                continue
            if not self._header:
                at, has_data = _past_short_frames(piece, at)
                found = found or has_data
            wanted = _header_bytes(self._header) - len(self._header)
            self._header += piece[at : at + wanted]
            at += wanted
            if len(self._header) == _header_bytes(self._header):
                self._begin(self._header)
                # An empty payload counts as data too.
                found = found or self._is_data or self._is_lost
        return found

    def _begin(self, header: bytes) -> None:
        opcode = header[0] & 0x0F
        self._left = _payload_bytes(header)
        self._is_data = opcode in DATA
        self._is_lost = opcode not in _KNOWN or self._left >= _LONGEST_PAYLOAD_BYTES
        self._header = b""


def _past_short_frames(piece: bytes, at: int) -> tuple[int, bool]:
    """The position after the short, complete frames in this piece, and whether any was data. Thousands of such frames must cost
    little."""
    found = False
    last = len(piece) - _LONGEST_SHORT_FRAME_BYTES
    while at <= last:
        kind, second = piece[at] & 0x0F, piece[at + 1]
        size = second & 0x7F
        if size > 125 or kind not in _KNOWN:
            break
        found = found or kind in DATA
        at += size + (6 if second > 0x7F else 2)
    return at, found


def _header_bytes(header: bytes) -> int:
    """How long the header is, as far as its received bytes show."""
    if len(header) < 2:
        return 2
    return 2 + _LENGTH_BYTES.get(header[1] & 0x7F, 0) + (_MASK_BYTES if header[1] & 0x80 else 0)


def _payload_bytes(header: bytes) -> int:
    short = header[1] & 0x7F
    length_bytes = _LENGTH_BYTES.get(short)
    return short if length_bytes is None else int.from_bytes(header[2 : 2 + length_bytes])
