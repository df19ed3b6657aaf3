"""Compute the hashes of format 2: SHA-256 over a domain, the length and the data.

The domain keeps hashes of different things apart: a file that contains the block hashes of another file does not have its hash.
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache

BLOCK_BYTES = 4 << 20
"""A file up to this size is hashed and stored as a whole; a larger one in blocks of this size."""

FILE, BLOCK, BLOCKS, TREE, REFS, HOME = (
    f"torpor archive 2 {domain}\0".encode() for domain in ("file", "block", "blocks", "tree", "refs", "home")
)
ZEROS = bytes(BLOCK_BYTES)


def digest_of(domain: bytes, data: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(domain + len(data).to_bytes(8, "big"))
    digest.update(data)
    return digest.digest()


def content_digest(size: int, data: bytes | memoryview) -> bytes:
    """Of a whole file of at most BLOCK_BYTES, or of one block of a file with this size."""
    return digest_of(FILE if size <= BLOCK_BYTES else BLOCK, data)


def large_file_digest(size: int, blocks: Iterable[bytes]) -> bytes:
    """Of a file that has blocks with these digests."""
    return hashlib.sha256(BLOCKS + size.to_bytes(8, "big") + b"".join(blocks)).digest()


@lru_cache(maxsize=16)
def zero_block_digest(length: int) -> bytes:
    return digest_of(BLOCK, memoryview(ZEROS)[:length])


def block_count(size: int) -> int:
    return -(-size // BLOCK_BYTES)


def block_length(size: int, number: int) -> int:
    return min(BLOCK_BYTES, size - number * BLOCK_BYTES)
