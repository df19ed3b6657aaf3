"""A workspace at rest is reconciled when its observation changes."""

from dataclasses import replace

from tests.support.builders import ID, seen, unmarked
from torpor.control.at_rest import RestingWorkspaces
from torpor.domain.records import Survey
from torpor.domain.shards import shard_of


def test_a_home_that_is_put_back_beside_a_bad_marker_makes_its_row_due() -> None:
    attention, shards = RestingWorkspaces(), frozenset({shard_of(ID)})
    attention.looked(shards, shards)
    there = unmarked(1)
    attention.is_at_rest(ID, seen(replace(there, has_home=False)))
    assert attention.stirred(Survey({ID: seen(replace(there, has_home=False))}), ()) == []
    assert attention.stirred(Survey({ID: seen(there)}), ()) == [ID]
