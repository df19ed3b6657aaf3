"""Every proposed user name is a valid user name."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.domain.errors import Refused
from torpor.domain.usernames import LONGEST_USERNAME, check_password, check_username, usernames


@pytest.mark.parametrize("name", ["a", "ada", "ada.lovelace", "a_b-c.d", "0", "a" * 64])
def test_a_valid_username_is_accepted(name: str) -> None:
    assert check_username(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "-a", "_a", "Ada", "a b", "é", "a" * 65, "a\n", "a\0", "00000000-0000-0000-0000-000000000000"]
)
def test_an_invalid_username_is_refused(name: str) -> None:
    with pytest.raises(Refused) as refused:
        check_username(name)
    assert refused.value.code == "bad_username"


@pytest.mark.parametrize(
    ("password", "is_one"), [("1234567", False), ("12345678", True), ("x" * 1024, True), ("x" * 1025, False)]
)
def test_passwords_are_checked(password: str, is_one: bool) -> None:
    if is_one:
        assert check_password(password) == password
    else:
        with pytest.raises(Refused):
            check_password(password)


@pytest.mark.parametrize(
    ("wanted", "first"),
    [
        (["Ada"], "ada"),
        (["Ada Lovelace"], "ada-lovelace"),
        (["", "countess"], "countess"),
        (["...", "countess"], "countess"),
        (["Ädä"], "d"),
        (["_ada_"], "ada"),
        (["00000000-0000-0000-0000-000000000000"], "user"),
        ([], "user"),
    ],
)
def test_usernames_are_derived_from_the_wanted_name_and_numbered(wanted: list[str], first: str) -> None:
    assert list(itertools.islice(usernames(wanted), 3)) == [first, f"{first}-2", f"{first}-3"]


@given(st.lists(st.text(max_size=100), max_size=3))
def test_any_wanted_name_gives_valid_distinct_usernames(wanted: list[str]) -> None:
    names = list(itertools.islice(usernames(wanted), 20))
    assert len(set(names)) == len(names)
    assert all(check_username(name) and len(name) <= LONGEST_USERNAME for name in names)
