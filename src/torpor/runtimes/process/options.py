"""The options of the process runtime."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """The options; a name ends with its unit. The first two are settings and have no default here."""

    grace_s: float
    """Between the request to end and SIGKILL: long enough for an editor to save."""
    blocked_networks: tuple[str, ...]
    """Networks that workspaces cannot reach: private networks, and the metadata services of clouds."""
    probe_s: float = 2.0
    """The timeout of one probe of a port: a program that hangs must not delay the observation of others."""
    ready_s: float = 300.0
    """How long to wait for a program's first answer, to report it at once; later, the next observation finds it."""
    tmp_bytes: int = 2048 * MIB
    """The size of a workspace's /tmp; its content counts as memory of the workspace."""
    log_bytes: int = 1 * MIB
    """A log file is rotated at this size; one older file is kept."""
    execute_output_bytes: int = 1 * MIB
    """The limit of each stream of `execute`, which keeps the output in memory. A command that writes more is ended.

    `start_command` has no such limit."""
    disk_reserve_bytes: int = 0
    """Processes that write are paused below half of this free space; 0: never."""
    nameservers: tuple[str, ...] = ()
    """For workspaces; by default this machine's nameservers that are not on its loopback."""
    allowed_networks: tuple[str, ...] = ()
    """Exceptions from `blocked_networks`."""
    bubblewrap: bool = True
    """Use it if this machine can. These three options are for tests and diagnosis."""
    own_network: bool = True
    cgroups: bool = True
