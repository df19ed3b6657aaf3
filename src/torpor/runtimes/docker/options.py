"""The options of the Docker runtime."""

from dataclasses import dataclass
from pathlib import Path

from torpor.runtimes.docker.engine_network import EngineNetwork

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """The options; a name ends with its unit."""

    name: str
    """The setting `runtime`: docker or podman."""
    engine: str
    """The engine's socket, as a URL: unix:///run/docker.sock"""
    installation: str
    """The name of this installation on the engine: several can share one."""
    image: str
    """The image of workspaces whose template names none."""
    grace_s: float
    """Between the request to end and SIGKILL: long enough for an editor to save."""
    user: int
    """The user and group of homes, and of all processes of workspaces and jobs."""
    isolation: bool
    """Whether workspaces need firewall rules on the engine's machine, see `firewall.py`. Without them no workspace starts."""
    blocked_networks: tuple[str, ...]
    """Networks that workspaces cannot reach."""
    allowed_networks: tuple[str, ...] = ()
    """Exceptions from `blocked_networks`."""
    nameservers: tuple[str, ...] = ()
    """The nameservers of workspaces; none: those of the engine's machine."""
    firewall_prefix: tuple[str, ...] = ()
    """The command that runs a program in the network of the engine's machine, if that is not Torpor's."""
    network: str = ""
    """The network of all workspaces; that of jobs has the suffix -jobs. Empty: two of this installation."""
    registry_credentials: Path | None = None
    """A file in the format of Docker's config.json, for pulls."""
    job_image: str = ""
    """The image of jobs; empty: one without files, since the kit needs none."""
    job_paths: tuple[str, ...] = ()
    """Folders of the engine's machine that jobs see at the same paths: an archive store that is a folder."""
    call_s: float = 60.0
    """The timeout of one call to the engine. Calls that stream have none."""
    probe_s: float = 2.0
    """How long an observation waits for the agent of one container."""
    ready_s: float = 300.0
    """How long the agent of a new container watches whether its program is ready."""
    log_bytes: int = 1 * MIB
    """The engine rotates a container's log at this size; one older file is kept."""

    @property
    def workspace_network(self) -> EngineNetwork:
        return EngineNetwork(self.network or f"{self.installation}-workspaces", self.installation)

    @property
    def job_network(self) -> EngineNetwork:
        """Jobs reach the archive store, which may be in a private network, and cannot be reached by workspaces."""
        return EngineNetwork(f"{self.network or self.installation}-jobs", self.installation)
