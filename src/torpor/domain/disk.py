"""Decide whether the disk of the homes has room for one more workspace to start or to be restored, and which are paused.

`disk_reserve` is kept free for the database, the bus and the archives, which are on the same disk in `torpor up`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from torpor.domain.errors import Refused

RETRY_AFTER_S = 30
WRITES_BYTES = 64 << 10
"""A process that wrote more than this between two looks is one that fills the disk. Logs and editors write less."""
PAUSED_MEANS = "the disk of the homes is almost full, so processes that write to it are paused until there is space again"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Disk:
    """The filesystem on which the homes are."""

    path: str
    free_bytes: int
    """As far as users other than root may use it."""


def shortage(disk: Disk | None, reserve_bytes: int, needed_bytes: int = 0) -> str | None:
    """Return why nothing that needs so many bytes may begin; None where there is room, or where that is not known.

    The free space is rounded coarsely: the words are stored, and each new wording is a write to a disk that is full.
    """
    if disk is None or reserve_bytes <= 0 or disk.free_bytes - needed_bytes >= reserve_bytes:
        return None
    needs = f", the home needs {size(needed_bytes)}" if needed_bytes else ""
    return (
        f"the disk of the homes ({disk.path}) has about {size(_rounded(disk.free_bytes))} free{needs}, and disk_reserve keeps"
        f" {size(reserve_bytes)} free; delete workspaces or files, enlarge the disk, or lower disk_reserve"
    )


def require_space(disk: Disk | None, reserve_bytes: int, needed_bytes: int = 0) -> None:
    """Return when there is room; Refused `disk_low` when there is none."""
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
    """What is done with the processes of workspaces at this much free space."""

    CONTINUE = auto()
    """Those that were paused go on."""
    LEAVE = auto()
    """All stay as they are, so that nothing changes with every file that comes and goes."""
    WRITERS = auto()
    """Those that write are paused."""
    ALL = auto()
    """All are paused: something fills the disk, and who it is cannot be told (`fallocate`, a mapped file)."""


def pause_action(free_bytes: int, reserve_bytes: int) -> PauseAction:
    if reserve_bytes <= 0 or free_bytes >= reserve_bytes:
        return PauseAction.CONTINUE
    if free_bytes >= reserve_bytes // 2:
        return PauseAction.LEAVE
    return PauseAction.WRITERS if free_bytes >= reserve_bytes // 4 else PauseAction.ALL


def writers(before: Mapping[int, int], now: Mapping[int, int]) -> frozenset[int]:
    """Return the processes that wrote since the last look, from how much each has written so far.

    One that was not there before has written all of it since.
    """
    return frozenset(pid for pid, written in now.items() if written - before.get(pid, 0) > WRITES_BYTES)


def _rounded(count: int) -> int:
    """Down to a multiple of an eighth to a quarter of it."""
    step = max(0, count.bit_length() - 3)
    return count >> step << step


def size(count: int) -> str:
    value, unit = float(count), 0
    while round(value, 1) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if value >= 100 or unit == 0 else f"{value:.1f} {_UNITS[unit]}"
