"""Map host names to the platform, to workspaces and to their ports.

The platform has one host name. A workspace has `{workspace}.{domain}`, and each of its ports has
`{port}--{workspace}.{domain}`. Each is a separate origin, so that code in a workspace cannot act as its user elsewhere.
Requests for any other name are refused: another site may point its name here (DNS rebinding).
"""

import re
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from torpor.domain.names import is_name

ENTER_PATH = "/.torpor/enter"
"""On a workspace's host: the path to which the platform's host redirects a browser that has signed in."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_WITH_PORT = re.compile(r"([1-9][0-9]{0,4})--(.+)")


@dataclass(frozen=True, slots=True)
class PlatformHost:
    """The API and the dashboard."""


@dataclass(frozen=True, slots=True)
class WorkspaceHost:
    name: str
    port: int | None = None
    """Of one of its dev servers; None: its program."""


@dataclass(frozen=True, slots=True)
class UnknownHost:
    """A host name that is not ours."""

    host: str


Destination: TypeAlias = PlatformHost | WorkspaceHost | UnknownHost
PLATFORM = PlatformHost()


@dataclass(frozen=True, slots=True)
class Hosts:
    base_url: str
    """Of the platform, without a slash at its end."""
    domain: str
    """What follows a workspace's name."""

    @property
    def is_secure(self) -> bool:
        return self.base_url.startswith("https:")

    @property
    def session_cookie(self) -> str:
        """The cookie of a session, on the platform's host."""
        return self._cookie("session")

    @property
    def door_cookie(self) -> str:
        """The cookie of a signed-in browser, on the host of one workspace."""
        return self._cookie("door")

    @property
    def knock_cookie(self) -> str:
        """The cookie on a workspace's host that identifies the browser while it signs in at the platform."""
        return self._cookie("knock")

    @property
    def workspace_cookie(self) -> str:
        """The cookie with the workspace that the browser last signed in to on this host; not a secret."""
        return self._cookie("workspace")

    def _cookie(self, what: str) -> str:
        """With the prefix, browsers accept the cookie only from exactly this host, not from subdomains; it requires TLS."""
        return f"__Host-torpor_{what}" if self.is_secure else f"torpor_{what}"

    def destination(self, host: str) -> Destination:
        """Return the destination of a request with this host (lower case, without its port)."""
        platform = urlsplit(self.base_url).hostname
        # If the platform is on the loopback, all names of the loopback are accepted.
        if host == platform or (platform in LOOPBACK and host in LOOPBACK):
            return PLATFORM
        label = host.removesuffix(f".{self.domain}")
        if not label or label == host or "." in label:
            return UnknownHost(host)
        with_port = _WITH_PORT.fullmatch(label)
        name, port = (with_port[2], int(with_port[1])) if with_port else (label, None)
        if not is_name(name) or (port is not None and port > 65535):
            # Not a valid name: it is answered like a workspace that does not exist.
            return WorkspaceHost(label)
        return WorkspaceHost(name, port)

    def url(self, name: str, port: int | None = None) -> str:
        """The address of a workspace or of one of its ports."""
        parts = urlsplit(self.base_url)
        label = name if port is None else f"{port}--{name}"
        return f"{parts.scheme}://{label}.{self.domain}{f':{parts.port}' if parts.port else ''}"


def is_own_path(path: str) -> bool:
    """Whether a redirect to it stays on the same host. Browsers take `//host` and `/\\host` as other hosts, and drop control
    characters."""
    return path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isascii() and path.isprintable()
