"""Report what an engine confines, how, and what you can do to confine more.

The examination changes nothing: `torpor doctor` runs it while workspaces run.
"""

from collections.abc import Mapping
from typing import Any

from torpor.runtimes.ability import CPU, FILES, LIMITS, NAMES, USER, Ability
from torpor.runtimes.docker.docker_client import DockerClient
from torpor.runtimes.docker.isolation import NetworkIsolation
from torpor.runtimes.docker.options import DockerOptions

ENABLE = "enable the cgroup controllers memory, pids and cpu on the engine's machine"


async def abilities(client: DockerClient, options: DockerOptions, isolation: NetworkIsolation) -> tuple[Ability, ...]:
    """Unavailable if the engine does not answer."""
    info = await client.info()
    return (
        _files(info),
        Ability(USER, True, f"user {options.user} without capabilities, who cannot get others (no new privileges)"),
        await isolation.ability(),
        *await isolation.forwarding(),
        _names(isolation.firewall.nameservers),
        _limits(info, LIMITS, {"MemoryLimit": "memory", "PidsLimit": "processes"}),
        _limits(info, CPU, {"CpuCfsQuota": "a quota of cores", "CPUShares": "a weight"}),
    )


def _files(info: Mapping[str, Any]) -> Ability:
    how = "containers: separate mount, process, IPC and host name namespaces"
    if any("seccomp" in str(option) for option in info.get("SecurityOptions") or ()):
        return Ability(FILES, True, f"{how}; the engine's seccomp profile")
    return Ability(FILES, True, f"{how}; without a seccomp profile, which this engine does not support")


def _names(nameservers: tuple[str, ...]) -> Ability:
    if nameservers:
        return Ability(NAMES, True, f"the engine's resolver; it asks {', '.join(nameservers)}")
    return Ability(NAMES, True, "the engine's resolver; it asks the nameservers on the loopback of its machine")


def _limits(info: Mapping[str, Any], what: str, fields: Mapping[str, str]) -> Ability:
    lacking = [meaning for field, meaning in fields.items() if not info.get(field)]
    if lacking:
        return Ability(what, False, f"the engine cannot limit: {', '.join(lacking)}", ENABLE)
    return Ability(what, True, f"the engine limits {' and '.join(fields.values())} of each container")
