"""A kit can be built by the system's Python, by a Python that was moved, and by a normal user."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import torpor
from tests.support.foreign_root import foreign_root
from torpor.kit.contents import PACKAGES
from torpor.kit.kit_folder import current_kit
from torpor.kit.manifest import files_of

SYSTEM_PYTHON = "/usr/bin/python3"
NOBODY = 65534
ENSURE = """
import os, sys
from pathlib import Path
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
from torpor.kit.kit_folder import ensure_kit
print(ensure_kit(Path(sys.argv[1]), os.environ, lambda done, total: None).path)
"""
# The version of an interpreter, and whether it is another installation than this one.
VERSION = "import sys; print(*sys.version_info[:2], sys.base_prefix)"


def packages_for_all(folder: Path) -> Path:
    """Torpor and the packages of the kit where every user can read them."""
    site = folder / "site"
    shutil.copytree(Path(torpor.__file__).parent, site / "torpor", ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
    for name in PACKAGES:
        spec = find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        shutil.copytree(spec.submodule_search_locations[0], site / name.replace(".", "/"))
    return site


def test_the_systems_python_builds_a_kit_as_a_normal_user(folder: Path) -> None:
    if not Path(SYSTEM_PYTHON).exists():
        pytest.skip(f"this machine has no {SYSTEM_PYTHON}")
    said = subprocess.run([SYSTEM_PYTHON, "-I", "-c", VERSION], capture_output=True, text=True, timeout=30, check=True).stdout
    if said.split() != [*map(str, sys.version_info[:2]), "/usr"] or sys.base_prefix == "/usr":
        pytest.skip(f"{SYSTEM_PYTHON} is {said.strip()}: the same installation, or the packages here are for another version")
    data = folder / "data"
    data.mkdir()
    if os.getuid() == 0:
        os.chown(data, NOBODY, NOBODY)
    ended = subprocess.run(
        [SYSTEM_PYTHON, "-B", "-c", ENSURE, data, str(NOBODY)],
        env={"PYTHONPATH": str(packages_for_all(folder)), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    kit = current_kit(data)
    assert kit is not None
    assert str(kit.path) == ended.stdout.strip()
    root = foreign_root(folder, kit.path)
    assert root.python("import sys, torpor.archives.job, torpor.inside.agent; print(sys.version_info[:2])").strip() == str(
        sys.version_info[:2]
    )


def test_a_python_that_was_moved_builds_a_kit(folder: Path) -> None:
    """As a copy of another user's Python: its own library is found by LD_LIBRARY_PATH, and its old place is not in the kit."""
    base = Path(sys.base_prefix)
    if base == Path("/usr"):
        pytest.skip("the system's Python cannot be moved")
    moved = folder / "moved"
    left_out = shutil.ignore_patterns("test", "site-packages", "__pycache__", "include", "share")
    shutil.copytree(base, moved, symlinks=True, ignore=left_out)
    data = folder / "data"
    ended = subprocess.run(
        [moved / "bin" / "python3", "-B", "-c", ENSURE, data, "0"],
        env={"PYTHONPATH": str(packages_for_all(folder)), "LD_LIBRARY_PATH": str(moved / "lib"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    kit = current_kit(data)
    assert kit is not None
    places = (os.fsencode(base), os.fsencode(folder))
    assert [path for path in files_of(kit.path) for place in places if place in path.read_bytes()] == []
