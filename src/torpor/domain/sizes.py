"""Decide the size of a workspace: CPU, memory and disk.

A size is the workspace's own, else its template's, else the installation's default, and never more than the installation's
maximum.
"""

import math
import re
from dataclasses import dataclass
from typing import TypeVar

from torpor.domain.errors import Refused

SMALLEST_MEMORY_MB = 16
SMALLEST_CPU = 0.01
"""The kernel's smallest quota is one millisecond in each period of 100."""
LARGEST_MB = 1 << 30
MOST_CPU = 4096.0
UNITS_MB = {"M": 1, "G": 1 << 10, "T": 1 << 20}
Amount = TypeVar("Amount", int, float)
AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([MGT])(?:i?B)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WorkspaceSize:
    """None: not stated."""

    cpu: float | None = None
    """Cores."""
    memory_mb: int | None = None
    """MiB."""
    disk_mb: int | None = None
    """MiB."""


NO_SIZE = WorkspaceSize()


def megabytes(text: str) -> int | None:
    """`512M`, `4G` or `1.5T` in MiB; None if it is not an amount."""
    found = AMOUNT.fullmatch(text.strip())
    return round(float(found[1]) * UNITS_MB[found[2].upper()]) if found else None


def cpu_fault(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return "must be a number of cores, such as 2 or 0.5"
    return None if SMALLEST_CPU <= value <= MOST_CPU else f"must be a number of cores from {SMALLEST_CPU} to {MOST_CPU:g}"


def memory_fault(value: object) -> str | None:
    return _amount_fault(value, SMALLEST_MEMORY_MB)


def disk_fault(value: object) -> str | None:
    return _amount_fault(value, 1)


def _amount_fault(value: object, smallest_mb: int) -> str | None:
    amount = megabytes(value) if isinstance(value, str) else None
    if amount is None:
        return 'must be an amount with its unit, such as "512M" or "4G"'
    return None if smallest_mb <= amount <= LARGEST_MB else f"must be at least {smallest_mb}M and at most {LARGEST_MB}M"


def check_workspace_size(size: WorkspaceSize, most: WorkspaceSize) -> None:
    """Refused `bad_size` if a value is too small, or more than the installation's maximum."""
    for what, value, smallest, largest in (
        ("cpu", size.cpu, SMALLEST_CPU, most.cpu or MOST_CPU),
        ("memory_mb", size.memory_mb, SMALLEST_MEMORY_MB, most.memory_mb or LARGEST_MB),
        ("disk_mb", size.disk_mb, 1, most.disk_mb or LARGEST_MB),
    ):
        if value is not None and not smallest <= value <= largest:
            raise Refused(
                "bad_size",
                f"{what} is {value}; allowed are {smallest} to {largest} (setting workspace_max_{what})",
                field=what,
                most=largest,
            )


def effective_size(own: WorkspaceSize, of_template: WorkspaceSize, most: WorkspaceSize, *, memory_mb: int) -> WorkspaceSize:
    """The size at a start. `memory_mb`: the memory of a workspace whose size is not stated."""
    return WorkspaceSize(
        cpu=_lowest(own.cpu if own.cpu is not None else of_template.cpu, most.cpu),
        memory_mb=_lowest(own.memory_mb or of_template.memory_mb or memory_mb, most.memory_mb),
        disk_mb=_lowest(own.disk_mb or of_template.disk_mb, most.disk_mb),
    )


def _lowest(value: Amount | None, most: Amount | None) -> Amount | None:
    return most if value is None else value if most is None else min(value, most)
