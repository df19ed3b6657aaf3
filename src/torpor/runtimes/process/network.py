"""Give each container its own network, with firewall rules, if Torpor is root.

Each container has a network namespace (created by bubblewrap, removed with its last process) with one end of a veth pair. The
other end has the gateway of a /30 of 100.64.0.0/10. All firewall rules match the interfaces of this data directory by their
common prefix, so they are written once at the start, and a container needs only two calls of `ip`. Outgoing connections are
subject to the operator's rules; this machine, the other workspaces and `blocked_networks` are blocked.

If Torpor is not root, see `pasta.py`. Without both, workspaces share the machine's network without restriction.
"""

import asyncio
import contextlib
import errno
import hashlib
import ipaddress
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from torpor.domain.networks import of_version
from torpor.runtimes.firewall_rules import CHAINS, FAMILY, nameserver_rules, network_rules, published_rule
from torpor.runtimes.host_programs import ToolFailed, call, find

log = structlog.get_logger()

POOL = ipaddress.IPv4Network("100.64.0.0/10")
SUBNETS = 1 << (30 - POOL.prefixlen)
MARK = "0x1000/0x1000"
"""Set on packets from our interfaces, since others (a VPN, a cluster) use addresses of the pool too. It is a bit that
Kubernetes, Cilium, Calico and Tailscale do not use."""

ROUTES = Path("/proc/net/route")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


@dataclass(frozen=True, slots=True)
class VethLink:
    """The network link of one container."""

    interface: str
    gateway: ipaddress.IPv4Address
    address: ipaddress.IPv4Address


def subnet(index: int) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network((int(POOL.network_address) + 4 * index, 30))


def pick_subnet(seed: str, taken: Iterable[int], routed: Sequence[ipaddress.IPv4Network]) -> int:
    """The same subnet for the same seed, or the next free one if it is taken."""
    taken = set(taken)
    step = 0
    first = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big") % SUBNETS
    while step < SUBNETS:
        index = (first + step) % SUBNETS
        one = subnet(index)
        if index in taken:
            step += 1
        elif (network := next(filter(one.overlaps, routed), None)) is not None:
            # Skip the whole network: half of the pool, subnet by subnet, would block the event loop for a second.
            step += max(1, (int(network.broadcast_address) + 1 - int(one.network_address)) // 4)
        else:
            return index
    raise ToolFailed(f"every subnet of {POOL} is in use")


def routed_networks(table: str) -> list[ipaddress.IPv4Network]:
    """The networks in /proc/net/route, without the default route. Numbers there are little-endian."""
    found = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        destination, mask = (int.from_bytes(bytes.fromhex(field), "little") for field in (fields[1], fields[7]))
        # A route that covers the whole pool (of a VPN) cannot be avoided; the more specific route wins.
        if mask.bit_count() > POOL.prefixlen:
            found.append(ipaddress.IPv4Network((destination, mask.bit_count())))
    return found


def routed_now() -> list[ipaddress.IPv4Network]:
    return routed_networks(ROUTES.read_text())


def require_forwarding() -> None:
    """Raise PermissionError if `forward` would fail; change no setting."""
    if not os.access(FORWARDING, os.W_OK):
        raise PermissionError(errno.EACCES, "not writable", str(FORWARDING))


def forward() -> None:
    """Enable IP forwarding. It is never disabled again, since other programs may rely on it."""
    FORWARDING.write_text("1")


def set_sysctls(interface: str) -> None:
    """Disable IPv6, since there are only IPv4 rules, and drop packets with a wrong source address."""
    for family, name, value in (("ipv6", "disable_ipv6", "1"), ("ipv4", "rp_filter", "1"), ("ipv4", "route_localnet", "0")):
        with contextlib.suppress(FileNotFoundError):
            Path(f"/proc/sys/net/{family}/conf/{interface}/{name}").write_text(value)


def rules_come_first(listing: str, chain: str) -> bool:
    """Whether our jumps come before all other rules: an earlier rule that accepts would override ours."""
    for parent in ("INPUT", "FORWARD"):
        targets = [line.split()[-1] for line in listing.splitlines() if line.startswith(f"-A {parent} ")]
        ours = [place for place, target in enumerate(targets) if target.startswith(f"{chain}-")]
        if any(not target.startswith(CHAINS) for target in targets[: max(ours, default=0)]):
            return False
    return True


class VethNetwork:
    """Connects network namespaces with veth pairs; needs root."""

    def __init__(
        self,
        tag: str,
        nameservers: tuple[str, ...],
        *,
        blocked: tuple[str, ...],
        allowed: tuple[str, ...],
        closes_published: bool = True,
    ) -> None:
        self._prefix = f"{FAMILY}{tag}"
        self._chain = f"{CHAINS}{tag.upper()}"
        self._nameservers = nameservers
        # A veth has no IPv6, see `set_sysctls`.
        self._blocked = of_version(4, blocked)
        self._allowed = of_version(4, allowed)
        self._closes_published = closes_published
        self._written: list[str] = []
        self._writing = asyncio.Lock()
        self._taken: dict[str, int] = {}
        self._ip = find("ip") or "ip"
        self._restore = find("iptables-restore") or "iptables-restore"
        self._iptables = find("iptables") or "iptables"

    async def prepare(self) -> None:
        """Remove leftovers and write the rules; ToolFailed if this machine does not permit it."""
        await self.remove()
        await self._write_rules()

    async def _write_rules(self) -> None:
        await call(self._restore, "--noflush", "-w", "5", stdin=self.rules())
        self._written = await self._rules_there()
        forward()

    async def _ensure_rules(self) -> None:
        """Restore our rules if a reload of the machine's firewall removed them, or added rules before them.

        The check takes a few milliseconds.
        """
        async with self._writing:
            there = await self._rules_there()
            if there != self._written:
                log.warning("firewall_rules_lost", chain=self._chain)
                await self._remove_rules()
                await self._write_rules()
            elif not rules_come_first(await call(self._iptables, "-w", "5", "-S"), self._chain):
                log.warning("firewall_rules_displaced", chain=self._chain)
                jumps = [line for line in there if line.startswith(("-A INPUT ", "-A FORWARD "))]
                lines = [line.replace("-A ", "-D ", 1) for line in jumps]
                lines += [line.replace("-A ", "-I ", 1) for line in reversed(jumps)]
                # In one transaction, so that the rules are always in effect.
                await call(self._restore, "--noflush", "-w", "5", stdin="\n".join(["*filter", *lines, "COMMIT", ""]))

    async def _rules_there(self) -> list[str]:
        shown = [await call(self._iptables, "-w", "5", "-t", table, "-S") for table in ("filter", "nat")]
        return [line for line in "".join(shown).splitlines() if f" {self._chain}-" in line]

    def rules(self) -> str:
        ours, family, chain = f"{self._prefix}+", f"{FAMILY}+", self._chain
        lines = [
            "*filter",
            f":{chain}-IN - [0:0]",
            f":{chain}-FWD - [0:0]",
            # A nameserver may be another address of this machine.
            *nameserver_rules(f"{chain}-IN", self._nameservers),
            f"-A {chain}-IN -j DROP",
            *([published_rule(f"{chain}-FWD")] if self._closes_published else []),
            f"-A {chain}-FWD -i {ours} -j MARK --set-xmark {MARK}",
            # Only replies: the operator's rules apply to every packet that a workspace sends.
            f"-A {chain}-FWD -o {ours} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            # Without a reply, which would reveal the addresses of workspaces.
            f"-A {chain}-FWD -o {family} -j DROP",
            *nameserver_rules(f"{chain}-FWD", self._nameservers),
            *network_rules(f"{chain}-FWD", blocked=self._blocked, allowed=self._allowed),
            # The end of the chain returns to the operator's rules. Ours come first, since those may accept everything.
            f"-I INPUT -i {ours} -j {chain}-IN",
            f"-I FORWARD -i {ours} -j {chain}-FWD",
            f"-I FORWARD -o {ours} -j {chain}-FWD",
            "COMMIT",
            "*nat",
            f":{chain}-NAT - [0:0]",
            f"-A {chain}-NAT ! -o {family} -j MASQUERADE",
            f"-I POSTROUTING -s {POOL} -m mark --mark {MARK} -j {chain}-NAT",
            "COMMIT",
            "",
        ]
        return "\n".join(lines)

    async def connect(self, workspace_id: str, pid: int) -> VethLink:
        """Connect the network namespace of this process."""
        await self._ensure_rules()
        index = pick_subnet(f"{self._prefix}/{workspace_id}", self._taken.values(), [*routed_now(), *self._not_ours()])
        self._taken[workspace_id] = index
        _, gateway, address, _ = subnet(index)
        link = VethLink(f"{self._prefix}{index:05x}", gateway, address)
        # The kernel may not have removed the interface of an ended namespace yet.
        await self._delete([link.interface])
        await call(self._ip, "-batch", "-", stdin=f"link add {link.interface} type veth peer name eth0 netns {pid}\n")
        set_sysctls(link.interface)
        outside = f"addr add {gateway}/30 dev {link.interface}\nlink set {link.interface} up\n"
        inside = f"addr add {address}/30 dev eth0\nlink set eth0 up\nroute add default via {gateway}\n"
        await call(self._ip, "-batch", "-", stdin=outside)
        nsenter = find("nsenter") or "nsenter"
        await call(nsenter, f"--net=/proc/{pid}/ns/net", self._ip, "-batch", "-", stdin=inside)
        return link

    def _not_ours(self) -> list[ipaddress.IPv4Network]:
        """Networks of a cloud or a VPN in the pool, which must stay reachable."""
        named = map(ipaddress.IPv4Network, (*self._blocked, *self._allowed))
        return [network for network in named if network.prefixlen > POOL.prefixlen]

    async def disconnect(self, workspace_id: str) -> None:
        """Remove the veth now; the kernel removes the namespace later."""
        index = self._taken.pop(workspace_id, None)
        if index is not None:
            await self._delete([f"{self._prefix}{index:05x}"])

    async def remove(self) -> None:
        """Remove all interfaces and rules of this data directory."""
        with contextlib.suppress(OSError):
            await self._delete([name for _, name in socket.if_nameindex() if name.startswith(self._prefix)])
        self._taken.clear()
        await self._remove_rules()

    async def _remove_rules(self) -> None:
        for table, suffixes in (("filter", ("IN", "FWD")), ("nat", ("NAT",))):
            with contextlib.suppress(ToolFailed):
                await self._remove_chains(table, [f"{self._chain}-{suffix}" for suffix in suffixes])

    async def _remove_chains(self, table: str, chains: list[str]) -> None:
        listed = (await call(self._iptables, "-w", "5", "-t", table, "-S")).splitlines()
        jumps = [line.replace("-A ", "-D ", 1) for line in listed if line.startswith("-A ") and line.split()[-1] in chains]
        there = [chain for chain in chains if f"-N {chain}" in listed]
        if there or jumps:
            lines = [
                f"*{table}",
                *jumps,
                *(f"-F {chain}" for chain in there),
                *(f"-X {chain}" for chain in there),
                "COMMIT",
                "",
            ]
            await call(self._restore, "--noflush", "-w", "5", stdin="\n".join(lines))

    async def _delete(self, interfaces: list[str]) -> None:
        there = sorted(set(interfaces) & {name for _, name in socket.if_nameindex()})
        if there:
            # The kernel may remove it at the same time.
            with contextlib.suppress(ToolFailed):
                await call(self._ip, "-force", "-batch", "-", stdin="".join(f"link del {name}\n" for name in there))
