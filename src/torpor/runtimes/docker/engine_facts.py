"""Ask an engine what it is and how much of it is used, for a report to the administrator."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torpor.runtimes.docker.docker_client import DockerClient
from torpor.runtimes.docker.engine_dialect import EngineKind

CONTAINERS_CONF = (Path("/usr/share/containers/containers.conf"), Path("/etc/containers/containers.conf"))
"""The files that configure Podman; a later one takes precedence."""
NUM_LOCKS = 2048
"""Podman's own default."""


@dataclass(frozen=True, slots=True)
class LockUse:
    """Podman needs a lock for each container and each volume."""

    limit: int
    """Of the running engine if it tells (Podman 4.6 and later), otherwise of the files that configure it on this machine."""
    used: int

    @property
    def free(self) -> int:
        return max(0, self.limit - self.used)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    kind: EngineKind
    version: str
    api_version: str
    is_rootless: bool
    cgroup_version: str
    """1 or 2; empty if the engine does not tell."""
    locks: LockUse | None
    """None: the engine has no such limit."""


async def engine_facts(url: str, call_s: float, configuration: Iterable[Path] = CONTAINERS_CONF) -> EngineFacts:
    """Unavailable if the engine does not answer."""
    client = DockerClient(url, call_s)
    client.connect()
    try:
        return await _facts(client, configuration)
    finally:
        await client.close()


async def _facts(client: DockerClient, configuration: Iterable[Path]) -> EngineFacts:
    kind, version, info = (await client.dialect()).kind, await client.version(), await client.info()
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    return EngineFacts(
        kind,
        str(version.get("Version", "")),
        str(version.get("ApiVersion", "")),
        bool(info.get("Rootless")) or any("rootless" in option for option in options),
        str(info.get("CgroupVersion", "")),
        await _lock_use(client, configuration) if kind is EngineKind.PODMAN else None,
    )


async def _lock_use(client: DockerClient, configuration: Iterable[Path]) -> LockUse:
    used = len(await client.containers([])) + len(await client.volumes([]))
    free = (await client.podman_host()).get("freeLocks")
    return LockUse(used + int(free) if free is not None else configured_locks(configuration), used)


def configured_locks(files: Iterable[Path]) -> int:
    """The limit in Podman's configuration. A file that cannot be read counts as missing."""
    limit = NUM_LOCKS
    for file in files:
        try:
            limit = int(tomllib.loads(file.read_text()).get("engine", {}).get("num_locks", limit))
        except (OSError, ValueError, AttributeError, TypeError):
            continue
    return limit
