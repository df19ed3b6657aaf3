"""Count records, bytes and checksums, so that a lost, doubled or changed record is noticed."""

from collections.abc import Iterable
from dataclasses import dataclass

MODULUS = 1 << 64


@dataclass(frozen=True, slots=True)
class Proof:
    """Number of records, their bytes and a checksum that does not depend on the order. Proofs of disjoint records add up."""

    records: int = 0
    size: int = 0
    """In bytes."""
    checksum: int = 0
    """The sum of a 64-bit hash of each record, modulo 2^64."""

    def __add__(self, other: "Proof") -> "Proof":
        return Proof(self.records + other.records, self.size + other.size, (self.checksum + other.checksum) % MODULUS)


def total(proofs: Iterable[Proof]) -> Proof:
    return sum(proofs, start=Proof())
