"""Who is a request for?

`localhost` and the loopback addresses are the platform, `{name}.localhost` is a workspace. Any other name was pointed here
by somebody else (DNS rebinding), and is answered by nobody.
"""

from dataclasses import dataclass
from typing import TypeAlias

from torpor.domain.errors import Refused
from torpor.domain.names import check_name
from torpor.domain.states import Operation, Phase
from torpor.ports import Address

PLATFORM_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
WORKSPACE_SUFFIX = ".localhost"


@dataclass(frozen=True, slots=True)
class ToPlatform:
    """The API and the dashboard."""


@dataclass(frozen=True, slots=True)
class ToWorkspace:
    name: str


@dataclass(frozen=True, slots=True)
class ToNobody:
    """A host name that is not ours."""

    host: str


Destination: TypeAlias = ToPlatform | ToWorkspace | ToNobody


def destination(host: str) -> Destination:
    """Where a request with this host (lower case, without its port) belongs."""
    if host in PLATFORM_HOSTS:
        return ToPlatform()
    name = host.removesuffix(WORKSPACE_SUFFIX)
    if name and name != host and "." not in name:
        return ToWorkspace(name)
    return ToNobody(host)


@dataclass(frozen=True, slots=True)
class Running:
    """It can be reached here."""

    name: str
    address: Address
    workspace_id: str | None = None
    """None: nobody wants to know whether it is used."""
    standby_ttl_s: float = 300


@dataclass(frozen=True, slots=True)
class Asleep:
    """It is known, and nothing answers for it now."""

    name: str
    phase: Phase
    operation: Operation
    progress: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    name: str


Place: TypeAlias = Running | Asleep | Unknown


def may_exist(name: str) -> bool:
    """Whether a workspace can have this name at all: what cannot be is not looked up."""
    try:
        check_name(name)
    except Refused:
        return False
    return True
