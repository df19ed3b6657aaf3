"""Map workspaces to shards, and shards to controllers.

The last ten bits of its id are the shard of a workspace. Rendezvous hashing assigns each shard to one of the live controllers:
when a controller joins or leaves, only its own shards move.
"""

from collections.abc import Collection
from hashlib import blake2b

SHARDS = 1024
ALL_SHARDS = frozenset(range(SHARDS))


def shard_of(workspace_id: str) -> int:
    """The same as the column `shard` in the database."""
    return int(workspace_id[-3:], 16) & (SHARDS - 1)


def shards_of(node_id: str, living: Collection[str]) -> frozenset[int]:
    """Return the shards of this node, if these nodes are live."""
    return frozenset(shard for shard in ALL_SHARDS if _owner(shard, living) == node_id)


def _owner(shard: int, living: Collection[str]) -> str | None:
    return max(living, key=lambda node_id: (_weight(node_id, shard), node_id), default=None)


def _weight(node_id: str, shard: int) -> bytes:
    return blake2b(f"{shard}:{node_id}".encode(), digest_size=8).digest()
