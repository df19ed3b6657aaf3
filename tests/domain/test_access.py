"""Each action is allowed to exactly the users with enough access, and to tokens with the scope."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.builders import workspace
from torpor.domain.access import EVERY_SCOPE, GRANTS, NEEDS, Access, Permission, Scope, Share, access, check_access, check_scope
from torpor.domain.errors import Refused

SHARED = replace(workspace(), owner="ada", name="demo", shares={"bob": "use", "mia": "manage"})
NEARNESS = {"ada": Access.OWN, "bob": Access.USE, "mia": Access.MANAGE, "eve": Access.NONE}


def test_every_permission_has_its_needs_and_every_share_its_grants() -> None:
    assert NEEDS.keys() == set(Permission)
    assert GRANTS.keys() == set(Share)
    assert {scope for _, scope in NEEDS.values()} <= EVERY_SCOPE
    assert all(needs > Access.NONE for needs, _ in NEEDS.values())


@pytest.mark.parametrize("is_admin", [False, True])
@pytest.mark.parametrize("username", NEARNESS)
def test_access_follows_from_ownership_share_and_admin(username: str, is_admin: bool) -> None:
    assert access(SHARED, username, is_admin=is_admin) is (Access.OWN if is_admin else NEARNESS[username])


@pytest.mark.parametrize("deed", Permission)
@pytest.mark.parametrize("username", NEARNESS)
def test_a_permission_needs_enough_access(username: str, deed: Permission) -> None:
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


def test_permissions_grow_with_access() -> None:
    allowed = [{deed for deed, (needs, _) in NEEDS.items() if has >= needs} for has in Access]
    assert all(less < more for less, more in pairwise(allowed))
    assert (allowed[Access.NONE], allowed[Access.OWN]) == (set(), set(Permission))


def test_a_refusal_does_not_reveal_the_name_for_a_guessed_id() -> None:
    with pytest.raises(Refused) as refused:
        check_access(SHARED, "eve", Permission.SEE, is_admin=False, said=SHARED.id)
    assert "demo" not in refused.value.message
    assert refused.value.context == {"workspace": SHARED.id}


@pytest.mark.parametrize("needs", Scope)
def test_a_scope_includes_no_other_scope(needs: Scope) -> None:
    check_scope({needs}, needs)
    check_scope(EVERY_SCOPE, needs)
    with pytest.raises(Refused) as refused:
        check_scope(EVERY_SCOPE - {needs}, needs)
    assert refused.value.code == "scope_missing"
