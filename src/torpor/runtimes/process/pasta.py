"""What gives a workspace a network of its own where Torpor is not root?

`pasta`, the parent of bubblewrap: it makes a user and a network namespace and passes connections on in user space. It has no
firewall, so rules of the namespace's routing close what a workspace may not reach. They come before all routes, also before
the one of the local network that pasta copies from this machine. Bubblewrap then makes one more user namespace, so no program
of the workspace has a right to change them.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from torpor.domain.networks import of_version
from torpor.runtimes.process.host_programs import find

OPTIONS = ("-q", "-f", "--config-net", "-t", "none", "-u", "none", "-T", "none", "-U", "none", "--no-map-gw", "--")
TUN = Path("/dev/net/tun")
"""What pasta needs; without it pasta does not end."""
OWN_ADDRESSES, OWN_ADDRESSES_6 = Path("/proc/net/fib_trie"), Path("/proc/net/if_inet6")

# A source in a blocked network must not fail the kernel's check of sources: answers of nameservers come from there.
# Where the kernel has no IPv6 there is nothing to close.
CLOSE = """
for filter in /proc/sys/net/ipv4/conf/*/rp_filter; do { echo 0 > "$filter"; } 2>/dev/null; done
printf %s "$2" | "$1" -4 -batch - || exit 125
if [ -e /proc/net/if_inet6 ]; then printf %s "$3" | "$1" -6 -batch - || exit 125; fi
shift 3
exec "$@"
"""

# Pasta would send it into the local network of this machine. The routes for IPv6 multicast are among the local ones.
NO_MULTICAST = {
    4: ("rule add preference 50 to 224.0.0.0/4 prohibit",),
    6: (
        "rule add preference 50 to ff00::/8 prohibit",
        "rule add preference 60 lookup local",
        "rule del preference 0 lookup local",
    ),
}


def own_addresses() -> tuple[str, ...]:
    """Of this machine, now: pasta would connect to them as a program of this machine does."""
    four = {one[-1] for one, kind in pairwise(_words_of(OWN_ADDRESSES)) if kind[-2:] == ["host", "LOCAL"]}
    six = {str(ipaddress.IPv6Address(bytes.fromhex(words[0]))) for words in _words_of(OWN_ADDRESSES_6)}
    return (*sorted(four), *sorted(six))


def _words_of(path: Path) -> list[list[str]]:
    """Of each of its lines; a kernel without IPv6 does not have every file."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def argv(command: Sequence[str], *, nameservers: Iterable[str], blocked: Sequence[str], allowed: Sequence[str]) -> list[str]:
    """Run this command in a network of its own, in which the blocked networks are closed."""
    own = own_addresses()
    four, six = (routing_rules(version, nameservers, own=own, blocked=blocked, allowed=allowed) for version in (4, 6))
    return [find("pasta") or "pasta", *OPTIONS, "/bin/sh", "-c", CLOSE, "sh", find("ip") or "ip", four, six, *command]


def routing_rules(
    version: int, nameservers: Iterable[str], *, own: Iterable[str], blocked: Iterable[str], allowed: Iterable[str]
) -> str:
    """For `ip -batch`. The kernel takes the first that matches, in the order of their preference."""
    lines = list(NO_MULTICAST[version])
    lines += [
        f"rule add preference 100 to {server} ipproto {protocol} dport 53 lookup main"
        for server in of_version(version, nameservers)
        for protocol in ("udp", "tcp")
    ]
    # What the namespace has itself, the address of this machine that pasta copies among it, is found before, as local.
    lines += [f"rule add preference 150 to {address} prohibit" for address in of_version(version, own)]
    lines += [f"rule add preference 200 to {network} lookup main" for network in of_version(version, allowed)]
    lines += [f"rule add preference 300 to {network} prohibit" for network in of_version(version, blocked)]
    return "".join(f"{line}\n" for line in lines)
