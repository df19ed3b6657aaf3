"""The environment of notebooks sees the shared packages, keeps its own, and does not stop the server when it cannot be made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torpor.inside import notebook
from torpor.inside.notebook import ENVIRONMENT, jupyter_folder, kernel_folder, prepare
from torpor.runtimes.process import sandbox

LIBRARY = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    made = tmp_path / "shared"
    (made / LIBRARY).mkdir(parents=True)
    (made / LIBRARY / "thing.py").write_text("origin = 'shared'")
    (made / LIBRARY / "other.py").write_text("origin = 'shared'")
    return made


def run(environment: Path, code: str) -> str:
    argv = [str(environment / "bin" / "python"), "-c", code]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_own_packages_come_before_the_shared_ones(tmp_path: Path, shared: Path) -> None:
    environment = prepare(tmp_path / "home", shared, sandbox.interpreter())
    (environment / LIBRARY / "thing.py").write_text("origin = 'own'")
    assert run(environment, "import thing, other; print(thing.origin, other.origin)") == "own shared"
    assert run(environment, "import sys; print(sys.prefix)") == str(environment)


def test_a_second_start_keeps_packages_and_writes_nothing(tmp_path: Path, shared: Path) -> None:
    environment = prepare(tmp_path / "home", shared, sandbox.interpreter())
    (environment / LIBRARY / "thing.py").write_text("origin = 'own'")
    before = {path: path.lstat().st_mtime_ns for path in environment.rglob("*")}
    prepare(tmp_path / "home", shared, sandbox.interpreter())
    assert {path: path.lstat().st_mtime_ns for path in environment.rglob("*")} == before


def test_a_home_at_another_path_and_moved_shared_packages_are_corrected(tmp_path: Path, shared: Path) -> None:
    prepare(tmp_path / "home", shared, Path("/nonexistent/python"))
    (tmp_path / "home").rename(tmp_path / "restored")
    shared.rename(tmp_path / "moved")
    environment = prepare(tmp_path / "restored", tmp_path / "moved", sandbox.interpreter())
    assert run(environment, "import thing; print(thing.origin)") == "shared"
    assert str(tmp_path / "home") not in (kernel_folder(environment) / "kernel.json").read_text()


@pytest.mark.parametrize("is_blocked", [False, True])
def test_the_server_starts_with_the_kernel_or_without_it(tmp_path: Path, shared: Path, is_blocked: bool) -> None:
    if is_blocked:
        (tmp_path / ".local").write_text("not a folder")
    environment = {**os.environ, "HOME": str(tmp_path), "JUPYTER_PATH": "/other"}
    argv = [str(sandbox.interpreter()), notebook.__file__, str(shared), "/bin/sh", "-c", 'echo "$JUPYTER_PATH|${PATH%%:*}"']
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, timeout=60)
    made = tmp_path / ENVIRONMENT
    if is_blocked:
        assert "%pip install does not work" in done.stdout
        assert done.stdout.splitlines()[-1].startswith("/other|")
    else:
        assert done.stdout == f"{jupyter_folder(made)}:/other|{made}/bin\n"
