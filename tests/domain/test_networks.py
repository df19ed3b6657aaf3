"""An address is closed to workspaces by the blocked network that contains it."""

import pytest

from torpor.domain.networks import BLOCKED, closed_by


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.255.0.1", "10.0.0.0/8"),
        ("172.31.255.255", "172.16.0.0/12"),
        ("172.32.0.1", None),
        ("192.168.1.1", "192.168.0.0/16"),
        ("100.100.100.200", "100.64.0.0/10"),
        ("100.128.0.1", None),
        ("169.254.169.254", "169.254.0.0/16"),
        ("168.63.129.16", "168.63.129.16/32"),
        ("198.51.100.7", None),
        ("fd00:ec2::254", "fc00::/7"),
        ("fe80::1%eth0", "fe80::/10"),
        ("2001:db8::1", None),
        ("::ffff:10.0.0.1", "10.0.0.0/8"),
    ],
)
def test_private_addresses_are_closed_by_default(address: str, network: str | None) -> None:
    assert closed_by(address, blocked=BLOCKED, allowed=()) == network


def test_an_allowed_network_overrides_a_blocked_one() -> None:
    assert closed_by("10.1.2.3", blocked=("10.1.2.3/32",), allowed=("10.0.0.0/8",)) is None
    assert closed_by("10.1.2.3", blocked=("10.0.0.0/8",), allowed=("10.1.2.4/32", "fd12::/64")) == "10.0.0.0/8"
