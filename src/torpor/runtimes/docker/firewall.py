"""Write the firewall rules that confine the workspaces of an engine, and restore them when they are lost.

The rules match the bridges of this installation by name, so a container needs no rule of its own. They are in the machine's
chains INPUT and FORWARD, before all other rules. Docker puts its own rules first whenever it starts or creates a network, but
keeps its chain DOCKER-USER before them: the rules of FORWARD are in both. Every change is one transaction, so the rules are
always in effect. They match replies by direction: a connection that a workspace opened while the rules were lost ends when
they are restored.

Workspaces have IPv4 only. The rules for IPv6 drop everything.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

import structlog

from torpor.domain.networks import of_version
from torpor.runtimes.docker.engine_network import EngineNetwork
from torpor.runtimes.firewall_rules import CHAINS, FAMILY, nameserver_rules, network_rules, published_rule
from torpor.runtimes.forward_policy import DroppedPacket, Packet, default_interfaces, find_drop
from torpor.runtimes.host_programs import TRIAL_S, ToolFailed, call, find
from torpor.runtimes.nameservers import usable_nameservers
from torpor.system_packages import install_command

log = structlog.get_logger()

DOCKERS = "DOCKER-USER"
"""The chain that Docker creates for rules of others and always puts first."""
PROGRAMS = {4: "iptables", 6: "ip6tables"}
OTHER_BACKENDS = ("-nft", "-legacy")
"""Two sets of rules of one kernel; `iptables` is one of them. A packet that one of them drops is dropped."""
LEGACY_TABLES = "/proc/net/ip_tables_names"
IPV6 = Path("/proc/net/if_inet6")
REPLIES = "-m conntrack --ctstate RELATED,ESTABLISHED --ctdir REPLY -j ACCEPT"
ATTEMPTS = 3
"""Another controller may change the rules at the same time."""
BRIDGED = tuple(f"/proc/sys/net/bridge/bridge-nf-call-{program}" for program in PROGRAMS.values())
"""Whether packets between two containers of one bridge pass the firewall."""
RUN_AS_ROOT = "run Torpor as root on the engine's machine, in a container with --network host --cap-add NET_ADMIN"


class FirewallMissing(Exception):
    """The rules cannot be made. `remedy` says what you can do."""

    def __init__(self, how: str, remedy: str) -> None:
        super().__init__(how)
        self.how = how
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class WrittenRules:
    """The rules of one IP version: as they were written, and as the firewall lists them."""

    wanted: str
    listed: tuple[str, ...]


class EngineFirewall:
    """`prefix`: the command that runs a program in the network of the engine's machine; none if that is this network."""

    def __init__(
        self,
        workspaces: EngineNetwork,
        jobs: EngineNetwork,
        *,
        blocked: Iterable[str],
        allowed: Iterable[str],
        nameservers: tuple[str, ...] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        self._workspaces = workspaces.bridge
        self._jobs = jobs.bridge
        self._chain = f"{CHAINS}{workspaces.tag.upper()}"
        self._blocked = of_version(4, blocked)
        self._allowed = of_version(4, allowed)
        self._nameservers = nameservers
        self._prefix = tuple(prefix)
        self._written: dict[int, WrittenRules] = {}
        self._backend: str | None = None
        self._lock = asyncio.Lock()
        self._begun = self._checked = 0

    @property
    def nameservers(self) -> tuple[str, ...]:
        return self._nameservers or usable_nameservers()

    # ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def rules(self, version: int) -> list[str]:
        """The rules of our chains."""
        enters, passes, jobs = (f"{self._chain}-{suffix}" for suffix in ("IN", "FWD", "JOB"))
        if version == 6:
            return [f"-A {chain} -j DROP" for chain in (enters, passes, jobs)]
        bridge, nameservers = self._workspaces, of_version(4, self.nameservers)
        return [
            # The connections of controllers and proxies to agents begin on this machine.
            f"-A {enters} {REPLIES}",
            *nameserver_rules(enters, nameservers),
            f"-A {enters} -j DROP",
            published_rule(passes),
            # Without a reply, which would reveal the addresses of workspaces.
            f"-A {passes} -i {bridge} -o {FAMILY}+ -j DROP",
            f"-A {passes} -o {bridge} {REPLIES}",
            f"-A {passes} -o {bridge} -j DROP",
            *nameserver_rules(passes, nameservers),
            # The end of the chain returns to the rules of Docker and of the operator.
            *network_rules(passes, blocked=self._blocked, allowed=self._allowed),
            # Jobs reach an archive store in any network.
            f"-A {jobs} -o {self._jobs} {REPLIES}",
            f"-A {jobs} -o {self._jobs} -j DROP",
            f"-A {jobs} -o {FAMILY}+ -j DROP",
        ]

    def _jumps(self, *, is_docker_there: bool) -> list[str]:
        enters, passes, jobs = (f"{self._chain}-{suffix}" for suffix in ("IN", "FWD", "JOB"))
        both = [(self._workspaces, passes), (self._jobs, jobs)]
        parents = ["FORWARD", DOCKERS] if is_docker_there else ["FORWARD"]
        forward = [f"{parent} -{way} {bridge} -j {chain}" for parent in parents for bridge, chain in both for way in "io"]
        return [f"INPUT -i {self._workspaces} -j {enters}", *forward]

    def _transaction(self, version: int, listing: Sequence[str]) -> str:
        """Replaces the rules of this listing."""
        jumps = self._jumps(is_docker_there=f"-N {DOCKERS}" in listing)
        lines = [
            "*filter",
            *(f":{self._chain}-{suffix} - [0:0]" for suffix in ("IN", "FWD", "JOB")),
            *self.rules(version),
            *(line.replace("-A ", "-D ", 1) for line in listing if self._is_jump(line)),
            *(f"-I {jump}" for jump in reversed(jumps)),
            "COMMIT",
            "",
        ]
        return "\n".join(lines)

    def _is_ours(self, line: str) -> bool:
        return f" {self._chain}-" in line

    def _is_jump(self, line: str) -> bool:
        return self._is_ours(line) and line.startswith("-A ") and not line.startswith(f"-A {self._chain}-")

    # ── checks ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ensure(self) -> None:
        """The rules are in effect; FirewallMissing if this machine does not permit it. Takes a few milliseconds."""
        asked = self._begun
        async with self._lock:
            if self._checked > asked:  # a check that began after this call
                return
            self._begun += 1
            await self._choose_backend()
            await asyncio.gather(*map(self._ensure, self._versions()))
            self._checked = self._begun

    def _versions(self) -> tuple[int, ...]:
        return (4, 6) if IPV6.exists() else (4,)

    async def _ensure(self, version: int) -> None:
        rules = self.rules(version)
        wanted, refused = "\n".join(rules), FirewallMissing("another program changes the firewall at the same time", "stop it")
        for _ in range(ATTEMPTS):
            listing = await self._listing(version)
            known = self._written.get(version)
            if known == WrittenRules(wanted, self._ours(listing)) and comes_first(listing, self._chain):
                return
            if known is not None and known.wanted == wanted:
                log.warning("firewall_rules_lost", chain=self._chain, version=version)
            try:
                await self._restore(version, self._transaction(version, listing))
            except FirewallMissing as missing:
                refused = missing
                continue
            listing = await self._listing(version)
            # A listing without the rules must not become the one that later listings are compared with.
            if self._is_complete(listing, len(rules)):
                self._written[version] = WrittenRules(wanted, self._ours(listing))
                return
        raise refused

    def _ours(self, listing: Sequence[str]) -> tuple[str, ...]:
        return tuple(filter(self._is_ours, listing))

    def _is_complete(self, listing: Sequence[str], rules: int) -> bool:
        """Whether there are this many rules in our chains, and each jump to them once."""
        jumps = [f"-A {jump}" for jump in self._jumps(is_docker_there=f"-N {DOCKERS}" in listing)]
        found = sum(line.startswith(f"-A {self._chain}-") for line in listing)
        return found == rules and sorted(filter(self._is_jump, listing)) == sorted(jumps)

    async def _listing(self, version: int) -> list[str]:
        return (await self._run(f"{PROGRAMS[version]}{self._backend}", "-w", "5", "-S")).splitlines()

    async def _choose_backend(self) -> None:
        """Once: the backend in which Docker's rules are. Torpor's own image may have the other one as `iptables`."""
        if self._backend is None:
            self._backend = await self._backend_of_docker()

    async def _backend_of_docker(self) -> str:
        if DOCKERS in await self._run("iptables", "-w", "5", "-S"):
            return ""
        for backend in OTHER_BACKENDS:
            # Asking the legacy backend creates its tables, so it is asked only if they exist.
            if backend == "-legacy" and "filter" not in await self._read(LEGACY_TABLES):
                continue
            if find(f"iptables{backend}") and DOCKERS in await self._run(f"iptables{backend}", "-w", "5", "-S"):
                return backend
        return ""

    async def _restore(self, version: int, rules: str, *options: str) -> None:
        await self._run(f"{PROGRAMS[version]}{self._backend}-restore", *options, "--noflush", "-w", "5", stdin=rules)

    async def ensure_bridged(self) -> None:
        """Packets between containers of one bridge pass the rules. Docker does the same when it creates such a network."""
        said = (await self._read(*BRIDGED)).split()
        if not said:
            how = f"{BRIDGED[0]} does not exist, so workspaces can reach each other"
            raise FirewallMissing(how, "modprobe br_netfilter")
        for path, value in zip(BRIDGED, said, strict=False):
            if value != "1":
                log.warning("bridges_bypass_the_firewall", path=path)
                try:
                    await call(*self._prefix, "tee", path, stdin="1")
                except ToolFailed as failure:
                    how = f"{path} is {value}, so workspaces can reach each other, and Torpor cannot change it: {failure}"
                    raise FirewallMissing(how, f"write 1 to {path}") from failure

    async def has_bridge(self, address: str) -> bool:
        """Whether the bridge of workspaces is an interface of this machine, with this address."""
        said = await self._run("ip", "-o", "-4", "addr", "show", "dev", self._workspaces, default="")
        return f" inet {address}/" in said

    async def find_drop(self, subnet: str) -> DroppedPacket | None:
        """The rule of others that drops all packets of workspaces to the outside; None if they pass."""
        await self._choose_backend()
        leaves_by = default_interfaces(await self._read("/proc/net/route"))
        packet = Packet(self._workspaces, IPv4Network(subnet), leaves_by)
        return find_drop("\n".join(await self._listing(4)), packet)

    async def examine(self) -> None:
        """FirewallMissing if the rules could not be made; change nothing."""
        await self._choose_backend()
        for version in self._versions():
            await self._restore(version, self._transaction(version, await self._listing(version)), "--test")

    # ── removal ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def remove(self) -> None:
        """Remove all rules of this installation, when it is removed from the engine."""
        async with self._lock:
            await self._choose_backend()
            for version in self._versions():
                listing = await self._listing(version)
                chains = [line.split()[1] for line in listing if line.startswith(f"-N {self._chain}-")]
                jumps = [line.replace("-A ", "-D ", 1) for line in listing if self._is_jump(line)]
                if chains or jumps:
                    emptied = [f"-F {chain}" for chain in chains] + [f"-X {chain}" for chain in chains]
                    await self._restore(version, "\n".join(["*filter", *jumps, *emptied, "COMMIT", ""]))
            self._written.clear()

    # ── programs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _read(self, *paths: str) -> str:
        """Files of the machine's network; empty if one does not exist."""
        try:
            return await call(*self._prefix, "cat", *paths)
        except ToolFailed:
            return ""

    async def _run(self, program: str, *words: str, stdin: str = "", default: str | None = None) -> str:
        """Its output; `default` if it fails."""
        path = find(program)
        if path is None:
            raise FirewallMissing(f"{program} is not installed", install_command(["ip" if program == "ip" else "iptables"]))
        try:
            return await call(*self._prefix, path, *words, stdin=stdin, within_s=TRIAL_S)
        except (ToolFailed, OSError) as failure:
            if default is not None:
                return default
            raise FirewallMissing(str(failure), RUN_AS_ROOT) from failure


def comes_first(listing: Sequence[str], chain: str) -> bool:
    """Whether each of our jumps comes before all rules of others: an earlier rule that accepts would override ours.

    DOCKER-USER, if FORWARD begins with it, counts as a part of FORWARD.
    """
    order = {parent: [line for line in listing if line.startswith(f"-A {parent} ")] for parent in ("INPUT", "FORWARD", DOCKERS)}
    forward: list[str] = []
    for line in order["FORWARD"]:
        forward += order[DOCKERS] if line == f"-A FORWARD -j {DOCKERS}" else [line]
    seen = set()
    for rules in (order["INPUT"], forward):
        for rule in rules:
            if f" -j {CHAINS}" not in rule:
                break
            if f" -j {chain}-" in rule:
                seen.add(rule.split(" ", 2)[2])
    wanted = {line.split(" ", 2)[2] for line in listing if line.startswith("-A ") and f" -j {chain}-" in line}
    return seen == wanted
