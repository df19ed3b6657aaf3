"""Decide whether a home is larger than the disk size of its workspace, which no runtime of one machine enforces."""

from torpor.domain.disk import size
from torpor.domain.records import Workspace

MIB = 1 << 20


def size_excess(workspace: Workspace) -> str | None:
    """What is too large, for users; None if nothing is, or if that is not known. A template's size is not in the row."""
    used, allowed_mb = workspace.disk_use, workspace.size.disk_mb
    if used is None or allowed_mb is None or used.size_bytes <= allowed_mb * MIB:
        return None
    return (
        f"its home has {size(used.size_bytes)}, more than its size of {size(allowed_mb * MIB)}. Delete files that you do not "
        "need; nothing is stopped because of that"
    )
