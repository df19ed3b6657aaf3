"""Compress and decompress streams with zstd in bounded memory."""

import sys
from collections.abc import Iterable, Iterator

from torpor.archives.entries import ArchiveMismatch

if sys.version_info >= (3, 14):
    from compression.zstd import CompressionParameter, ZstdCompressor, ZstdDecompressor, ZstdError
else:
    from backports.zstd import CompressionParameter, ZstdCompressor, ZstdDecompressor, ZstdError

LEVEL = 3
WORKERS = 2
"""With workers, zstd compresses in parallel with the thread that reads and hashes. Their number does not change the output."""
JOB_BYTES = 2 << 20
"""The input of one worker at a time; zstd's default would hold 100 MB."""
PIECE_BYTES = 1 << 20
GATHER_BYTES = 1 << 18


def compressor(workers: int = 0) -> "ZstdCompressor":
    return ZstdCompressor(
        options={
            CompressionParameter.compression_level: LEVEL,
            CompressionParameter.checksum_flag: 1,
            CompressionParameter.nb_workers: workers,
            CompressionParameter.job_size: JOB_BYTES if workers else 0,
        }
    )


def compressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """One zstd frame. Small pieces are collected first, because a call for each tar header would be slow."""
    frame = compressor(WORKERS)
    gathered = bytearray()
    for piece in pieces:
        if len(piece) < GATHER_BYTES:
            gathered += piece
            if len(gathered) < GATHER_BYTES:
                continue
            piece, gathered = bytes(gathered), bytearray()
        elif gathered:
            if squeezed := frame.compress(bytes(gathered)):
                yield squeezed
            gathered = bytearray()
        if squeezed := frame.compress(piece):
            yield squeezed
    yield frame.compress(bytes(gathered), ZstdCompressor.FLUSH_FRAME)


def decompressed(chunks: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """The content of one or more frames, at most PIECE_BYTES at a time for any compression ratio."""
    frame: ZstdDecompressor | None = None
    try:
        for chunk in chunks:
            rest: bytes | memoryview = chunk
            while True:
                if frame is None:
                    if not rest:
                        break
                    frame = ZstdDecompressor()
                if piece := frame.decompress(rest, PIECE_BYTES):
                    yield piece
                rest = b""
                if frame.eof:
                    rest, frame = frame.unused_data, None
                elif frame.needs_input:
                    break
    except ZstdError as error:
        raise ArchiveMismatch(f"not readable as zstd: {error}") from error
    if frame is not None:
        raise ArchiveMismatch("truncated: the last zstd frame is incomplete")


def lines(pieces: Iterable[bytes], longest: int = 64 << 20) -> Iterator[bytes]:
    """The lines in a stream of bytes, without their ends."""
    rest = b""
    for piece in pieces:
        if b"\n" not in piece:
            rest += piece
            if len(rest) > longest:
                raise ArchiveMismatch(f"a line longer than {longest} bytes")
            continue
        first, *more = piece.split(b"\n")
        yield rest + first
        rest = more.pop()
        yield from more
    if rest:
        yield rest


class ByteReader:
    """Read exact numbers of bytes from a stream of pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")

    def pieces(self, length: int) -> Iterator[memoryview]:
        while length:
            if not self._piece:
                self._piece = memoryview(self._next())
            taken = self._piece[:length]
            self._piece = self._piece[len(taken) :]
            length -= len(taken)
            yield taken

    def exactly(self, length: int) -> bytes:
        if len(self._piece) >= length:
            taken = bytes(self._piece[:length])
            self._piece = self._piece[length:]
            return taken
        return b"".join(self.pieces(length))

    def is_at_end(self) -> bool:
        return not self._piece and not any(self._pieces)

    def _next(self) -> bytes:
        for piece in self._pieces:
            return piece
        raise ArchiveMismatch("truncated: the stream ends too early")
