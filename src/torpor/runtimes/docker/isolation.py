"""Confine the network of workspaces before a program runs, or refuse to start it."""

from torpor.runtimes.ability import FORWARDING, NETWORK, Ability
from torpor.runtimes.docker.docker_client import DockerClient, EngineRefusal
from torpor.runtimes.docker.firewall import EngineFirewall, FirewallMissing
from torpor.runtimes.docker.options import DockerOptions

OPEN = "workspaces can reach services of the engine's machine, ports that it publishes for others, and private networks"
ACCEPT = "or accept it with the setting isolation=none"


class NetworkIsolation:
    """Every method does nothing if the options switch isolation off."""

    def __init__(self, client: DockerClient, options: DockerOptions) -> None:
        self._client = client
        self._options = options
        self._network = options.workspace_network
        self._proven = ""
        self.firewall = EngineFirewall(
            options.workspace_network,
            options.job_network,
            blocked=options.blocked_networks,
            allowed=options.allowed_networks,
            nameservers=options.nameservers,
            prefix=options.firewall_prefix,
        )

    async def write_rules(self) -> None:
        """The rules are in effect, also before the engine answers; FirewallMissing if this machine does not permit them."""
        if self._options.isolation:
            await self.firewall.ensure()

    async def restore(self) -> None:
        """The rules are in effect again, if they were lost while workspaces run."""
        if self._options.isolation:
            await self.firewall.ensure()
            await self.firewall.ensure_bridged()

    async def ensure(self) -> None:
        """Before a container starts. FirewallMissing if it would not be confined."""
        if not self._options.isolation:
            return
        await self.firewall.ensure()
        try:
            await self._client.ensure_network(self._network)
        except EngineRefusal as refusal:
            how = (
                f"the engine refuses the network {self._network.name} with the bridge {self._network.bridge}: {refusal.message}"
            )
            raise FirewallMissing(how, "correct what the engine says") from refusal
        await self.firewall.ensure_bridged()

    async def prove(self) -> None:
        """After a container has started and before its program does: the rules are first, and its bridge is theirs."""
        if self._options.isolation:
            # Podman puts its own rules first when it starts the first container of a network.
            await self.firewall.ensure()
            await self._find_bridge()

    async def _find_bridge(self) -> None:
        """An engine on another machine, in a virtual machine or in a network namespace has its bridges there."""
        facts = await self._client.ensure_network(self._network)
        if facts.get("Id") == self._proven:
            return
        pools = (facts.get("IPAM") or {}).get("Config") or ()
        gateways = [str(pool.get("Gateway", "")).partition("/")[0] for pool in pools]
        for gateway in filter(None, gateways):
            if await self.firewall.has_bridge(gateway):
                self._proven = str(facts.get("Id", ""))
                return
        name, bridge = self._network.name, self._network.bridge
        how = (
            f"this machine does not have the bridge {bridge} of the network {name}, so its firewall cannot confine the "
            f"workspaces of the engine at {self._options.engine}. It is on another machine, in a virtual machine (Docker "
            "Desktop) or rootless; or Torpor has a network of its own, in a container; or another program created the network"
        )
        remedy = f"use an engine of this machine that runs as root, or --network host, or: docker network rm {name}"
        raise FirewallMissing(how, remedy)

    async def prove_early(self) -> None:
        """Before any container. Podman creates a bridge with its first container, so nothing can be proven there."""
        if not self._options.isolation:
            return
        if not (await self._client.dialect()).makes_bridge_late:
            await self._find_bridge()

    async def ability(self) -> Ability:
        """Whether workspaces are confined, and how. Changes nothing."""
        options = self._options
        if not options.isolation:
            return Ability(NETWORK, False, f"switched off by isolation=none: {OPEN}", "remove the setting isolation=none")
        try:
            await self.firewall.examine()
            if await self._client.inspect_network(self._network.name) is not None:
                await self.prove_early()
        except FirewallMissing as missing:
            return Ability(NETWORK, False, f"{missing.how}: no workspace is started", f"{missing.remedy}, {ACCEPT}")
        allowed = f", except {', '.join(options.allowed_networks)}" if options.allowed_networks else ""
        blocked = f"blocked: {', '.join(options.blocked_networks) or 'no network'}{allowed}"
        how = f"firewall rules for the bridge {self._network.bridge}, outgoing connections only, IPv4 only; {blocked}"
        return Ability(NETWORK, True, how)

    async def forwarding(self) -> tuple[Ability, ...]:
        """Empty if the firewall forwards packets of workspaces, or this cannot be known."""
        facts = await self._client.inspect_network(self._network.name)
        subnets = [str(pool["Subnet"]) for pool in ((facts or {}).get("IPAM") or {}).get("Config") or () if pool.get("Subnet")]
        if not self._options.isolation or not subnets:
            return ()
        try:
            dropped = await self.firewall.find_drop(subnets[0])
        except FirewallMissing:
            return ()
        if dropped is None:
            return ()
        rule = dropped.rule or "the policy of its chain FORWARD is DROP"
        how = f"the firewall of the engine's machine drops packets of workspaces: {rule}, and no earlier rule accepts them"
        remedy = f"restart Docker, which writes its rules then, or: iptables -A FORWARD -i {self._network.bridge} -j ACCEPT"
        return (Ability(FORWARDING, False, how, remedy),)


def refusal(missing: FirewallMissing) -> str:
    """The message to a person whose workspaces are not started."""
    return f"workspaces cannot be confined: {missing.how}. What you can do: {missing.remedy}, {ACCEPT} ({OPEN} then)"
