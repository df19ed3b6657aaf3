"""Set-up installs what confinement needs, once, and goes on without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torpor.system_packages import INSTALL, NEEDED_BY_ROOT, PACKAGE_OF, install_command, packages_of

ROOT = Path(__file__).parent.parent
BARE = ROOT / "tools" / "bare"
# Installs only after `update`, as on a machine that has never been updated; writes down each call.
NEEDS_UPDATE = """#!/bin/sh
echo "$0" "$@" >> {calls}
case "$*" in
    *update*) touch {lists};;
    *install*) if ! [ -e {lists} ]; then echo "E: Unable to locate package bubblewrap" >&2; exit 100; fi;;
esac
"""
WITHOUT_NETWORK = """#!/bin/sh
echo "$0" "$@" >> {calls}
echo "E: Temporary failure resolving the mirror" >&2
exit 100
"""


@pytest.fixture(scope="module")
def bare_machine() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root installs packages")
    if subprocess.run([BARE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not allow mount namespaces, so its tools cannot be hidden")


def set_up(folder: Path, apt_get: str, **environment: str) -> tuple[str, str]:
    """What set-up says on a bare machine with this apt-get, and the calls that apt-get received."""
    calls = folder / "calls"
    script = folder / "apt-get"
    script.write_text(apt_get.format(calls=calls, lists=folder / "lists"))
    script.chmod(0o755)
    done = subprocess.run(
        [BARE, sys.executable, "-m", "tools.packages"],
        cwd=ROOT,
        env={**os.environ, "TORPOR_SETUP_PACKAGES": "", "PATH": f"{folder}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout, calls.read_text() if calls.exists() else ""


@pytest.mark.usefixtures("bare_machine")
def test_root_gets_what_is_missing_and_is_told_in_one_line(tmp_path: Path) -> None:
    said, calls = set_up(tmp_path, NEEDS_UPDATE)
    assert said.count("\n") == 1
    assert said.startswith("setup: installing bubblewrap")
    assert "iptables" in said
    asked = [line.split() for line in calls.splitlines()]
    assert ["install" in words for words in asked] == [True, False, True]
    assert {"bubblewrap", "iptables"} <= set(asked[-1])


@pytest.mark.usefixtures("bare_machine")
def test_without_network_set_up_goes_on_and_names_the_command(tmp_path: Path) -> None:
    said, _ = set_up(tmp_path, WITHOUT_NETWORK)
    assert "not installed (apt-get ended with exit code 100: E: Temporary failure" in said
    assert "`apt-get install -y --no-install-recommends bubblewrap" in said


@pytest.mark.usefixtures("bare_machine")
def test_it_can_be_switched_off(tmp_path: Path) -> None:
    assert set_up(tmp_path, NEEDS_UPDATE, TORPOR_SETUP_PACKAGES="no") == ("", "")


def test_every_needed_tool_has_a_package_with_each_manager() -> None:
    assert set(NEEDED_BY_ROOT) <= set(PACKAGE_OF)
    assert packages_of(NEEDED_BY_ROOT, "dnf") == ("bubblewrap", "iproute", "iptables", "util-linux")
    assert all(packages_of(NEEDED_BY_ROOT, name) for name in INSTALL)


def test_nothing_to_install_needs_no_command() -> None:
    assert install_command([]) == ""
