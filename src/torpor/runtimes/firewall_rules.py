"""Define the firewall rules that every runtime needs, as lines for iptables-restore."""

from collections.abc import Iterable

FAMILY = "torp"
"""The prefix of the interfaces of every Torpor on this machine, to block connections between their workspaces."""
CHAINS = "TORPOR-"
"""The prefix of the chains of every Torpor."""


def nameserver_rules(chain: str, nameservers: Iterable[str]) -> list[str]:
    """The nameservers are open on their port. One may be an address of this machine, or in a blocked network."""
    return [
        f"-A {chain} -d {server}/32 -p {protocol} --dport 53 -j RETURN" for server in nameservers for protocol in ("udp", "tcp")
    ]


def network_rules(chain: str, *, blocked: Iterable[str], allowed: Iterable[str]) -> list[str]:
    """The blocked networks are closed, except the allowed ones.

    The packets are rejected with a reply, so that a program fails at once instead of after minutes.
    """
    return [
        *(f"-A {chain} -d {network} -j RETURN" for network in allowed),
        *(f"-A {chain} -d {network} -j REJECT --reject-with icmp-admin-prohibited" for network in blocked),
    ]


def published_rule(chain: str) -> str:
    """A connection to a port that this machine publishes for a container goes through FORWARD, not INPUT."""
    return f"-A {chain} -m conntrack --ctstate DNAT -j DROP"
