"""A client cannot keep others from signing in by sending many guesses."""

import asyncio

import pytest

from tests.support.accounts_stage import quick
from torpor.accounts.passwords import WAITING_AT_MOST, WAITING_FROM_ONE_ADDRESS, Passwords
from torpor.domain.errors import Refused

pytestmark = pytest.mark.anyio


async def outcome(passwords: Passwords, stored: str, came_from: str) -> str:
    try:
        checked = await passwords.check("right", stored, came_from=came_from)
    except Refused as refused:
        return refused.code
    return "right" if checked.is_right else "wrong"


async def test_one_address_has_a_limit_of_waiting_checks() -> None:
    passwords = quick()
    stored = await passwords.hash("right")
    crowd = [outcome(passwords, stored, "198.51.100.7") for _ in range(100)]
    said = await asyncio.gather(*crowd, outcome(passwords, stored, "192.0.2.1"))
    assert said[-1] == "right"
    assert said[:-1].count("right") == WAITING_FROM_ONE_ADDRESS
    # All guesses are checked: the next sign-in does not wait behind them.
    assert await outcome(passwords, stored, "198.51.100.7") == "right"


async def test_the_number_of_waiting_checks_is_limited() -> None:
    passwords = quick()
    stored = await passwords.hash("right")
    said = await asyncio.gather(*(outcome(passwords, stored, f"192.0.2.{number}") for number in range(2 * WAITING_AT_MOST)))
    assert (said.count("right"), said.count("too_many_sign_ins")) == (WAITING_AT_MOST, WAITING_AT_MOST)


async def test_no_password_matches_for_a_user_without_one() -> None:
    assert not (await quick().check("", None)).is_right


async def test_an_ipv6_network_counts_as_one_address() -> None:
    passwords = quick()
    stored = await passwords.hash("right")
    crowd = [outcome(passwords, stored, f"2001:db8::{number:x}") for number in range(20)]
    said = await asyncio.gather(*crowd, outcome(passwords, stored, "2001:db8:0:1::1"))
    assert (said[:-1].count("right"), said[-1]) == (WAITING_FROM_ONE_ADDRESS, "right")
