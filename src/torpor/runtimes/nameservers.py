"""Find the nameservers of this machine that workspaces can reach."""

import contextlib
import ipaddress
from collections.abc import Iterable
from pathlib import Path

RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))


def usable_nameservers(resolvers: Iterable[Path] = RESOLVERS) -> tuple[str, ...]:
    """This machine's nameservers, without those on its loopback, which workspaces cannot reach."""
    for path in resolvers:
        with contextlib.suppress(OSError):
            lines = [line.split() for line in path.read_text().splitlines()]
            servers = [line[1] for line in lines if len(line) > 1 and line[0] == "nameserver"]
            usable = tuple(server for server in servers if _is_usable(server))
            if usable:
                return usable
    return ()


def _is_usable(server: str) -> bool:
    try:
        address = ipaddress.ip_address(server)
    except ValueError:
        return False
    return address.version == 4 and not address.is_loopback and not address.is_unspecified
