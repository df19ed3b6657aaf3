"""What can a workspace reach, and what can reach it?

As root: each container has its own network namespace (made by bubblewrap, gone with its last process) with one end of a
veth pair in it; the other end carries the gateway of a /30 out of 100.64.0.0/10. All rules of the firewall name the
interfaces of this data directory by their common prefix, so they are written once at the start and a container costs two
calls of `ip`. Outward is open as far as the operator's own rules of the firewall go; this machine, the other workspaces and
`blocked_networks` are closed.

Not as root: `pasta.py`. Nothing at all: the machine's own network, where nothing can be closed.
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
from torpor.runtimes.process.host_programs import ToolFailed, call, find

log = structlog.get_logger()

POOL = ipaddress.IPv4Network("100.64.0.0/10")
SUBNETS = 1 << (30 - POOL.prefixlen)
FAMILY = "torp"
"""How the interfaces of every Torpor on this machine begin, so that one's workspaces do not reach another's."""
CHAINS = "TORPOR-"
"""How the chains of every Torpor begin."""

MARK = "0x1000/0x1000"
"""On packets from our interfaces until they leave: others (a VPN, a cluster) use addresses of the pool too. One bit, of those
that Kubernetes, Cilium, Calico and Tailscale leave alone."""

ROUTES = Path("/proc/net/route")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))


@dataclass(frozen=True, slots=True)
class VethLink:
    """One container's way out."""

    interface: str
    gateway: ipaddress.IPv4Address
    address: ipaddress.IPv4Address


def subnet(index: int) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network((int(POOL.network_address) + 4 * index, 30))


def pick_subnet(seed: str, taken: Iterable[int], routed: Sequence[ipaddress.IPv4Network]) -> int:
    """The same one for the same seed, unless somebody has it: then the next that is free."""
    taken = set(taken)
    step = 0
    first = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big") % SUBNETS
    while step < SUBNETS:
        index = (first + step) % SUBNETS
        one = subnet(index)
        if index in taken:
            step += 1
        elif (network := next(filter(one.overlaps, routed), None)) is not None:
            # To its end: one by one, the half of the pool takes a second, and everything else waits for it.
            step += max(1, (int(network.broadcast_address) + 1 - int(one.network_address)) // 4)
        else:
            return index
    raise ToolFailed(f"every subnet of {POOL} is taken")


def routed_networks(table: str) -> list[ipaddress.IPv4Network]:
    """From /proc/net/route: where this machine already goes, the default route aside. Numbers there are little-endian."""
    found = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        destination, mask = (int.from_bytes(bytes.fromhex(field), "little") for field in (fields[1], fields[7]))
        # What covers the whole pool (a VPN's) cannot be avoided; the more specific route wins.
        if mask.bit_count() > POOL.prefixlen:
            found.append(ipaddress.IPv4Network((destination, mask.bit_count())))
    return found


def routed_now() -> list[ipaddress.IPv4Network]:
    return routed_networks(ROUTES.read_text())


def usable_nameservers(resolvers: Iterable[Path] = RESOLVERS) -> tuple[str, ...]:
    """Those of this machine that can be asked from elsewhere: one on its loopback cannot."""
    for path in resolvers:
        with contextlib.suppress(OSError):
            lines = [line.split() for line in path.read_text().splitlines()]
            servers = [line[1] for line in lines if len(line) > 1 and line[0] == "nameserver"]
            usable = tuple(server for server in servers if _is_usable(server))
            if usable:
                return usable
    return ()


def _is_usable(server: str) -> bool:
    try:
        address = ipaddress.ip_address(server)
    except ValueError:
        return False
    return address.version == 4 and not address.is_loopback and not address.is_unspecified


def require_forwarding() -> None:
    """PermissionError when `forward` would fail; changes nothing."""
    if not os.access(FORWARDING, os.W_OK):
        raise PermissionError(errno.EACCES, "is not ours to write", str(FORWARDING))


def forward() -> None:
    """This machine passes packets on. Never undone: somebody else may have come to rely on it."""
    FORWARDING.write_text("1")


def set_sysctls(interface: str) -> None:
    """IPv4 only, so that the rules for it are all the rules; and no packet with another's sender."""
    for family, name, value in (("ipv6", "disable_ipv6", "1"), ("ipv4", "rp_filter", "1"), ("ipv4", "route_localnet", "0")):
        with contextlib.suppress(FileNotFoundError):
            Path(f"/proc/sys/net/{family}/conf/{interface}/{name}").write_text(value)


def rules_come_first(listing: str, chain: str) -> bool:
    """Whether no rule of others comes before our jumps: one that accepts would open what ours close."""
    for parent in ("INPUT", "FORWARD"):
        targets = [line.split()[-1] for line in listing.splitlines() if line.startswith(f"-A {parent} ")]
        ours = [place for place, target in enumerate(targets) if target.startswith(f"{chain}-")]
        if any(not target.startswith(CHAINS) for target in targets[: max(ours, default=0)]):
            return False
    return True


class VethNetwork:
    """Namespaces with a veth pair each: needs root."""

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
        # A veth has no IPv6, see `harden`.
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
        """Rules in place, leftovers gone; ToolFailed when this machine does not let us."""
        await self.remove()
        await self._write_rules()

    async def _write_rules(self) -> None:
        await call(self._restore, "--noflush", "-w", "5", stdin=self.rules())
        self._written = await self._rules_there()
        forward()

    async def _ensure_rules(self) -> None:
        """A reload of the machine's firewall takes ours away with its own, or puts rules before ours that accept; looking
        costs a few milliseconds."""
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
                # In one step, so that nothing is open meanwhile.
                await call(self._restore, "--noflush", "-w", "5", stdin="\n".join(["*filter", *lines, "COMMIT", ""]))

    async def _rules_there(self) -> list[str]:
        shown = [await call(self._iptables, "-w", "5", "-t", table, "-S") for table in ("filter", "nat")]
        return [line for line in "".join(shown).splitlines() if f" {self._chain}-" in line]

    def rules(self) -> str:
        ours, family, chain = f"{self._prefix}+", f"{FAMILY}+", self._chain
        asking = [
            f"-A {{}} -d {server}/32 -p {protocol} --dport 53 -j RETURN"
            for server in self._nameservers
            for protocol in ("udp", "tcp")
        ]
        lines = [
            "*filter",
            f":{chain}-IN - [0:0]",
            f":{chain}-FWD - [0:0]",
            # A nameserver may be this machine under another of its addresses.
            *(line.format(f"{chain}-IN") for line in asking),
            f"-A {chain}-IN -j DROP",
            # A port that this machine publishes for a container of somebody's comes this way, not to INPUT.
            *([f"-A {chain}-FWD -m conntrack --ctstate DNAT -j DROP"] if self._closes_published else []),
            f"-A {chain}-FWD -i {ours} -j MARK --set-xmark {MARK}",
            # Only answers: what a workspace sends on the same connection is judged by the operator's rules each time.
            f"-A {chain}-FWD -o {ours} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            # Without an answer, which would tell others which addresses workspaces have.
            f"-A {chain}-FWD -o {family} -j DROP",
            *(line.format(f"{chain}-FWD") for line in asking),
            *(f"-A {chain}-FWD -d {network} -j RETURN" for network in self._allowed),
            # With an answer, so that a program fails at once and does not wait for minutes.
            *(f"-A {chain}-FWD -d {network} -j REJECT --reject-with icmp-admin-prohibited" for network in self._blocked),
            # The end of the chain returns to the operator's rules. Ours stand before them, since those may accept anything.
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
        """Give the namespace of this process its way out."""
        await self._ensure_rules()
        index = pick_subnet(f"{self._prefix}/{workspace_id}", self._taken.values(), [*routed_now(), *self._not_ours()])
        self._taken[workspace_id] = index
        _, gateway, address, _ = subnet(index)
        link = VethLink(f"{self._prefix}{index:05x}", gateway, address)
        # One whose dead namespace the kernel has not yet taken down would be in the way.
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
        """A cloud or a VPN may have addresses of its own in the pool, which must go on being reached."""
        named = map(ipaddress.IPv4Network, (*self._blocked, *self._allowed))
        return [network for network in named if network.prefixlen > POOL.prefixlen]

    async def disconnect(self, workspace_id: str) -> None:
        """The kernel takes a dead namespace down in its own time; its veth goes now."""
        index = self._taken.pop(workspace_id, None)
        if index is not None:
            await self._delete([f"{self._prefix}{index:05x}"])

    async def remove(self) -> None:
        """Nothing of this data directory is left in the machine's network."""
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
            # It may go by itself in the same moment.
            with contextlib.suppress(ToolFailed):
                await call(self._ip, "-force", "-batch", "-", stdin="".join(f"link del {name}\n" for name in there))
