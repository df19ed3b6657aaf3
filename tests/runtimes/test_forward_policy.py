"""Detect whether the operator's firewall drops packets of workspaces."""

import ipaddress

import pytest

from torpor.runtimes.forward_policy import DroppedPacket, Packet, default_interfaces, find_drop
from torpor.runtimes.process.network import rules_come_first

PACKET = Packet("torp12abc00000", ipaddress.IPv4Network("100.64.0.0/10"), frozenset({"eth0"}))
BY_POLICY = DroppedPacket()

OPEN = """-P INPUT ACCEPT
-P FORWARD ACCEPT
"""
DOCKER = """-P FORWARD DROP
-N DOCKER
-N DOCKER-FORWARD
-N DOCKER-USER
-N TORPOR-12ABC-FWD
-A FORWARD -i torp12abc+ -j TORPOR-12ABC-FWD
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER -i docker0 ! -o docker0 -j ACCEPT
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -o docker0 -j DOCKER
-A DOCKER-FORWARD -i docker0 -j ACCEPT
-A DOCKER-USER -j RETURN
-A TORPOR-12ABC-FWD -o torp12abc+ -j ACCEPT
"""
UFW = """-P FORWARD DROP
-N ufw-before-forward
-N ufw-user-forward
-A FORWARD -j ufw-before-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
"""
REJECTS = """-P FORWARD ACCEPT
-A FORWARD -m state --state RELATED,ESTABLISHED -m comment --comment "a b" -j ACCEPT
-A FORWARD -j REJECT --reject-with icmp-host-prohibited
"""
GOES = """-P FORWARD DROP
-A FORWARD -g LAST
-A FORWARD -j ACCEPT
-A LAST -s 10.0.0.0/8 -j ACCEPT
"""


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        (OPEN, None),
        (DOCKER, BY_POLICY),
        (f"{DOCKER}-A FORWARD -i torp+ -j ACCEPT\n", None),
        (f"{DOCKER}-A FORWARD -i torp+ -p tcp -j ACCEPT\n", None),
        (f"{DOCKER}-A FORWARD -p tcp -j ACCEPT\n", BY_POLICY),
        (f"{DOCKER}-A FORWARD -o eth0 -j ACCEPT\n", None),
        (f"{DOCKER}-A FORWARD -o wg0 -j ACCEPT\n", BY_POLICY),
        (f"{DOCKER}-A FORWARD -s 100.64.0.0/10 -j ACCEPT\n", None),
        (f"{DOCKER}-A FORWARD -s 100.64.0.0/255.0.255.0 -j ACCEPT\n", BY_POLICY),
        (f"{DOCKER}-A FORWARD ! -i torp+ -j ACCEPT\n", BY_POLICY),
        (f"{DOCKER}-A FORWARD -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT\n", None),
        (DOCKER.replace("-A DOCKER-USER -j RETURN", "-A DOCKER-USER -i torp+ -j ACCEPT"), None),
        (UFW, BY_POLICY),
        (f"{UFW}-A ufw-user-forward -i torp+ -o eth0 -j ACCEPT\n", None),
        (f"{OPEN}-A FORWARD -d 203.0.113.9/32 -j DROP\n", None),
        (f"{OPEN}-A FORWARD -i torp+ -d 203.0.113.9/32 -j DROP\n", None),
        (REJECTS, DroppedPacket("-A FORWARD -j REJECT --reject-with icmp-host-prohibited")),
        (REJECTS.replace("-A FORWARD -j REJECT", "-A FORWARD -i torp+ -j ACCEPT\n-A FORWARD -j REJECT"), None),
        (GOES, BY_POLICY),
        ("-P FORWARD DROP\n-A FORWARD -j A\n-A A -j B\n-A B -j A\n", BY_POLICY),
    ],
)
def test_rules_are_evaluated_in_the_order_of_a_packet(listing: str, expected: DroppedPacket | None) -> None:
    assert find_drop(listing, PACKET) == expected


def test_packets_leave_by_the_default_routes() -> None:
    table = """Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0
eth1 0000A8C0 00000000 0001 0 0 0 0000FFFF 0 0 0
"""
    assert default_interfaces(table) == frozenset({"eth0"})


@pytest.mark.parametrize(
    ("before", "first"),
    [("", True), ("-A FORWARD -i torp99999+ -j TORPOR-99999-FWD\n", True), ("-A FORWARD -j DOCKER-USER\n", False)],
)
def test_only_jumps_of_other_torpor_installations_may_precede_ours(before: str, *, first: bool) -> None:
    listing = f"-P FORWARD DROP\n{before}-A FORWARD -i torp12abc+ -j TORPOR-12ABC-FWD\n-A FORWARD -j ACCEPT\n"
    assert rules_come_first(listing, "TORPOR-12ABC") is first
