"""Owners share slots fairly."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.domain.fairness import Claim, most_of_one_owner, next_owner

OWNERS = ("ada", "ben", "eve")
# (owner, whether it requests a slot or returns its oldest one)
ACTS = st.lists(st.tuples(st.sampled_from(OWNERS), st.booleans()), max_size=60)
CAPACITIES = st.integers(min_value=1, max_value=8)


@pytest.mark.parametrize(("capacity", "most"), [(1, 1), (2, 1), (3, 2), (8, 4), (9, 5)])
def test_one_owner_has_at_most_half_rounded_up(capacity: int, most: int) -> None:
    assert most_of_one_owner(capacity) == most


def test_the_owner_with_the_fewest_slots_goes_first_then_the_last_turn_then_the_ticket() -> None:
    claims = {"ada": Claim(running=1, last_turn=-1, ticket=0), "ben": Claim(running=0, last_turn=7, ticket=2)}
    assert next_owner(claims, taken=1, capacity=8) == "ben"
    claims["eve"] = Claim(running=0, last_turn=6, ticket=3)
    assert next_owner(claims, taken=1, capacity=8) == "eve"
    claims["fay"] = Claim(running=0, last_turn=6, ticket=1)
    assert next_owner(claims, taken=1, capacity=8) == "fay"


def test_a_free_slot_stays_free_for_other_owners() -> None:
    assert next_owner({"ada": Claim(running=4, last_turn=3, ticket=9)}, taken=4, capacity=8) is None
    assert next_owner({"ada": Claim(running=0, last_turn=-1, ticket=0)}, taken=1, capacity=1) is None
    assert next_owner({}, taken=0, capacity=1) is None


class Desk:
    """Distributes slots by the rule, and records them."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.running: Counter[str] = Counter()
        self.waiting: dict[str, list[int]] = {}
        self.turns: list[str] = []
        """The owners that got a slot, in order."""
        self.drawn = 0

    def ask(self, owner: str) -> None:
        self.waiting.setdefault(owner, []).append(self.drawn)
        self.drawn += 1
        self.hand_out()

    def give_back(self, owner: str) -> None:
        if self.running[owner]:
            self.running[owner] -= 1
            self.hand_out()

    def hand_out(self) -> None:
        while owner := next_owner(self.claims(), taken=self.running.total(), capacity=self.capacity):
            self.waiting[owner].pop(0)
            if not self.waiting[owner]:
                del self.waiting[owner]
            self.running[owner] += 1
            self.turns.append(owner)

    def claims(self) -> dict[str, Claim]:
        last = {owner: number for number, owner in enumerate(self.turns)}
        return {owner: Claim(self.running[owner], last.get(owner, -1), tickets[0]) for owner, tickets in self.waiting.items()}


@given(CAPACITIES, ACTS)
def test_slots_are_never_exceeded_never_all_for_one_owner_and_never_unused(capacity: int, acts: list[tuple[str, bool]]) -> None:
    desk, most = Desk(capacity), most_of_one_owner(capacity)
    for owner, asks in acts:
        (desk.ask if asks else desk.give_back)(owner)
        assert desk.running.total() <= capacity
        assert all(count <= most for count in desk.running.values())
        if capacity > 1:
            assert all(count < capacity for count in desk.running.values()), "one owner has all"
        if desk.running.total() < capacity:
            assert all(desk.running[one] == most for one in desk.waiting), "a slot is free, and an owner waits that may have it"


@given(CAPACITIES, ACTS, st.lists(st.sampled_from(OWNERS), max_size=20))
def test_no_owner_without_a_slot_is_overtaken_twice_by_the_same(
    capacity: int, acts: list[tuple[str, bool]], given_back: list[str]
) -> None:
    """Independent of the number of tickets of other owners. After all slots were returned, it has one."""
    desk, late = Desk(capacity), "zoe"
    for owner, asks in acts:
        (desk.ask if asks else desk.give_back)(owner)
    desk.turns.clear()
    desk.ask(late)
    for owner in (*given_back, *OWNERS * (len(OWNERS) + 1)):
        if late in desk.waiting:
            desk.give_back(owner)
    assert late in desk.turns
    others = Counter(desk.turns[: desk.turns.index(late)])
    assert all(count == 1 for count in others.values()), desk.turns
