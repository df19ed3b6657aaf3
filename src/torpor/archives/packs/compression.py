"""Compress and decompress one zstd frame of known length."""

import sys

from torpor.archives.entries import ArchiveMismatch
from torpor.archives.frames import compressor

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError
else:
    from backports.zstd import ZstdDecompressor, ZstdError


def compress(data: bytes) -> bytes:
    frame = compressor()
    return frame.compress(data, frame.FLUSH_FRAME)


def decompress(stored: bytes | memoryview, raw: int) -> bytes:
    """The content of exactly one frame; ArchiveMismatch if it is not `raw` bytes long. Never produces more than that."""
    frame = ZstdDecompressor()
    try:
        data = frame.decompress(stored, raw + 1)
        while len(data) <= raw and not frame.eof:
            more = frame.decompress(b"", raw + 1 - len(data))
            if not more and frame.needs_input:
                break
            data += more
    except ZstdError as error:
        raise ArchiveMismatch(f"not readable as zstd: {error}") from error
    if len(data) != raw or not frame.eof or frame.unused_data:
        raise ArchiveMismatch(f"a frame has another length than {raw} bytes")
    return data
