"""Each action is allowed to exactly the users with enough access, and to tokens with the scope."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.builders import workspace
from torpor.domain.access import EVERY_SCOPE, GRANTS, NEEDS, Access, Permission, Scope, Share, access, check_access, check_scope
from torpor.domain.errors import Refused

SHARED = replace(workspace(), owner="ada", name="demo", shares={"bob": "use", "mia": "manage"})
NEARNESS = {"ada": Access.OWN, "bob": Access.USE, "mia": Access.MANAGE, "eve": Access.NONE}


def test_every_deed_says_what_it_needs_and_every_share_what_it_grants() -> None:
    assert NEEDS.keys() == set(Permission)
    assert GRANTS.keys() == set(Share)
    assert {scope for _, scope in NEEDS.values()} <= EVERY_SCOPE
    assert all(needs > Access.NONE for needs, _ in NEEDS.values())


@pytest.mark.parametrize("is_admin", [False, True])
@pytest.mark.parametrize("username", NEARNESS)
def test_how_near_somebody_is(username: str, is_admin: bool) -> None:
    assert access(SHARED, username, is_admin=is_admin) is (Access.OWN if is_admin else NEARNESS[username])


@pytest.mark.parametrize("deed", Permission)
@pytest.mark.parametrize("username", NEARNESS)
def test_a_deed_is_for_those_who_are_near_enough(username: str, deed: Permission) -> None:
    has = NEARNESS[username]
    if has >= NEEDS[deed][0]:
        check_access(SHARED, username, deed, is_admin=False)
        return
    with pytest.raises(Refused) as refused:
        check_access(SHARED, username, deed, is_admin=False)
    assert refused.value.code == ("not_found" if has is Access.NONE else "forbidden")


@pytest.mark.parametrize("deed", Permission)
def test_an_administrator_may_do_everything(deed: Permission) -> None:
    check_access(SHARED, "root", deed, is_admin=True)


def test_what_may_be_done_grows_with_nearness() -> None:
    allowed = [{deed for deed, (needs, _) in NEEDS.items() if has >= needs} for has in Access]
    assert all(less < more for less, more in pairwise(allowed))
    assert (allowed[Access.NONE], allowed[Access.OWN]) == (set(), set(Permission))


def test_somebody_who_guessed_an_id_is_not_told_the_name() -> None:
    with pytest.raises(Refused) as refused:
        check_access(SHARED, "eve", Permission.SEE, is_admin=False, said=SHARED.id)
    assert "demo" not in refused.value.message
    assert refused.value.context == {"workspace": SHARED.id}


@pytest.mark.parametrize("needs", Scope)
def test_a_scope_stands_for_itself_alone(needs: Scope) -> None:
    check_scope({needs}, needs)
    check_scope(EVERY_SCOPE, needs)
    with pytest.raises(Refused) as refused:
        check_scope(EVERY_SCOPE - {needs}, needs)
    assert refused.value.code == "scope_missing"
