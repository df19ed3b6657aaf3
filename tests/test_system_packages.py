"""Test that set-up installs the packages for confinement once, and continues when it cannot."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tools import packages

from torpor.system_packages import INSTALL, NEEDED_BY_ROOT, PACKAGE_OF, SEARCH, find, install_command, packages_of

ROOT = Path(__file__).parent.parent
BARE = ROOT / "tools" / "bare"
# Installs only after its list of packages was refreshed, as on a fresh machine; records each call.
NEEDS_UPDATE = """#!/bin/sh
echo "$@" >> {calls}
case " $* " in
    *" update "*|*" makecache "*) touch {lists};;
    *" install "*|*" add "*)
        if ! [ -e {lists} ]; then echo "E: Unable to locate package bubblewrap" >&2; exit 100; fi
        for tool in bwrap ip iptables iptables-restore nsenter; do cp {tool} {folder}/$tool; done;;
esac
"""
WITHOUT_NETWORK = """#!/bin/sh
echo "$@" >> {calls}
echo "E: Temporary failure resolving the mirror" >&2
exit 100
"""
# Hides the files before `--`, then executes the command after it.
HIDE = 'while [ "$1" != -- ]; do mount --bind "$0" "$1"; shift; done; shift; exec "$@"'


@pytest.fixture(scope="module")
def bare_machine() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root installs packages")
    if subprocess.run([BARE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not allow mount namespaces, so its tools cannot be hidden")


def of_this_machine(*tools: str) -> list[str]:
    found = (shutil.which(tool, path=folder) for tool in tools for folder in SEARCH.split(":"))
    files = {Path(path).resolve() for path in found if path}
    return sorted(str(file) for file in files if file.name != "busybox")  # the shell may be one of its tools


def set_up(folder: Path, script: str, manager: str = "apt-get", hidden: Sequence[str] = (), **environment: str) -> str:
    """The output of set-up on a bare machine with this package manager only; `calls` has the calls that it received."""
    tool = folder / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    manager_tool = folder / manager
    manager_tool.write_text(script.format(calls=folder / "calls", lists=folder / "lists", tool=tool, folder=folder))
    manager_tool.chmod(0o755)
    empty = folder / "empty"
    empty.touch(0o644)
    done = subprocess.run(
        [BARE, "sh", "-c", HIDE, empty, *of_this_machine(*INSTALL, *hidden), "--", sys.executable, "-m", "tools.packages"],
        cwd=ROOT,
        env={**os.environ, "TORPOR_SETUP_PACKAGES": "", "PATH": f"{folder}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def calls_in(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []


APT = "-qq -o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o DPkg::Lock::Timeout=120"
DNF = "-q --setopt=retries=1 --setopt=timeout=15"
ASKED = {
    "apt-get": (f"{APT} install -y --no-install-recommends bubblewrap iproute2 iptables util-linux", f"{APT} update"),
    "dnf": (f"{DNF} install -y bubblewrap iproute iptables util-linux", f"{DNF} makecache"),
    "apk": ("-q --timeout 15 add bubblewrap iproute2 iptables util-linux", "-q --timeout 15 update"),
}


@pytest.mark.usefixtures("bare_machine")
@pytest.mark.parametrize("manager", INSTALL)
def test_missing_packages_are_installed_for_root_with_one_line_of_output(tmp_path: Path, manager: str) -> None:
    said = set_up(tmp_path, NEEDS_UPDATE, manager, hidden=("ip", "nsenter"))
    assert said.count("\n") == 1
    assert said.startswith("setup: installing bubblewrap")
    assert f"iptables, util-linux with {manager} to confine" in said
    install, refresh = ASKED[manager]
    assert calls_in(tmp_path) == [install, refresh, install]


@pytest.mark.usefixtures("bare_machine")
def test_an_ip_of_busybox_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "busybox").write_text("#!/bin/sh\n")
    (tmp_path / "busybox").chmod(0o755)
    (tmp_path / "ip").symlink_to("busybox")
    assert "iproute2" in set_up(tmp_path, NEEDS_UPDATE.replace("cp {tool}", "cp --remove-destination {tool}"), "apk", ("ip",))


def test_a_tool_of_busybox_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for file in (first / "busybox", second / "torpor-test-tool"):
        file.parent.mkdir()
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
    (first / "torpor-test-tool").symlink_to("busybox")
    monkeypatch.setenv("PATH", f"{first}")
    assert find("torpor-test-tool") is None
    monkeypatch.setenv("PATH", f"{first}:{second}")
    assert find("torpor-test-tool") == str(second / "torpor-test-tool")


@pytest.mark.usefixtures("bare_machine")
def test_without_network_set_up_continues_and_names_the_command(tmp_path: Path) -> None:
    said = set_up(tmp_path, WITHOUT_NETWORK)
    assert "not installed (apt-get ended with exit code 100: E: Temporary failure" in said
    assert "`apt-get install -y --no-install-recommends bubblewrap" in said


@pytest.mark.usefixtures("bare_machine")
def test_installing_packages_can_be_switched_off(tmp_path: Path) -> None:
    assert set_up(tmp_path, NEEDS_UPDATE, TORPOR_SETUP_PACKAGES="no") == ""
    assert calls_in(tmp_path) == []


@pytest.mark.usefixtures("bare_machine")
def test_a_tool_that_an_installed_package_did_not_bring_is_named(tmp_path: Path) -> None:
    said = set_up(tmp_path, NEEDS_UPDATE.replace("for tool in bwrap", "for tool in")).splitlines()
    assert len(said) == 2
    assert "but bwrap cannot be found: workspaces run unconfined" in said[1]


@pytest.mark.usefixtures("bare_machine")
def test_tools_in_the_callers_path_are_hidden_too(tmp_path: Path) -> None:
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        (folder / "bwrap").write_text("#!/bin/sh\n")
        (folder / "bwrap").chmod(0o755)
    path = f"{tmp_path / 'one'}:{tmp_path / 'two'}:{os.environ['PATH']}"
    look = "import torpor.system_packages; print(torpor.system_packages.find('bwrap'))"
    done = subprocess.run(
        [BARE, sys.executable, "-c", look], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "None\n"


def test_a_package_manager_that_takes_too_long_may_finish_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "WITHIN_S", 2)
    finished = tmp_path / "finished"
    finishing = "import pathlib, signal, sys; signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[1]).touch());"
    with pytest.raises(packages.NotInstalled, match="did not end within 2 s"):
        packages.call(sys.executable, "-c", f"{finishing} signal.pause()", str(finished))
    assert finished.exists()


def test_every_needed_tool_has_a_package_with_each_manager() -> None:
    assert set(NEEDED_BY_ROOT) <= set(PACKAGE_OF)
    assert packages_of(NEEDED_BY_ROOT, "dnf") == ("bubblewrap", "iproute", "iptables", "util-linux")
    assert all(packages_of(NEEDED_BY_ROOT, name) for name in INSTALL)


def test_nothing_to_install_needs_no_command() -> None:
    assert install_command([]) == ""
