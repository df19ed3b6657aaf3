"""Install the system packages that confinement needs, where this machine allows it.

    .venv/bin/python -m tools.packages

Only as root, and only with apt-get, dnf or apk. Torpor runs without them, too, so a failure is one line and no error.
TORPOR_SETUP_PACKAGES=no switches it off.
"""

import os
import subprocess
import sys
from collections.abc import Mapping

from torpor.system_packages import INSTALL, NEEDED_BY_ROOT, find, install_command, manager, packages_of

WITHIN_S = 300
# A machine without network answers quickly instead of after minutes of retries.
IMPATIENT: Mapping[str, tuple[str, ...]] = {
    "apt-get": ("-qq", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=15", "-o", "DPkg::Lock::Timeout=120"),
    "dnf": ("-q", "--setopt=retries=1", "--setopt=timeout=15"),
    "apk": ("-q", "--timeout", "15"),
}
# A fresh machine has no list of packages yet.
REFRESH: Mapping[str, tuple[str, ...]] = {"apt-get": ("update",), "dnf": ("makecache",), "apk": ("update",)}
CONSEQUENCE = "workspaces run unconfined, for one user only; `torpor doctor` shows what is missing"


class NotInstalled(Exception):
    """The package manager did not install; the message is its last words."""


def main() -> int:
    missing = [tool for tool in NEEDED_BY_ROOT if find(tool) is None]
    name = manager()
    if not missing or os.geteuid() != 0 or name is None or os.environ.get("TORPOR_SETUP_PACKAGES") == "no":
        return 0
    packages = packages_of(missing, name)
    say(f"installing {', '.join(packages)} with {name} to confine workspaces (TORPOR_SETUP_PACKAGES=no switches this off)")
    try:
        install(name, packages)
    except NotInstalled as error:
        say(f"not installed ({error}): {CONSEQUENCE}; `{install_command(missing)}` fixes it")
    return 0


def install(name: str, packages: tuple[str, ...]) -> None:
    command, *words = INSTALL[name]
    try:
        call(command, *IMPATIENT[name], *words, *packages)
    except NotInstalled:
        call(command, *IMPATIENT[name], *REFRESH[name])
        call(command, *IMPATIENT[name], *words, *packages)


def call(*command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"{command[0]} did not end within {WITHIN_S} s") from error
    except OSError as error:
        raise NotInstalled(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        raise NotInstalled(f"{command[0]} ended with exit code {done.returncode}: {said[-1]}")


def say(line: str) -> None:
    print(f"setup: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
