"""Compare sizes as Kubernetes writes them.

Pure.
"""

import re

UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_SIZE = re.compile(rf"([0-9]+)({'|'.join(sorted(UNITS, key=len, reverse=True))})")


def size_bytes(text: str) -> int | None:
    """None for a size that Torpor does not write, such as 1e9 or 0.5Gi."""
    found = _SIZE.fullmatch(text)
    return int(found[1]) * UNITS[found[2]] if found else None


def is_larger(wanted: str, current: str) -> bool:
    """Whether a volume must grow. A size that cannot be compared is left as it is."""
    one, other = size_bytes(wanted), size_bytes(current)
    return one is not None and other is not None and one > other
