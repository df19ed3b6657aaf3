"""Workspaces reach only allowed private networks, as root and as a normal user, tested in made networks."""

from collections.abc import Iterator

import pytest

from tests.runtimes.made_network import (
    GATEWAY,
    LINK_LOCAL_6,
    MACHINE,
    MACHINES_OTHER,
    METADATA,
    MULTICAST,
    OTHER_PUBLIC,
    PRIVATE,
    PRIVATE_6,
    PUBLIC,
    PUBLIC_6,
    RESOLVER,
    MadeNetwork,
    Said,
    made_network,
)
from tests.support.requirements import must_have
from torpor.runtimes.ability import FILES, FORWARDING, NETWORK
from torpor.runtimes.host_programs import find

pytestmark = pytest.mark.long

CLOSED = (MACHINE, *PRIVATE, *METADATA, *PRIVATE_6, f"{LINK_LOCAL_6}%eth0", f"::ffff:{PRIVATE[0]}")
TO_CLOSED = tuple(("tcp", address, 8080) for address in CLOSED)
TO_PUBLIC = ("tcp", PUBLIC, 8080)
AT_ONCE = {"EHOSTUNREACH", "ENETUNREACH", "EACCES"}


@pytest.fixture
def made() -> Iterator[MadeNetwork]:
    with made_network() as network:
        yield network


def must_confine(said: Said, as_user: bool) -> None:
    for what in (FILES, NETWORK):
        must_have(said.abilities[what][0], f"{what}: {said.abilities[what][1]}")
    assert ("pasta" in said.abilities[NETWORK][1]) is as_user


both = pytest.mark.parametrize("as_user", [False, True], ids=["root", "user"])


@both
def test_private_networks_are_blocked_and_the_nameserver_is_open_on_its_port(made: MadeNetwork, *, as_user: bool) -> None:
    must_have(find("pasta") or not as_user, "pasta")
    open_to_all = {("tcp", PUBLIC, 8080), ("tcp", f"::ffff:{PUBLIC}", 8080), ("udp", RESOLVER, 53), ("tcp", RESOLVER, 53)}
    if as_user:  # as root a workspace has no IPv6
        open_to_all |= {("tcp", PUBLIC_6, 8080)}
    closed = {*TO_CLOSED, ("tcp", RESOLVER, 8080), ("udp", RESOLVER, 8080), ("udp", PRIVATE[0], 53), ("tcp", PRIVATE[0], 53)}
    said = made.live(*open_to_all, *closed, as_user=as_user)
    must_confine(said, as_user)
    assert said.reached() == {f"{way} {address} {port}" for way, address, port in open_to_all}


@both
def test_every_address_of_this_machine_is_blocked_even_if_all_is_allowed(made: MadeNetwork, *, as_user: bool) -> None:
    must_have(find("pasta") or not as_user, "pasta")
    tried = [("tcp", address, 8080) for address in (MACHINE, *MACHINES_OTHER, PUBLIC)]
    said = made.live(*tried, as_user=as_user, allowed_networks=["0.0.0.0/0", "::/0"])
    must_confine(said, as_user)
    assert said.reached() == {f"tcp {PUBLIC} 8080"}


@both
def test_multicast_does_not_reach_the_local_network(made: MadeNetwork, *, as_user: bool) -> None:
    must_have(find("pasta") or not as_user, "pasta")
    four, six = MULTICAST
    tried = (("udp", four, 8080), ("udp", f"{six}%eth0", 8080), ("udp", PUBLIC, 8080))
    said = made.live(*tried, as_user=as_user, allowed_networks=["0.0.0.0/0", "::/0"])
    must_confine(said, as_user)
    assert said.reached() == {f"udp {PUBLIC} 8080"}


@both
def test_a_connection_to_a_blocked_network_fails_at_once(made: MadeNetwork, *, as_user: bool) -> None:
    must_have(find("pasta") or not as_user, "pasta")
    said = made.live(*(("tcp", address, 8080) for address in PRIVATE), as_user=as_user)
    must_confine(said, as_user)
    assert set(said.tried.values()) <= AT_ONCE


@both
def test_an_allowed_network_is_open_and_its_neighbours_are_blocked(made: MadeNetwork, *, as_user: bool) -> None:
    must_have(find("pasta") or not as_user, "pasta")
    allowed = ["10.20.30.40/32", "192.168.5.0/24", f"{MACHINE}/32", "fd12:3456::/32"]
    addresses = ("10.20.30.40", "192.168.5.5", "fd12:3456::9", RESOLVER, GATEWAY, *METADATA)
    tried = [("tcp", address, 8080) for address in (*addresses, MACHINE)]  # this machine stays blocked
    said = made.live(*tried, as_user=as_user, allowed_networks=allowed)
    must_confine(said, as_user)
    expected = {"tcp 10.20.30.40 8080", "tcp 192.168.5.5 8080"} | ({"tcp fd12:3456::9 8080"} if as_user else set())
    assert said.reached() == expected


@both
def test_other_networks_can_be_blocked_instead(made: MadeNetwork, *, as_user: bool) -> None:
    must_have(find("pasta") or not as_user, "pasta")
    tried = [("tcp", address, 8080) for address in (PUBLIC, OTHER_PUBLIC, PRIVATE[0])]
    said = made.live(*tried, as_user=as_user, blocked_networks=["203.0.113.0/24"])
    must_confine(said, as_user)
    assert said.reached() == {f"tcp {PUBLIC} 8080", f"tcp {PRIVATE[0]} 8080"}


@both
def test_a_workspace_cannot_remove_the_blocks(made: MadeNetwork, *, as_user: bool) -> None:
    must_have(find("pasta") or not as_user, "pasta")
    attempts = (
        "ip rule del preference 300",
        "ip rule add preference 1 lookup main",
        "ip route add 10.0.0.0/8 dev eth0",
        "ip link set eth0 down",
        "unshare -r ip rule add preference 1 lookup main",
        "unshare -r ip route add 10.0.0.0/8 dev eth0",
        "iptables -F",
    )
    said = made.live(as_user=as_user, scripts=("ip rule", *attempts, "ip rule"))
    must_confine(said, as_user)
    before, *tried, after = said.scripts
    assert before[0] == 0
    assert before == after
    assert ("prohibit" in before[1]) is as_user
    assert all(exit_code != 0 for exit_code, _ in tried), tried


@both
def test_a_blocked_package_index_is_logged_with_the_setting_that_allows_it(made: MadeNetwork, *, as_user: bool) -> None:
    must_have(find("pasta") or not as_user, "pasta")
    environ = {"PIP_INDEX_URL": f"http://ada:hunter2@{PRIVATE[0]}:8080/simple", "HTTPS_PROXY": f"{PUBLIC}:8080"}
    said = made.live(("tcp", PRIVATE[0], 8080), as_user=as_user, environ=environ)
    must_confine(said, as_user)
    assert said.reached() == set()
    (notice,) = said.log
    for word in ("package index", PRIVATE[0], "PIP_INDEX_URL", "10.0.0.0/8", "workspace_allowed_networks"):
        assert word in notice
    assert "hunter2" not in notice
    said = made.live(("tcp", PRIVATE[0], 8080), as_user=as_user, environ=environ, allowed_networks=[f"{PRIVATE[0]}/32"])
    assert said.reached() == {f"tcp {PRIVATE[0]} 8080"}
    assert said.log == []


# ── the operator's rules ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_rule_of_the_operator_that_drops_is_honoured(made: MadeNetwork) -> None:
    made.run("iptables", "-A", "FORWARD", "-d", OTHER_PUBLIC, "-j", "DROP", check=True)
    said = made.live(TO_PUBLIC, ("tcp", OTHER_PUBLIC, 8080))
    must_confine(said, False)
    assert said.reached() == {f"tcp {PUBLIC} 8080"}
    assert FORWARDING not in said.abilities


@pytest.mark.long
def test_a_policy_that_drops_workspaces_is_reported_with_a_remedy_that_works(made: MadeNetwork) -> None:
    made.run("iptables", "-P", "FORWARD", "DROP", check=True)
    # As Docker sets it.
    for rule in ("FORWARD -j DOCKER-USER", "FORWARD -i docker0 -j ACCEPT", "DOCKER-USER -j RETURN"):
        made.run("iptables", "-N", "DOCKER-USER", check=False)
        made.run("iptables", "-A", *rule.split(), check=True)
    said = made.live(TO_PUBLIC, ("udp", RESOLVER, 53), *TO_CLOSED[:3])
    must_confine(said, False)
    assert said.reached() == set()
    works, how, remedy = said.abilities[FORWARDING]
    assert not works
    assert "policy" in how
    assert remedy.startswith("iptables -A FORWARD ")
    made.run(*remedy.split(), check=True)
    said = made.live(TO_PUBLIC, ("udp", RESOLVER, 53), *TO_CLOSED[:3])
    assert said.reached() == {f"tcp {PUBLIC} 8080", f"udp {RESOLVER} 53"}
    assert FORWARDING not in said.abilities


def test_a_rule_that_accepts_all_does_not_open_blocked_networks(made: MadeNetwork) -> None:
    """Docker puts its chain before all others whenever it is restarted."""
    insert = "iptables -I FORWARD -i torp+ -j ACCEPT && iptables -I INPUT -i torp+ -j ACCEPT"
    said = made.live(TO_PUBLIC, *TO_CLOSED[:3], between=insert)
    must_confine(said, False)
    assert said.reached() == {f"tcp {PUBLIC} 8080"}


def test_the_runtime_does_not_change_rules_of_the_operator(made: MadeNetwork) -> None:
    made.run("iptables", "-A", "FORWARD", "-d", OTHER_PUBLIC, "-j", "DROP", check=True)
    before = made.run("iptables", "-S", check=True).stdout
    made.live(TO_PUBLIC, between="iptables -I FORWARD -s 192.0.2.1 -j DROP")
    after = made.run("iptables", "-S", check=True).stdout
    assert after.replace("-A FORWARD -s 192.0.2.1/32 -j DROP\n", "") == before


@both
def test_a_full_disk_pauses_a_workspace_in_its_own_network(made: MadeNetwork, *, as_user: bool) -> None:
    """Pasta has a separate PID namespace: a pid from inside belongs to another process outside."""
    must_have(find("pasta") or not as_user, "pasta")
    said = made.live(as_user=as_user)
    must_confine(said, as_user)
    assert said.paused == ["sleep"]
