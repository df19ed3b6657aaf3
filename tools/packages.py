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
GRACE_S = 30
# A machine without network fails quickly instead of after minutes of retries.
IMPATIENT: Mapping[str, tuple[str, ...]] = {
    "apt-get": ("-qq", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=15", "-o", "DPkg::Lock::Timeout=120"),
    "dnf": ("-q", "--setopt=retries=1", "--setopt=timeout=15"),
    "apk": ("-q", "--timeout", "15"),
}
# A fresh machine has no list of packages yet.
REFRESH: Mapping[str, tuple[str, ...]] = {"apt-get": ("update",), "dnf": ("makecache",), "apk": ("update",)}
CONSEQUENCE = "workspaces run unconfined, for one user only; `torpor doctor` shows what is missing"


class NotInstalled(Exception):
    """The package manager failed; the message is the last line of its output."""


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
    else:
        if still := [tool for tool in missing if find(tool) is None]:
            say(f"{name} installed {', '.join(packages)}, but {', '.join(still)} cannot be found: {CONSEQUENCE}")
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
        running = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        raise NotInstalled(f"{command[0]}: {error.strerror}") from error
    with running:
        try:
            output, errors = running.communicate(timeout=WITHIN_S)
        except subprocess.TimeoutExpired as error:
            end(running)
            raise NotInstalled(f"{command[0]} did not end within {WITHIN_S} s") from error
        except BaseException:
            end(running)
            raise
    if running.returncode != 0:
        said = (errors.strip() or output.strip() or "no message").splitlines()
        raise NotInstalled(f"{command[0]} ended with exit code {running.returncode}: {said[-1]}")


def end(running: "subprocess.Popen[str]") -> None:
    """An interrupted installation must be repaired by hand, so the package manager can finish first."""
    running.terminate()
    try:
        running.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        running.kill()
        running.communicate()


def say(line: str) -> None:
    print(f"setup: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
