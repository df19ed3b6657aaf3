"""Define how a runtime reports what it confines."""

from dataclasses import dataclass

FILES = "files and processes"
USER = "user"
NETWORK = "network"
FORWARDING = "forwarding"
NAMES = "name resolution"
LIMITS = "memory and processes"
CPU = "CPU"


@dataclass(frozen=True, slots=True)
class Ability:
    what: str
    confined: bool
    how: str
    """How it is done on this machine, or why it is not."""
    remedy: str = ""
    """What you can do; empty if there is no remedy."""
