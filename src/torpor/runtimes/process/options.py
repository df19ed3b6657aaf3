"""What may be chosen about the process runtime?"""

from dataclasses import dataclass

from torpor.domain.networks import BLOCKED

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Each with its unit in its name, and a default that needs no thought."""

    grace_s: float = 10.0
    """Between asking a container to end and killing it: long enough for an editor to save."""
    probe_s: float = 2.0
    """How long one look at a port may take, however many are looked at: a hung program must not hold up the others' loop."""
    ready_s: float = 300.0
    """How long a program's first answer is waited for, to tell of it at once; later it is seen with the next look."""
    tmp_bytes: int = 2048 * MIB
    """The size of a workspace's /tmp; what lies there counts as its memory."""
    log_bytes: int = 1 * MIB
    """A log file is set aside at this size; one older one is kept."""
    execute_output_bytes: int = 1 * MIB
    """Of either stream; a command that writes more is ended and refused, because its answer is held in memory.

    Streams (`start_command`) have no such limit."""
    disk_reserve_bytes: int = 0
    """Below half of so much free space processes that write to it are paused; 0: never."""
    nameservers: tuple[str, ...] = ()
    """For workspaces; by default those of this machine that are not on its loopback."""
    blocked_networks: tuple[str, ...] = BLOCKED
    """What a workspace may not reach though it is outward: private networks, and where clouds hand out credentials."""
    allowed_networks: tuple[str, ...] = ()
    """What it may reach all the same."""
    bubblewrap: bool = True
    """Confine where this machine can. Each of these three is for tests and for hunting faults."""
    own_network: bool = True
    cgroups: bool = True
