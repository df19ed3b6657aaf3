"""The options of the Docker runtime."""

from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """The options; a name ends with its unit."""

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
    network: str = "torpor"
    """The bridge of all workspaces; created if it is missing."""
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
    log_bytes: int = 1 * MIB
    """The engine rotates a container's log at this size; one older file is kept."""
    execute_output_bytes: int = 1 * MIB
    """The limit of each stream of `execute`, which keeps the output in memory. A command that writes more is ended."""
