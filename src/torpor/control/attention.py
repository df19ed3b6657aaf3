"""Which of the workspaces at rest must be looked at?

A row at rest says nothing new until its wish changes (the database tells) or something else is seen of it (told here): what was
last seen of each is remembered, and compared with every look at the provider. Once in a while, and whenever shards change
hands, everything is read again, so that nothing hangs on a memory.
"""

from collections.abc import Collection

from torpor.domain.names import is_id
from torpor.domain.records import NOTHING_SEEN, Observation, Survey
from torpor.domain.shards import shard_of

COMPLETE_EVERY_LOOKS = 30


class Attention:
    def __init__(self) -> None:
        self.suspects: frozenset[str] = frozenset()
        """Something that must be there was not seen of them: the next look at everything takes them along."""
        self._at_rest: dict[str, Observation] = {}
        self._shards: frozenset[int] = frozenset()
        self._looks_left = 0

    def wants_everything(self, shards: frozenset[int]) -> bool:
        return self._looks_left <= 0 or shards != self._shards

    def looked_at_due(self) -> None:
        self._looks_left -= 1

    def looked_at_everything(self, shards: frozenset[int]) -> None:
        self._looks_left = COMPLETE_EVERY_LOOKS
        self._shards = shards
        self._at_rest = {one: seen for one, seen in self._at_rest.items() if shard_of(one) in shards}

    def is_at_rest(self, workspace_id: str, seen: Observation) -> None:
        """It needs nothing, as long as nothing else is seen of it."""
        self._at_rest[workspace_id] = seen

    def is_moving(self, workspace_id: str) -> None:
        self._at_rest.pop(workspace_id, None)

    def stirred(self, survey: Survey, looked_at: Collection[str]) -> list[str]:
        """Those of ours, not just looked at, of which something else is seen than when they came to rest."""
        different = [
            one
            for one, seen in survey.seen.items()
            if self._at_rest.get(one) != seen and one not in looked_at and is_id(one) and shard_of(one) in self._shards
        ]
        gone = [
            one
            for one, seen in self._at_rest.items()
            if one not in survey.seen and seen != NOTHING_SEEN and one not in looked_at
        ]
        return different + gone
