"""One user may use an installation without confinement, unless its operator accepts more: every combination."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from torpor.domain.errors import Refused
from torpor.domain.unconfined import (
    CONFINED,
    ControllerConfinement,
    MissingProtection,
    admit_controller,
    admit_sign_in,
    admit_user,
    port_warnings,
)

FILES = MissingProtection("files and processes", "bubblewrap is not installed", "apt-get install bubblewrap")
NETWORK = MissingProtection("network", "needs bubblewrap", "")
UNCONFINED = ControllerConfinement((FILES, NETWORK))
ACCEPTED = ControllerConfinement((FILES, NETWORK), is_accepted=True)
KINDS = (CONFINED, ACCEPTED, UNCONFINED, ControllerConfinement((NETWORK,)))


@pytest.mark.parametrize("users", [0, 1, 2, 7])
@pytest.mark.parametrize("controllers", [kinds for many in range(3) for kinds in itertools.product(KINDS, repeat=many)])
def test_several_users_need_confinement_or_acceptance_everywhere(
    users: int, controllers: tuple[ControllerConfinement, ...]
) -> None:
    is_allowed = users <= 1 or all(one in (CONFINED, ACCEPTED) for one in controllers)
    assert admits(partial(admit_user, users, controllers, failed="user 'eve' was not created")) is is_allowed
    assert admits(partial(admit_sign_in, users, controllers)) is is_allowed
    assert all(admits(partial(admit_controller, users, one)) for one in controllers) is is_allowed


def admits(rule: Callable[[], None]) -> bool:
    try:
        rule()
    except Refused as refused:
        return refused.code != "unconfined"
    return True


def test_a_refusal_has_what_why_and_what_to_do_each_once() -> None:
    with pytest.raises(Refused) as refused:
        admit_user(2, (UNCONFINED, CONFINED, UNCONFINED), failed="user 'eve' was not created")
    said = refused.value.message
    assert said.startswith("user 'eve' was not created: ")
    for part in (FILES.what, FILES.why, FILES.remedy, NETWORK.why, "--unconfined"):
        assert said.count(part) == 1, part
    with pytest.raises(Refused, match=r"3 users can sign in.*apt-get install bubblewrap.*--unconfined"):
        admit_controller(3, UNCONFINED)


def test_a_remedy_that_includes_another_is_enough() -> None:
    both = replace(NETWORK, remedy=f"{FILES.remedy} iptables")
    with pytest.raises(Refused, match=rf"To confine workspaces: {both.remedy}; then restart"):
        admit_controller(2, ControllerConfinement((FILES, both)))


def test_a_refused_sign_in_does_not_reveal_what_is_missing() -> None:
    with pytest.raises(Refused) as refused:
        admit_sign_in(2, (UNCONFINED,))
    assert "for one user" in refused.value.message
    assert not any(part in repr(vars(refused.value)) for part in (FILES.what, FILES.why, FILES.remedy, NETWORK.what))


def test_the_summary_states_the_effect_for_users() -> None:
    assert CONFINED.summary == ""
    assert "for one user" in UNCONFINED.summary
    assert "accepted" in ACCEPTED.summary


def test_each_port_warning_is_given_once() -> None:
    open_port = ControllerConfinement((NETWORK,), port_warning="the port is open")
    assert port_warnings((CONFINED, open_port, open_port)) == ("the port is open",)
    assert port_warnings((CONFINED, UNCONFINED)) == ()
