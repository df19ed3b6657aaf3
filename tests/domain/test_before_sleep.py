"""A command before an automatic stop is accepted exactly if it can be run."""

import pytest

from tests.support.builders import workspace
from torpor.domain.before_sleep import LONGEST_BEFORE_SLEEP_BYTES, MOST_BEFORE_SLEEP_WORDS, check_before_sleep, sleeps_by_itself
from torpor.domain.errors import Refused
from torpor.domain.states import Phase, Wish, WishOrigin


@pytest.mark.parametrize(
    "words",
    [
        None,
        (),
        ("true",),
        ("sh", "-c", "", "{home} $HOME\n"),
        ("x" * LONGEST_BEFORE_SLEEP_BYTES,),
        ("é" * (LONGEST_BEFORE_SLEEP_BYTES // 2),),
        ("x",) * MOST_BEFORE_SLEEP_WORDS,
    ],
)
def test_a_valid_command_is_accepted(words: tuple[str, ...] | None) -> None:
    check_before_sleep(words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("",), "has no program"),
        (("", "stash"), "has no program"),
        (("git", "st\0ash"), "NUL"),
        (("x" * (LONGEST_BEFORE_SLEEP_BYTES + 1),), "4097 bytes; at most 4096"),
        (("é" * LONGEST_BEFORE_SLEEP_BYTES,), "8192 bytes"),
        (("x",) * (MOST_BEFORE_SLEEP_WORDS + 1), "101 words; at most 100"),
    ],
)
def test_an_invalid_command_is_refused_with_the_reason(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(Refused, match=said) as refused:
        check_before_sleep(words)
    assert refused.value.code == "bad_before_sleep"


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("wish", Wish)
@pytest.mark.parametrize("origin", WishOrigin)
def test_only_the_idle_watch_stops_automatically(phase: Phase, wish: Wish, origin: WishOrigin) -> None:
    row = workspace(phase=phase, desired_state=wish, wish_origin=origin)
    assert sleeps_by_itself(row) is ((phase, wish, origin) == (Phase.RUNNING, Wish.STANDBY, WishOrigin.IDLE))
