"""Decide whether the operator's firewall drops packets of workspaces.

Docker sets the policy of FORWARD to DROP, and other firewalls end the chain with a rule that rejects. Torpor's chain accepts
no packets, so workspaces then need a rule of the operator. This module applies the rules to the first packet of a connection.
A rule with unknown conditions counts as not matching, except a rule that accepts and names our interfaces.
"""

import ipaddress
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from torpor.runtimes.firewall_rules import CHAINS, FAMILY

MATCHES_NEW = frozenset(("NEW", "UNTRACKED"))


class ChainVerdict(Enum):
    """The verdict of one chain on a packet."""

    ACCEPTED = "accepted"
    DROPPED = "dropped"
    RETURNED = "returned"


VERDICTS = {
    "ACCEPT": ChainVerdict.ACCEPTED,
    "DROP": ChainVerdict.DROPPED,
    "REJECT": ChainVerdict.DROPPED,
    "RETURN": ChainVerdict.RETURNED,
}


@dataclass(frozen=True, slots=True)
class Packet:
    """The first packet of a connection from a workspace to the outside."""

    interface: str
    sources: ipaddress.IPv4Network
    leaves_by: frozenset[str]
    """The interfaces of this machine's default routes."""


@dataclass(slots=True)
class IptablesListing:
    """The output of `iptables -S`."""

    policies: dict[str, str] = field(default_factory=dict)
    rules: dict[str, list[list[str]]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def read(cls, listing: str) -> "IptablesListing":
        table = cls()
        for line in listing.splitlines():
            words = shlex.split(line)
            if words[:1] == ["-P"]:
                table.policies[words[1]] = words[2]
            elif words[:1] == ["-A"]:
                table.rules[words[1]].append(words[2:])
        return table


@dataclass(frozen=True, slots=True)
class DroppedPacket:
    """A packet that the firewall drops."""

    rule: str = ""
    """The rule of FORWARD that drops it, as iptables prints it; empty: the policy of FORWARD."""


def find_drop(listing: str, packet: Packet) -> DroppedPacket | None:
    """Return the rule or policy of FORWARD that drops this packet; None if it passes."""
    table = IptablesListing.read(listing)
    for words in table.rules["FORWARD"]:
        verdict = _apply_rule(table, words, packet, ("FORWARD",))
        if verdict is ChainVerdict.DROPPED:
            return DroppedPacket(shlex.join(("-A", "FORWARD", *words)))
        if verdict is ChainVerdict.ACCEPTED:
            return None
        if verdict is ChainVerdict.RETURNED:
            break
    return DroppedPacket() if table.policies.get("FORWARD") == "DROP" else None


def _apply_rule(table: IptablesListing, words: Sequence[str], packet: Packet, above: Sequence[str]) -> ChainVerdict | None:
    """Apply one rule to the packet; None: continue with the next rule."""
    conditions, target, is_goto = _split(words)
    if target.startswith(CHAINS) or not _matches(conditions, packet, accepts=target == "ACCEPT"):
        return None
    if target in VERDICTS:
        return VERDICTS[target]
    if target not in table.rules or target in above:
        return None
    for rule in table.rules[target]:
        verdict = _apply_rule(table, rule, packet, (*above, target))
        if verdict is ChainVerdict.RETURNED:
            break
        if verdict is not None:
            return verdict
    return ChainVerdict.RETURNED if is_goto else None


def _split(words: Sequence[str]) -> tuple[list[str], str, bool]:
    """Return the conditions of a rule, its target, and whether it is a goto (without return)."""
    for index, word in enumerate(words):
        if word in ("-j", "-g"):
            return list(words[:index]), words[index + 1], word == "-g"
    return list(words), "", False


def _matches(conditions: Iterable[str], packet: Packet, *, accepts: bool) -> bool:
    words = list(conditions)
    for_ours = accepts and any(one == "-i" and value.startswith(FAMILY) for one, value in pairwise(words))
    while words:
        is_negated = words[0] == "!"
        if is_negated:
            words.pop(0)
        option, value = words[0], words[1] if len(words) > 1 else ""
        match option:
            case "-i":
                holds = _names(value, packet.interface)
            case "-o":
                holds = any(_names(value, interface) for interface in packet.leaves_by)
            case "-s":
                holds = _covers(value, packet.sources)
            case "-m" if value in ("conntrack", "state", "comment"):
                words = words[2:]
                continue
            case "--ctstate" | "--state":
                holds = bool(MATCHES_NEW & set(value.split(",")))
            case "--comment":
                holds = True
            case _:
                return for_ours
        if holds is is_negated:
            return False
        words = words[2:]
    return True


def _covers(network: str, sources: ipaddress.IPv4Network) -> bool:
    try:
        return sources.subnet_of(ipaddress.IPv4Network(network))
    except ValueError:
        return False


def _names(pattern: str, interface: str) -> bool:
    return interface.startswith(pattern[:-1]) if pattern.endswith("+") else interface == pattern


def default_interfaces(table: str) -> frozenset[str]:
    """The interfaces of the default routes in /proc/net/route."""
    fields = [line.split() for line in table.splitlines()[1:]]
    return frozenset(one[0] for one in fields if one[1] == "00000000" and one[7] == "00000000")
