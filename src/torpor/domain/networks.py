"""Define the networks that workspaces may not reach.

Hosts in private networks often trust their neighbours: routers, printers, databases without a password, and the metadata
services of clouds, which hand out credentials.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

PRIVATE = (
    "10.0.0.0/8",  # RFC 1918
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",  # carrier-grade NAT (RFC 6598); overlay networks use it as well
    "169.254.0.0/16",  # link-local, with the metadata service of most clouds
    "fe80::/10",
    "fc00::/7",  # unique local addresses (RFC 4193)
)
METADATA = (
    "100.100.100.200/32",  # Alibaba; listed although it is in a private range, so that no workspace gets this address
    "168.63.129.16/32",  # Azure
)
BLOCKED = (*PRIVATE, *METADATA)


def parse_networks(text: str) -> tuple[str, ...]:
    """Return the networks of a comma-separated list, each as address/length; raise ValueError for an invalid one."""
    return tuple(str(_parse(word)) for word in filter(None, map(str.strip, text.split(","))))


def _parse(word: str) -> Network:
    try:
        network = ip_network(word)
    except ValueError:
        raise ValueError(_what_is_wrong(word)) from None
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise ValueError(f"{word!r} contains IPv4 addresses; write them as IPv4")
    if isinstance(network, IPv6Network) and network.network_address.scope_id is not None:
        raise ValueError(f"{word!r} names an interface; write the address alone")
    return network


def _what_is_wrong(word: str) -> str:
    try:
        whole = ip_network(word, strict=False)
    except ValueError:
        return f"{word!r} is not a network; write addresses or networks separated by commas, for example 10.1.2.3, 10.1.0.0/16"
    return f"{word!r} is an address in {whole}; write {word.partition('/')[0]} for the address, {whole} for the network"


def of_version(version: int, networks: Iterable[str]) -> list[str]:
    return [network for network in networks if ip_network(network).version == version]


def closed_by(address: str, *, blocked: Iterable[str], allowed: Iterable[str]) -> str | None:
    """Return the blocked network that contains this address, or None if it is open. Allowed networks take precedence."""
    seen: Address = ip_address(address)
    if isinstance(seen, IPv6Address) and seen.ipv4_mapped is not None:
        seen = seen.ipv4_mapped
    if any(seen in ip_network(network) for network in allowed):
        return None
    return next((network for network in blocked if seen in ip_network(network)), None)
