"""Examine the container engines of this machine, and what the chosen one confines (for `torpor doctor`)."""

from dataclasses import replace

from torpor.assemble.docker_wiring import docker_options
from torpor.assemble.finding import Finding
from torpor.domain.errors import TorporError
from torpor.runtimes.docker.confinement import abilities
from torpor.runtimes.docker.docker_client import DockerClient
from torpor.runtimes.docker.engine_facts import EngineFacts, engine_facts
from torpor.runtimes.docker.isolation import NetworkIsolation
from torpor.settings import SOCKETS, Settings

ANSWERS_WITHIN_S = 5.0
FEW_LOCKS = 64
"""Fewer are used up by about twenty workspaces."""
MORE_LOCKS = "set a higher num_locks in containers.conf, stop all containers, and run `podman system renumber`"


async def engine_findings(settings: Settings) -> list[Finding]:
    """The engine that runs the workspaces, or the engines that could."""
    if settings.uses_engine:
        return await _chosen(settings)
    return [finding for name, url in SOCKETS.items() for finding in await _possible(name, url)]


async def _chosen(settings: Settings) -> list[Finding]:
    url = settings.engine_socket
    try:
        facts = await engine_facts(url, ANSWERS_WITHIN_S)
    except TorporError as error:
        advice = f"start the engine, or set TORPOR_ENGINE_URL; only root, or a member of its group, can use {url}"
        return [Finding("engine", False, error.message, advice, blocks=True)]
    findings = [Finding("engine", True, f"{_described(facts)} at {url}")]
    if facts.is_rootless:
        advice = "use an engine that runs as root"
        findings.append(Finding("engine", False, "it is rootless: its containers cannot be reached", advice, blocks=True))
    if facts.locks is not None:
        is_enough = facts.locks.free >= FEW_LOCKS
        detail = f"{facts.locks.free} of {facts.locks.limit} are free; each container and each volume needs one"
        findings.append(Finding("engine locks", is_enough, detail, "" if is_enough else MORE_LOCKS))
    return findings


async def _possible(name: str, url: str) -> list[Finding]:
    try:
        facts = await engine_facts(url, ANSWERS_WITHIN_S)
    except TorporError:
        return []
    use = f"not used: to run workspaces there, set TORPOR_RUNTIME={name}"
    return [Finding("engine", True, f"{_described(facts)} at {url}; {use}")]


def _described(facts: EngineFacts) -> str:
    cgroup = f", cgroup version {facts.cgroup_version}" if facts.cgroup_version else ""
    return f"{facts.kind.value} {facts.version} (API {facts.api_version}{cgroup})"


async def engine_confinement(settings: Settings) -> list[Finding]:
    """What separates workspaces on the chosen engine; empty if it does not answer."""
    # The rules of any installation can be tested. Whether packets are forwarded depends on its network, and the database that
    # has its name need not run, so all installations of this engine are examined.
    options = replace(docker_options(settings, "torpor"), call_s=ANSWERS_WITHIN_S)
    client = DockerClient(options.engine, options.call_s)
    client.connect()
    try:
        found = list(await abilities(client, options, NetworkIsolation(client, options)))
        for installation in await client.installations():
            found += await NetworkIsolation(client, replace(options, installation=installation)).forwarding()
    except TorporError:
        return []
    finally:
        await client.close()
    return [Finding(f"confinement: {one.what}", one.confined, one.how, one.remedy) for one in found]
