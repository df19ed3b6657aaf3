"""Which runtime has the homes, and what is refused while they move."""

from datetime import UTC, datetime

import pytest

from torpor.domain.errors import Refused
from torpor.domain.runtime_switch import (
    TARGETS,
    HomeRuntime,
    JoinPermit,
    RuntimeSwitch,
    admit_runtime,
    check_target,
    refuse_while_switching,
)
from torpor.domain.states import Wish

AT = datetime(2026, 11, 17, tzinfo=UTC)
TO_DOCKER = RuntimeSwitch("docker", AT)
OURS, OTHER = "docker:ours", "process:other"
KNOWN = {
    "none": HomeRuntime(None),
    "ours": HomeRuntime(OURS),
    "ours, moving away": HomeRuntime(OURS, RuntimeSwitch("podman", AT)),
    "ours, moving to another engine": HomeRuntime(OURS, TO_DOCKER),
    "other": HomeRuntime(OTHER),
    "other, moving to ours": HomeRuntime(OTHER, TO_DOCKER),
    "other, moving to a third": HomeRuntime(OTHER, RuntimeSwitch("podman", AT)),
}
OWNER, FIRST, SUCCESSOR = JoinPermit.OWNER, JoinPermit.FIRST, JoinPermit.SUCCESSOR
# (known, homes left): without `accepted`.
PERMITS: dict[tuple[str, int], JoinPermit | str] = {
    ("none", 0): FIRST,
    ("none", 3): FIRST,
    ("ours", 0): OWNER,
    ("ours", 3): OWNER,
    ("ours, moving away", 0): OWNER,
    ("ours, moving away", 3): OWNER,
    ("ours, moving to another engine", 0): OWNER,
    ("ours, moving to another engine", 3): OWNER,
    ("other", 0): FIRST,
    ("other", 3): "another_runtime",
    ("other, moving to ours", 0): SUCCESSOR,
    ("other, moving to ours", 3): "homes_not_moved",
    ("other, moving to a third", 0): "another_runtime",
    ("other, moving to a third", 3): "another_runtime",
}


def test_every_case_is_in_the_table() -> None:
    assert PERMITS.keys() == {(known, left) for known in KNOWN for left in (0, 3)}


@pytest.mark.parametrize(("known", "left"), PERMITS)
def test_a_controller_joins_where_the_homes_are(known: str, left: int) -> None:
    expected = PERMITS[known, left]
    if isinstance(expected, JoinPermit):
        assert admit_runtime(KNOWN[known], OURS, homes_left=left, accepted=None) is expected
    else:
        with pytest.raises(Refused) as refused:
            admit_runtime(KNOWN[known], OURS, homes_left=left, accepted=None)
        assert refused.value.code == expected


@pytest.mark.parametrize("known", KNOWN)
def test_an_operator_accepts_one_identity_although_homes_are_lost(known: str) -> None:
    assert admit_runtime(KNOWN[known], OURS, homes_left=3, accepted=OURS) in (OWNER, FIRST)
    if KNOWN[known].world == OTHER:
        with pytest.raises(Refused):
            admit_runtime(KNOWN[known], OURS, homes_left=3, accepted="docker:third")


def test_a_refusal_says_how_to_go_on() -> None:
    with pytest.raises(Refused) as refused:
        admit_runtime(KNOWN["other"], OURS, homes_left=3, accepted=None)
    for words in (OTHER, "`torpor switch-runtime docker`", f"TORPOR_ACCEPT_RUNTIME={OURS}"):
        assert words in refused.value.message


@pytest.mark.parametrize("wish", Wish)
def test_nothing_that_needs_a_home_is_requested_during_a_move(wish: Wish) -> None:
    refuse_while_switching(None, wish)
    if wish in (Wish.RUNNING, Wish.STANDBY):
        with pytest.raises(Refused, match="being moved to the runtime 'docker'"):
            refuse_while_switching(TO_DOCKER, wish)
    else:
        refuse_while_switching(TO_DOCKER, wish)


@pytest.mark.parametrize("target", [*TARGETS, "auto", "fake", ""])
def test_a_move_has_one_known_target(target: str) -> None:
    for known in KNOWN.values():
        if target in TARGETS and known.world and (known.switch is None or known.switch.target == target):
            check_target(target, known)
        else:
            with pytest.raises(Refused):
                check_target(target, known)
