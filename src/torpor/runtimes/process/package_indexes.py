"""Find configured package indexes and proxies that workspaces cannot reach.

Torpor installs the packages of a template outside workspaces, so those are not affected. But users also install packages
inside workspaces, from the index or the npm registry that this machine uses, or through its proxy. If these have addresses
in a blocked network, pip only reports that there is no route, so Torpor names the setting that allows them.
"""

import asyncio
import configparser
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from torpor.domain.networks import closed_by
from torpor.runtimes.host_programs import ToolFailed, call, find

INDEX_VARIABLES = (
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "UV_INDEX_URL",
    "UV_INDEX",
    "UV_EXTRA_INDEX_URL",
    "NPM_CONFIG_REGISTRY",
    "npm_config_registry",
)
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
NPM_REGISTRY = re.compile(r"^\s*(?:@[^\s:=]+:)?registry\s*=\s*(\S+)", re.MULTILINE)
RESOLVED_WITHIN_S = 3.0


@dataclass(frozen=True, slots=True)
class UnreachableIndex:
    """A package index, or a proxy, that workspaces cannot reach."""

    host: str
    named_by: str
    address: str
    network: str

    @property
    def what(self) -> str:
        where = self.host if self.host == self.address else f"{self.host} ({self.address})"
        kind = "proxy" if self.named_by in PROXY_VARIABLES else "package index"
        return f"workspaces cannot reach the {kind} {where} of {self.named_by}, because {self.network} is blocked"

    @property
    def remedy(self) -> str:
        return f"add {self.address} to the setting workspace_allowed_networks"

    def __str__(self) -> str:
        return f"{self.what}. An administrator can {self.remedy}."


def configured_hosts(environ: Mapping[str, str], files: Iterable[Path]) -> dict[str, str]:
    """Return the hosts of configured indexes and proxies, each with the variable or file that names it."""
    found: dict[str, str] = {}
    said = [(name, environ.get(name, "")) for name in (*INDEX_VARIABLES, *PROXY_VARIABLES)]
    for path in files:
        urls = _registry_urls(path) if path.name.endswith("npmrc") else _index_urls(path)
        said += [(str(path), value) for value in urls]
    for name, value in said:
        for word in value.split():
            # uv accepts NAME=URL, and a proxy may have no scheme.
            url = re.sub(r"^[\w.-]+=(?=\w+://)", "", word)
            host = _host(url if "://" in url else f"//{url}")
            if host and (name in PROXY_VARIABLES or "://" in url):
                found.setdefault(host, name)
    return found


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _index_urls(path: Path) -> list[str]:
    config = configparser.RawConfigParser()
    try:
        config.read_string(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, configparser.Error):
        return []
    sections = [config[name] for name in ("global", "install") if config.has_section(name)]
    return [section.get(option, "") for section in sections for option in ("index-url", "extra-index-url")]


def _registry_urls(path: Path) -> list[str]:
    try:
        return NPM_REGISTRY.findall(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []


def index_files(environ: Mapping[str, str]) -> list[Path]:
    """The files of pip and npm that can name an index or a registry."""
    home = Path(environ.get("HOME") or "/")
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    paths = [Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf", home / ".npmrc"]
    return [*paths, Path(environ["PIP_CONFIG_FILE"])] if environ.get("PIP_CONFIG_FILE") else paths


async def unreachable_indexes(
    hosts: Mapping[str, str], *, blocked: Sequence[str], allowed: Sequence[str]
) -> list[UnreachableIndex]:
    """The hosts that workspaces cannot reach. A host without an address counts as reachable."""
    addresses = await asyncio.gather(*map(_addresses, hosts))
    found = []
    for (host, named_by), seen in zip(hosts.items(), addresses, strict=True):
        networks = [(address, closed_by(address, blocked=blocked, allowed=allowed)) for address in seen]
        if networks and all(network is not None for _, network in networks):
            address, network = networks[0]
            found.append(UnreachableIndex(host, named_by, address, str(network)))
    return found


async def _addresses(host: str) -> list[str]:
    """Resolve in a process, which can be ended at the timeout: a lookup in a thread cannot."""
    try:
        said = await call(find("getent") or "getent", "ahosts", host, within_s=RESOLVED_WITHIN_S)
    except (ToolFailed, OSError):
        return []
    return list(dict.fromkeys(line.split()[0] for line in said.splitlines() if line.strip()))
