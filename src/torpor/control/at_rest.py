"""Decide which workspaces at rest must be reconciled.

A row at rest changes when its wish changes (the database notifies) or when its observation changes. This module keeps the last
observation of each workspace and compares it with each new one. The memory is only an optimisation: new shards are read
completely, and every pass reads a few more shards again, in rounds.
"""

from collections.abc import Collection

from torpor.domain.names import is_id
from torpor.domain.records import NOTHING_SEEN, Observation, Survey
from torpor.domain.shards import shard_of

LOOKS_PER_ROUND = 64


class RestingWorkspaces:
    def __init__(self) -> None:
        self.suspects: frozenset[str] = frozenset()
        """An expected resource of these was not observed: the next full pass includes them."""
        self._at_rest: dict[str, Observation] = {}
        self._known: frozenset[int] = frozenset()
        """Shards of this controller that were read completely."""
        self._looks = 0

    def to_read(self, shards: frozenset[int]) -> frozenset[int]:
        """Return which of this controller's shards are read completely in this pass."""
        turn = self._looks % LOOKS_PER_ROUND
        return frozenset(shard for shard in shards if shard not in self._known or shard % LOOKS_PER_ROUND == turn)

    def looked(self, shards: frozenset[int], whole: frozenset[int]) -> bool:
        """Record a full pass that read the shards in `whole` completely; return whether some shards were never read."""
        self._looks += 1
        known = (self._known | whole) & shards
        if not self._known <= shards:
            self._at_rest = {one: seen for one, seen in self._at_rest.items() if shard_of(one) in shards}
        self._known = known
        return known != shards

    def is_at_rest(self, workspace_id: str, seen: Observation) -> None:
        """It needs no pass while its observation stays the same."""
        self._at_rest[workspace_id] = seen

    def is_moving(self, workspace_id: str) -> None:
        self._at_rest.pop(workspace_id, None)

    def stirred(self, survey: Survey, looked_at: Collection[str]) -> list[str]:
        """Return the workspaces whose observation changed since they came to rest, without those of this pass."""
        different = [
            one
            for one, seen in survey.seen.items()
            if self._at_rest.get(one) != seen and one not in looked_at and is_id(one) and shard_of(one) in self._known
        ]
        gone = [
            one
            for one, seen in self._at_rest.items()
            if one not in survey.seen and seen != NOTHING_SEEN and one not in looked_at
        ]
        return different + gone
