"""Decide in which format the next archive is written.

All controllers must be able to read an archive, because any of them may restore it. So a new format is written only after the
last controller of an older version has left.
"""

from collections.abc import Collection, Iterable

SUPPORTED_FORMATS = (1, 2)
"""The formats that this version reads and writes."""


def written_format(members: Iterable[Collection[int]], newest: int) -> int:
    """The newest format up to `newest` that all living members support; each member is given by the formats it supports."""
    return max(set(range(1, newest + 1)).intersection(*members), default=1)
