"""Whose is this workspace?

Workspaces are divided into shards by the last ten bits of their ids, and each shard belongs to one of the living controllers
by rendezvous hashing: when one joins or leaves, only what is its own changes hands.
"""

from collections.abc import Collection
from hashlib import blake2b

SHARDS = 1024
ALL_SHARDS = frozenset(range(SHARDS))


def shard_of(workspace_id: str) -> int:
    """As the database's column `shard` says."""
    return int(workspace_id[-3:], 16) & (SHARDS - 1)


def shards_of(node_id: str, living: Collection[str]) -> frozenset[int]:
    """The shards of this node, when these live."""
    return frozenset(shard for shard in range(SHARDS) if _owner(shard, living) == node_id)


def _owner(shard: int, living: Collection[str]) -> str | None:
    return max(living, key=lambda node_id: (_weight(node_id, shard), node_id), default=None)


def _weight(node_id: str, shard: int) -> bytes:
    return blake2b(f"{shard}:{node_id}".encode(), digest_size=8).digest()
