"""Data is distinguished from pings and pongs, for any cut of the stream into pieces."""

import itertools
import random
import struct
from dataclasses import dataclass

import pytest

from torpor.proxy.frames import CONTROL, DATA, RawStreamParser, WebSocketParser, close_frame

TEXT, PING, PONG, CLOSE = 0x1, 0x9, 0xA, 0x8


@dataclass(frozen=True)
class Frame:
    opcode: int
    size: int
    masked: bool = False
    flags: int = 0x80
    length_bytes: int | None = None
    """In how many bytes the length is written, although fewer would do."""

    @property
    def is_data(self) -> bool:
        return self.opcode in DATA

    def encode(self) -> bytes:
        """As in RFC 6455, section 5.2."""
        mask = 0x80 if self.masked else 0
        fewest = 0 if self.size < 126 else 2 if self.size < 1 << 16 else 8
        match fewest if self.length_bytes is None else self.length_bytes:
            case 0:
                length = struct.pack("!B", self.size | mask)
            case 2:
                length = struct.pack("!BH", 126 | mask, self.size)
            case _:
                length = struct.pack("!BQ", 127 | mask, self.size)
        # A payload that looks like frames: a parser that lost its position would find them.
        payload = (b"\x81\x00" * (self.size // 2 + 1))[: self.size]
        return bytes([self.flags | self.opcode]) + length + (b"mask" if self.masked else b"") + payload


def carried(stream: bytes, cuts: tuple[int, ...]) -> list[bool]:
    frames = WebSocketParser()
    edges = (0, *cuts, len(stream))
    return [frames.take(stream[begin:end]) for begin, end in itertools.pairwise(edges)]


SIZES = (0, 1, 125, 126, 127, 65_535, 65_536)


@pytest.mark.parametrize("opcode", sorted(DATA | CONTROL))
@pytest.mark.parametrize("masked", [False, True])
def test_frames_of_every_kind_and_length_are_classified(opcode: int, masked: bool) -> None:
    for size in SIZES:
        frame = Frame(opcode, size, masked)
        assert WebSocketParser().take(frame.encode()) is frame.is_data
        assert WebSocketParser().take(frame.encode() * 3) is frame.is_data


@pytest.mark.parametrize("before", [PING, TEXT])
@pytest.mark.parametrize("after", [PING, TEXT])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("length_bytes", [None, 2, 8])
def test_frames_are_classified_with_every_pair_of_cuts(before: int, after: int, masked: bool, length_bytes: int | None) -> None:
    """Two frames between two pings, in three pieces, cut at every position."""
    middle = [Frame(before, 7, masked, length_bytes=length_bytes), Frame(after, 3, masked)]
    stream = b"".join(frame.encode() for frame in (Frame(PING, 2), *middle, Frame(PONG, 0)))
    expected = any(frame.is_data for frame in middle)
    for cuts in itertools.combinations(range(len(stream) + 1), 2):
        assert any(carried(stream, cuts)) is expected


def test_a_piece_counts_exactly_if_it_has_a_complete_data_header_or_payload() -> None:
    """Compared with a reference that knows the whole stream: random frames, random cuts."""
    dice = random.Random(20260301)
    for _ in range(300):
        frames = [
            Frame(
                dice.choice(sorted(DATA | CONTROL)),
                dice.choice([0, 1, 2, 125, 126, 200, 65_536]) if dice.random() < 0.2 else dice.randrange(20),
                masked=dice.random() < 0.5,
                flags=dice.choice([0x00, 0x80, 0xC0]),
            )
            for _ in range(dice.choice([1, 3, 12, 60]))
        ]
        stream, telling = b"", []
        for frame in frames:
            encoded = frame.encode()
            header = len(encoded) - frame.size
            # The last byte of the header decides; every byte after it is payload.
            telling += [False] * (header - 1) + [frame.is_data] * (1 + frame.size)
            stream += encoded
        count = dice.randrange(min(40, len(stream)) + 1)
        cuts = tuple(sorted(dice.randrange(len(stream) + 1) for _ in range(count)))
        edges = (0, *cuts, len(stream))
        assert carried(stream, cuts) == [any(telling[begin:end]) for begin, end in itertools.pairwise(edges)]
        if len(stream) < 5000:
            assert carried(stream, tuple(range(1, len(stream)))) == telling


def test_the_payload_is_not_kept() -> None:
    frames = WebSocketParser()
    header = Frame(TEXT, 1 << 40, length_bytes=8)
    assert frames.take(bytes([0x81]) + struct.pack("!BQ", 127, header.size))
    for _ in range(10):
        assert frames.take(b"x" * 100_000)
    assert len(frames._header) == 0
    assert frames._left == header.size - 1_000_000


@pytest.mark.parametrize("opcode", sorted(set(range(16)) - DATA - CONTROL))
def test_after_an_invalid_frame_every_byte_counts(opcode: int) -> None:
    frames = WebSocketParser()
    assert not frames.take(Frame(PING, 3).encode())
    assert frames.take(bytes([0x80 | opcode, 0]))
    assert frames.take(Frame(PING, 3).encode())
    assert not frames.take(b"")


def test_an_invalid_length_is_an_invalid_frame() -> None:
    frames = WebSocketParser()
    assert frames.take(b"\x89\xff" + b"\xff" * 8 + b"mask")
    assert frames.take(Frame(PING, 0).encode())


def test_every_byte_of_an_unknown_protocol_counts() -> None:
    assert RawStreamParser().take(b"x")
    assert not RawStreamParser().take(b"")


def test_a_frame_can_be_inserted_only_between_two_frames() -> None:
    stream = b"".join(Frame(kind, size, masked=True).encode() for kind, size in ((TEXT, 3), (PING, 0), (TEXT, 200)))
    ends = {0, 9, 15, len(stream)}
    for cut in range(len(stream) + 1):
        frames = WebSocketParser()
        frames.take(stream[:cut])
        assert frames.is_between is (cut in ends)
    frames.take(b"\x83\x00")
    assert not frames.is_between
    assert not RawStreamParser().is_between


def test_a_close_frame_has_its_code() -> None:
    assert close_frame(1001) == b"\x88\x02\x03\xe9"
    masked = close_frame(1001, is_masked=True)
    assert masked[1] & 0x80
    payload = bytes(byte ^ masked[2 + at % 4] for at, byte in enumerate(masked[6:]))
    assert payload == b"\x03\xe9"
    for raw in (close_frame(1008), masked):
        frames = WebSocketParser()
        assert not frames.take(raw)
        assert frames.is_between
