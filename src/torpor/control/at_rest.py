"""Which of the workspaces at rest must be looked at?

A row at rest says nothing new until its wish changes (the database tells) or something else is seen of it (told here): what was
last seen of each is remembered, and compared with every look at the provider. Nothing hangs on that memory: shards that come
into our hands are read whole, and with every look a few more are read again, until the round begins anew.
"""

from collections.abc import Collection

from torpor.domain.names import is_id
from torpor.domain.records import NOTHING_SEEN, Observation, Survey
from torpor.domain.shards import shard_of

LOOKS_PER_ROUND = 64


class RestingWorkspaces:
    def __init__(self) -> None:
        self.suspects: frozenset[str] = frozenset()
        """Something that must be there was not seen of them: the next look at everything takes them along."""
        self._at_rest: dict[str, Observation] = {}
        self._known: frozenset[int] = frozenset()
        """Shards that were read whole since they are ours."""
        self._looks = 0

    def to_read(self, shards: frozenset[int]) -> frozenset[int]:
        """The shards of which everything is to be read with this look, when these are ours."""
        turn = self._looks % LOOKS_PER_ROUND
        return frozenset(shard for shard in shards if shard not in self._known or shard % LOOKS_PER_ROUND == turn)

    def looked(self, shards: frozenset[int], whole: frozenset[int]) -> bool:
        """Everything due was looked at, and these shards were read whole; whether some of ours never were."""
        self._looks += 1
        known = (self._known | whole) & shards
        if not self._known <= shards:
            self._at_rest = {one: seen for one, seen in self._at_rest.items() if shard_of(one) in shards}
        self._known = known
        return known != shards

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
            if self._at_rest.get(one) != seen and one not in looked_at and is_id(one) and shard_of(one) in self._known
        ]
        gone = [
            one
            for one, seen in self._at_rest.items()
            if one not in survey.seen and seen != NOTHING_SEEN and one not in looked_at
        ]
        return different + gone
