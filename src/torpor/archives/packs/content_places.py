"""Number the places of contents in packs, and find the place of a content by its digest, in little memory.

A place is one integer: pack, frame and offset. Contents are found by a keyed fingerprint of 128 bits. Its key is random: a user
cannot choose contents with equal fingerprints.
"""

import hashlib
import secrets
from collections.abc import Iterable
from pathlib import Path

from torpor.archives.packs.side_file import zeros

OFFSET_BITS = 23
FRAME_BITS = 12
MOST_PACKS = 1 << 28
ZERO_PLACE = -1
"""A block of zeros: it is not stored."""
MOST_SLOTS = 1 << 24
"""24 bytes each, on disk if they are many. A home with more contents is archived, too; equal ones may then be stored twice."""


def place_number(pack: int, frame: int, offset: int) -> int:
    return (pack << FRAME_BITS | frame) << OFFSET_BITS | offset


class ContentPlaces:
    """Open addressing in three arrays."""

    def __init__(self, folders: tuple[Path, ...] = (), slots: int = 1 << 12, most_slots: int = MOST_SLOTS) -> None:
        self._folders = folders
        self._key = secrets.token_bytes(32)
        self._most_slots = most_slots
        self._count = 0
        self._reserve(slots)

    @property
    def is_full(self) -> bool:
        return 3 * (self._count + 1) > 2 * self._most_slots

    def find(self, domain: bytes, length: int, digest: bytes) -> int | None:
        high, low = self._fingerprint(domain, length, digest)
        slot = self._slot(high, low)
        return self._places[slot] if self._highs[slot] else None

    def add(self, domain: bytes, length: int, digest: bytes, place: int, *, replaces: bool = False) -> None:
        """Remember this place, unless one is known or there is no space. With `replaces`, instead of the one that is known."""
        high, low = self._fingerprint(domain, length, digest)
        slot = self._slot(high, low)
        if self._highs[slot]:
            if replaces:
                self._places[slot] = place
            return
        if 3 * (self._count + 1) > 2 * len(self._highs):
            if not self._grow():
                return
            slot = self._slot(high, low)
        self._highs[slot], self._lows[slot], self._places[slot] = high, low, place
        self._count += 1

    def _fingerprint(self, domain: bytes, length: int, digest: bytes) -> tuple[int, int]:
        number = int.from_bytes(hashlib.blake2b(b"%b%d %b" % (domain, length, digest), digest_size=16, key=self._key).digest())
        return number >> 64 or 1, number & 0xFFFFFFFFFFFFFFFF  # 0 marks an empty slot

    def _slot(self, high: int, low: int) -> int:
        highs, lows, mask = self._highs, self._lows, len(self._highs) - 1
        slot = low & mask
        while (there := highs[slot]) and (there != high or lows[slot] != low):
            slot = (slot + 1) & mask
        return slot

    def _reserve(self, slots: int) -> None:
        self._highs = zeros("Q", slots, self._folders)
        self._lows = zeros("Q", slots, self._folders)
        self._places = zeros("q", slots, self._folders)

    def _grow(self) -> bool:
        slots = 2 * len(self._highs)
        if slots > self._most_slots:
            return False
        old: Iterable[tuple[int, int, int]] = zip(self._highs, self._lows, self._places, strict=True)
        self._reserve(slots)
        for high, low, place in old:
            if high:
                slot = self._slot(high, low)
                self._highs[slot], self._lows[slot], self._places[slot] = high, low, place
        return True
