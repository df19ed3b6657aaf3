"""Name the system packages that confinement needs, and the command that installs them."""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

# A service's PATH often lacks the sbin folders, where ip and iptables are.
SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The package that contains each tool, and its name in other package managers.
PACKAGE_OF: Mapping[str, str] = {
    "bwrap": "bubblewrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "iptables-restore": "iptables",
    "nsenter": "util-linux",
    "pasta": "passt",
}
OTHER_NAMES: Mapping[str, Mapping[str, str]] = {"dnf": {"iproute2": "iproute"}}

INSTALL: Mapping[str, tuple[str, ...]] = {
    "apt-get": ("apt-get", "install", "-y", "--no-install-recommends"),
    "dnf": ("dnf", "install", "-y"),
    "apk": ("apk", "add"),
}

# What root needs to confine files, processes and network. Other users need pasta instead of iptables and nsenter.
NEEDED_BY_ROOT = ("bwrap", "ip", "iptables", "iptables-restore", "nsenter")
NEEDED_BY_OTHERS = ("bwrap", "ip", "pasta")


def find(tool: str) -> str | None:
    """Return the path of a tool of this machine. BusyBox is ignored: its ip lacks -batch, its setpriv --pdeathsig."""
    folders = filter(None, (os.environ.get("PATH", "") + ":" + SEARCH).split(":"))
    found = filter(None, (shutil.which(tool, path=folder) for folder in folders))
    return next((path for path in found if not Path(path).resolve().name.startswith("busybox")), None)


def manager() -> str | None:
    """Return the package manager of this machine, or None."""
    return next((name for name in INSTALL if find(name)), None)


def packages_of(tools: Iterable[str], name: str) -> tuple[str, ...]:
    """Return the packages that contain these tools, under this package manager's names."""
    other = OTHER_NAMES.get(name, {})
    return tuple(dict.fromkeys(other.get(PACKAGE_OF[tool], PACKAGE_OF[tool]) for tool in tools))


def install_command(tools: Iterable[str]) -> str:
    """Return the command that installs these tools here, empty for none; Debian's where the package manager is unknown."""
    name = manager() or "apt-get"
    packages = packages_of(tools, name)
    if not packages:
        return ""
    become_root = () if os.geteuid() == 0 else ("sudo",)
    return " ".join((*become_root, *INSTALL[name], *packages))
