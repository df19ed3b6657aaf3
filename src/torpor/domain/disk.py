"""Decide whether the disk of the homes has space to start or restore a workspace, and which workspaces are paused.

`disk_reserve` is kept free for the database, the bus and the archives, which are on the same disk in `torpor up`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from torpor.domain.errors import Refused

RETRY_AFTER_S = 30
WRITES_BYTES = 64 << 10
"""A process that wrote more than this between two checks counts as a writer. Logs and editors write less."""
PAUSED_MEANS = "the disk of the homes is almost full, so processes that write to it are paused until there is space again"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Disk:
    """The filesystem on which the homes are."""

    path: str
    free_bytes: int
    """What users other than root may use."""


def shortage(disk: Disk | None, reserve_bytes: int, needed_bytes: int = 0) -> str | None:
    """Return why an operation that needs this many bytes may not begin; None if it may, or if the free space is not known.

    The free space is rounded coarsely: the message is stored, and each new message is a write to a full disk.
    """
    if disk is None or reserve_bytes <= 0 or disk.free_bytes - needed_bytes >= reserve_bytes:
        return None
    needs = f", the home needs {size(needed_bytes)}" if needed_bytes else ""
    return (
        f"the disk of the homes ({disk.path}) has about {size(_rounded(disk.free_bytes))} free{needs}, and disk_reserve keeps"
        f" {size(reserve_bytes)} free; delete workspaces or files, enlarge the disk, or lower disk_reserve"
    )


def require_space(disk: Disk | None, reserve_bytes: int, needed_bytes: int = 0) -> None:
    """Return if there is space; else raise Refused `disk_low`."""
    short = shortage(disk, reserve_bytes, needed_bytes)
    if short is not None and disk is not None:
        raise Refused(
            "disk_low",
            short,
            path=disk.path,
            free_bytes=disk.free_bytes,
            needed_bytes=needed_bytes,
            disk_reserve_bytes=reserve_bytes,
            retry_after_s=RETRY_AFTER_S,
        )


class PauseAction(Enum):
    """What happens to the processes of workspaces at an amount of free space."""

    CONTINUE = auto()
    """Paused processes continue."""
    LEAVE = auto()
    """Each process stays as it is, so that small changes of the free space do not toggle the pause."""
    WRITERS = auto()
    """Processes that write are paused."""
    ALL = auto()
    """All are paused: the disk fills up, and the writer cannot be determined (`fallocate`, a mapped file)."""


def pause_action(free_bytes: int, reserve_bytes: int) -> PauseAction:
    if reserve_bytes <= 0 or free_bytes >= reserve_bytes:
        return PauseAction.CONTINUE
    if free_bytes >= reserve_bytes // 2:
        return PauseAction.LEAVE
    return PauseAction.WRITERS if free_bytes >= reserve_bytes // 4 else PauseAction.ALL


def writers(before: Mapping[int, int], now: Mapping[int, int]) -> frozenset[int]:
    """Return the processes that wrote since the last check, from the total that each has written.

    A process without an earlier total has written everything since.
    """
    return frozenset(pid for pid, written in now.items() if written - before.get(pid, 0) > WRITES_BYTES)


def _rounded(count: int) -> int:
    """Round down to the three most significant bits."""
    step = max(0, count.bit_length() - 3)
    return count >> step << step


def size(count: int) -> str:
    value, unit = float(count), 0
    while round(value, 1) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if value >= 100 or unit == 0 else f"{value:.1f} {_UNITS[unit]}"
