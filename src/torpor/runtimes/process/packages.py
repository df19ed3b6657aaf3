"""Name the command that installs what this machine lacks.

Standard library only, so that a script can load it before Torpor's own packages are installed.
"""

import os
import shutil
from collections.abc import Iterable, Mapping

INSTALL: Mapping[str, str] = {
    "apt-get": "apt-get install -y",
    "dnf": "dnf install -y",
    "apk": "apk add",
}
PACKAGE_OF: Mapping[str, str] = {
    "bwrap": "bubblewrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "iptables-restore": "iptables",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "pasta": "passt",
}
NAMED_OTHERWISE: Mapping[tuple[str, str], str] = {("dnf", "iproute2"): "iproute"}
FOR_ROOT = ("bwrap", "ip", "iptables", "iptables-restore", "nsenter")
"""The tools that confine files, processes and network where Torpor is root."""
FOR_OTHERS = ("bwrap", "pasta")
"""The same for every other user."""


def wanted(user: int) -> tuple[str, ...]:
    return FOR_ROOT if user == 0 else FOR_OTHERS


def install_command(tools: Iterable[str]) -> str:
    """Return the command of this machine's package manager that brings these tools; empty when there are none."""
    manager = next((name for name in INSTALL if shutil.which(name)), None)
    packages = dict.fromkeys(PACKAGE_OF[tool] for tool in tools)
    if not packages:
        return ""
    if manager is None:
        return f"install the packages {', '.join(packages)}"
    words = [NAMED_OTHERWISE.get((manager, package), package) for package in packages]
    return " ".join([*(["sudo"] if os.getuid() != 0 else []), INSTALL[manager], *words])
