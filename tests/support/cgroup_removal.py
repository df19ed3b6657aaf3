"""Remove the cgroups that an engine of the tests has left."""

import contextlib
from pathlib import Path

from tests.support.waiting import wait_until

CGROUPS = Path("/sys/fs/cgroup")


def cgroups_of(beginning: str) -> list[Path]:
    """Those whose names begin so, in every hierarchy."""
    return [path for pattern in ("", "*/") for path in CGROUPS.glob(f"{pattern}{beginning}*")]


def remove_cgroups(beginning: str) -> None:
    def are_removed() -> bool:
        # The kernel takes a moment until a cgroup without processes can be removed.
        with contextlib.suppress(OSError):
            for path in cgroups_of(beginning):
                for below in sorted((one for one in path.rglob("*") if one.is_dir()), reverse=True):
                    below.rmdir()
                path.rmdir()
        return not cgroups_of(beginning)

    wait_until(are_removed)
