"""Give each container its own network with pasta, if Torpor is not root.

`pasta` is the parent of bubblewrap. It creates a user and a network namespace and forwards connections in user space. It has no
firewall, so routing rules of the namespace block networks. They come before all routes, also before the route to the local
network that pasta copies from this machine. Bubblewrap then creates another user namespace, so that programs of the workspace
have no permission to change the rules.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from torpor.domain.networks import of_version
from torpor.runtimes.host_programs import find

OPTIONS = ("-q", "-f", "--config-net", "-t", "none", "-u", "none", "-T", "none", "-U", "none", "--no-map-gw", "--")
TUN = Path("/dev/net/tun")
"""Required by pasta; without it pasta hangs."""
OWN_ADDRESSES, OWN_ADDRESSES_6 = Path("/proc/net/fib_trie"), Path("/proc/net/if_inet6")

# rp_filter would drop replies of nameservers whose address is in a blocked network.
# A kernel without IPv6 needs no IPv6 rules.
CLOSE = """
for filter in /proc/sys/net/ipv4/conf/*/rp_filter; do { echo 0 > "$filter"; } 2>/dev/null; done
printf %s "$2" | "$1" -4 -batch - || exit 125
if [ -e /proc/net/if_inet6 ]; then printf %s "$3" | "$1" -6 -batch - || exit 125; fi
shift 3
exec "$@"
"""

# Pasta would forward multicast to this machine's local network. The IPv6 multicast routes are in the table `local`.
NO_MULTICAST = {
    4: ("rule add preference 50 to 224.0.0.0/4 prohibit",),
    6: (
        "rule add preference 50 to ff00::/8 prohibit",
        "rule add preference 60 lookup local",
        "rule del preference 0 lookup local",
    ),
}


def own_addresses() -> tuple[str, ...]:
    """This machine's current addresses: pasta would connect to them like a local program."""
    four = {one[-1] for one, kind in pairwise(_words_of(OWN_ADDRESSES)) if kind[-2:] == ["host", "LOCAL"]}
    six = {str(ipaddress.IPv6Address(bytes.fromhex(words[0]))) for words in _words_of(OWN_ADDRESSES_6)}
    return (*sorted(four), *sorted(six))


def _words_of(path: Path) -> list[list[str]]:
    """The words of each line; empty if the file does not exist (a kernel without IPv6)."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def argv(command: Sequence[str], *, nameservers: Iterable[str], blocked: Sequence[str], allowed: Sequence[str]) -> list[str]:
    """Run this command in a separate network without the blocked networks."""
    own = own_addresses()
    four, six = (routing_rules(version, nameservers, own=own, blocked=blocked, allowed=allowed) for version in (4, 6))
    return [find("pasta") or "pasta", *OPTIONS, "/bin/sh", "-c", CLOSE, "sh", find("ip") or "ip", four, six, *command]


def routing_rules(
    version: int, nameservers: Iterable[str], *, own: Iterable[str], blocked: Iterable[str], allowed: Iterable[str]
) -> str:
    """Rules for `ip -batch`. The kernel uses the first match, in the order of preference."""
    lines = list(NO_MULTICAST[version])
    lines += [
        f"rule add preference 100 to {server} ipproto {protocol} dport 53 lookup main"
        for server in of_version(version, nameservers)
        for protocol in ("udp", "tcp")
    ]
    # The namespace's own addresses, including the copied address of this machine, match before as local addresses.
    lines += [f"rule add preference 150 to {address} prohibit" for address in of_version(version, own)]
    lines += [f"rule add preference 200 to {network} lookup main" for network in of_version(version, allowed)]
    lines += [f"rule add preference 300 to {network} prohibit" for network in of_version(version, blocked)]
    return "".join(f"{line}\n" for line in lines)
