"""The systemd unit in deploy/ is valid, and its command line starts the product."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.product import TORPOR, Product, free_port, processes_with

pytestmark = pytest.mark.e2e

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "torpor.service"
INSTALLED = "/opt/torpor/.venv/bin/torpor"
# systemd sets these for a service, and no HOME.
SYSTEMD_ENVIRONMENT = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG=C.UTF-8")


def values(unit: str, name: str) -> list[str]:
    return [value for key, _, value in (line.partition("=") for line in unit.splitlines()) if key == name]


def test_the_unit_is_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze on this machine")
    installed = tmp_path / UNIT.name
    installed.write_text(UNIT.read_text(encoding="utf-8").replace(INSTALLED, TORPOR), encoding="utf-8")
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(installed)], capture_output=True, text=True, timeout=60, check=False
    )
    complaints = [line for line in verified.stderr.splitlines() if UNIT.name in line]
    assert (verified.returncode, complaints) == (0, []), verified.stderr


def test_the_command_line_starts_the_product_and_sigterm_stops_it(tmp_path: Path) -> None:
    settings, data = tmp_path / "etc", tmp_path / "state"
    unit = UNIT.read_text(encoding="utf-8").replace("/etc/torpor", str(settings)).replace("/var/lib/torpor", str(data))
    (line,) = values(unit, "ExecStart")
    environment = values(unit, "Environment")
    assert line.split() == [INSTALLED, "up"]
    assert f"TORPOR_DATA={data}" in environment

    # What StateDirectory= and the administrator create.
    data.mkdir(mode=0o700)
    settings.mkdir()
    port = free_port()
    (settings / "torpor.toml").write_text(f"port = {port}\n", encoding="utf-8")
    # The Python of these tests may be a copy that finds its libraries by this variable.
    libraries = [f"{name}={value}" for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"]
    before = ("env", "-i", "--chdir=/", *SYSTEMD_ENVIRONMENT, *environment, *libraries)
    here = Product(data, port, before=before, command=TORPOR)
    with here.running():
        here.ok("create", "demo", "--wait")
        assert here.ok("exec", "demo", "--", "echo", "hello") == "hello\n"
        assert here.stop(signal.SIGTERM) == 0
    assert processes_with(str(data)) == []
