"""Which host name is whose?

The platform has one; each workspace has its own, and so has each of its ports: `{workspace}.{domain}` and
`{port}--{workspace}.{domain}`. Each is an origin of its own, so that code in a workspace cannot act as its user elsewhere. Any
other name was pointed here by somebody else (DNS rebinding), and is answered by nobody.
"""

import re
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from torpor.domain.names import is_name

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_WITH_PORT = re.compile(r"([1-9][0-9]{0,4})--(.+)")


@dataclass(frozen=True, slots=True)
class PlatformHost:
    """The API and the dashboard."""


@dataclass(frozen=True, slots=True)
class WorkspaceHost:
    name: str
    port: int | None = None
    """One of its dev servers; None: its program itself."""


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
        """By what a browser is known on the platform's own host."""
        return self._cookie("session")

    @property
    def door_cookie(self) -> str:
        """By what a browser is known on one workspace's host."""
        return self._cookie("door")

    @property
    def knock_cookie(self) -> str:
        """By what a browser is known on a workspace's host while it is away to show who it is."""
        return self._cookie("knock")

    @property
    def workspace_cookie(self) -> str:
        """Which workspace the browser last signed in to on this host; it is no secret."""
        return self._cookie("workspace")

    def _cookie(self, what: str) -> str:
        """The prefix has browsers refuse it from anywhere but this very host, a host below it included; it needs TLS."""
        return f"__Host-torpor_{what}" if self.is_secure else f"torpor_{what}"

    def destination(self, host: str) -> Destination:
        """Where a request with this host (lower case, without its port) belongs."""
        platform = urlsplit(self.base_url).hostname
        # Where people reach it by the loopback, its other names are good as well.
        if host == platform or (platform in LOOPBACK and host in LOOPBACK):
            return PLATFORM
        label = host.removesuffix(f".{self.domain}")
        if not label or label == host or "." in label:
            return UnknownHost(host)
        with_port = _WITH_PORT.fullmatch(label)
        name, port = (with_port[2], int(with_port[1])) if with_port else (label, None)
        if not is_name(name) or (port is not None and port > 65535):
            # No workspace can have it; that is told as of any other that there is not.
            return WorkspaceHost(label)
        return WorkspaceHost(name, port)

    def url(self, name: str, port: int | None = None) -> str:
        """Where a workspace, or one of its ports, is opened."""
        parts = urlsplit(self.base_url)
        label = name if port is None else f"{port}--{name}"
        return f"{parts.scheme}://{label}.{self.domain}{f':{parts.port}' if parts.port else ''}"


def is_own_path(path: str) -> bool:
    """Whether a redirect to it stays on the same host: browsers read `//host`, `/\\host` and control characters otherwise."""
    return path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isascii() and path.isprintable()
