"""Would the operator's firewall drop what workspaces send?

Docker sets the policy of FORWARD to DROP, and other firewalls end it with a rule that rejects. Torpor's own chain accepts
nothing for workspaces, so without a rule of the operator they have no network there. This reads the rules as a packet of a
new connection meets them. A rule with conditions that cannot be judged here counts as not matching, except one that accepts
and names our interfaces.
"""

import ipaddress
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from torpor.runtimes.process.network import CHAINS, FAMILY

MATCHES_NEW = frozenset(("NEW", "UNTRACKED"))


class ChainVerdict(Enum):
    """What becomes of the packet in one chain."""

    ACCEPTED = "accepted"
    DROPPED = "dropped"
    RETURNED = "returned"


FATES = {
    "ACCEPT": ChainVerdict.ACCEPTED,
    "DROP": ChainVerdict.DROPPED,
    "REJECT": ChainVerdict.DROPPED,
    "RETURN": ChainVerdict.RETURNED,
}


@dataclass(frozen=True, slots=True)
class Packet:
    """The first of a connection from a workspace to the outside."""

    interface: str
    sources: ipaddress.IPv4Network
    leaves_by: frozenset[str]
    """The interfaces of this machine's default routes."""


@dataclass(slots=True)
class IptablesListing:
    """What `iptables -S` prints."""

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
    """The packet does not pass."""

    rule: str = ""
    """The rule of FORWARD that ends it, as iptables prints it; empty: the policy of FORWARD."""


def find_drop(listing: str, packet: Packet) -> DroppedPacket | None:
    """Tell whether this packet ends in the operator's rules of FORWARD, or by its policy; None where it passes."""
    table = IptablesListing.read(listing)
    for words in table.rules["FORWARD"]:
        fate = _apply_rule(table, words, packet, ("FORWARD",))
        if fate is ChainVerdict.DROPPED:
            return DroppedPacket(shlex.join(("-A", "FORWARD", *words)))
        if fate is ChainVerdict.ACCEPTED:
            return None
        if fate is ChainVerdict.RETURNED:
            break
    return DroppedPacket() if table.policies.get("FORWARD") == "DROP" else None


def _apply_rule(table: IptablesListing, words: Sequence[str], packet: Packet, above: Sequence[str]) -> ChainVerdict | None:
    """What one rule does with the packet; None: it goes on to the next rule."""
    conditions, target, goes = _split(words)
    if target.startswith(CHAINS) or not _matches(conditions, packet, accepts=target == "ACCEPT"):
        return None
    if target in FATES:
        return FATES[target]
    if target not in table.rules or target in above:
        return None
    for rule in table.rules[target]:
        fate = _apply_rule(table, rule, packet, (*above, target))
        if fate is ChainVerdict.RETURNED:
            break
        if fate is not None:
            return fate
    return ChainVerdict.RETURNED if goes else None


def _split(words: Sequence[str]) -> tuple[list[str], str, bool]:
    """Return the conditions of a rule, its target, and whether it goes there for good."""
    for place, word in enumerate(words):
        if word in ("-j", "-g"):
            return list(words[:place]), words[place + 1], word == "-g"
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
    """From /proc/net/route: where packets to the outside leave."""
    fields = [line.split() for line in table.splitlines()[1:]]
    return frozenset(one[0] for one in fields if one[1] == "00000000" and one[7] == "00000000")
