"""Every workspace has one controller, and few shards move when controllers join or leave."""

import uuid

from hypothesis import given, settings
from hypothesis import strategies as st

from torpor.domain.shards import ALL_SHARDS, SHARDS, shard_of, shards_of

NODES = st.sets(st.text(min_size=1, max_size=20), min_size=1, max_size=6)


@settings(max_examples=20)
@given(NODES)
def test_every_shard_belongs_to_exactly_one_controller(nodes: set[str]) -> None:
    owned = [shards_of(node, nodes) for node in nodes]
    assert sum(len(one) for one in owned) == SHARDS
    assert frozenset().union(*owned) == ALL_SHARDS


@settings(max_examples=20)
@given(NODES, st.text(min_size=1, max_size=20))
def test_a_controller_that_leaves_only_moves_its_own_shards(nodes: set[str], leaver: str) -> None:
    for stays in nodes - {leaver}:
        before, after = shards_of(stays, nodes | {leaver}), shards_of(stays, nodes - {leaver})
        assert before <= after
        assert after - before <= shards_of(leaver, nodes | {leaver})


def test_the_order_of_the_controllers_does_not_matter() -> None:
    assert shards_of("a", ["a", "b", "c"]) == shards_of("a", ["c", "b", "a"])


def test_shares_are_fair() -> None:
    nodes = [f"node-{number}" for number in range(5)]
    shares = [len(shards_of(node, nodes)) for node in nodes]
    assert max(shares) < 1.3 * SHARDS / 5, shares
    assert min(shares) > 0.7 * SHARDS / 5, shares


def test_ids_spread_over_all_shards() -> None:
    assert {shard_of(str(uuid.UUID(int=number))) for number in range(SHARDS)} == ALL_SHARDS


def test_a_single_controller_owns_all_shards() -> None:
    assert shards_of("alone", ["alone"]) == ALL_SHARDS
    assert shards_of("gone", ["alone"]) == frozenset()
