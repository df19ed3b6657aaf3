"""The tutorial's commands work as written, on the real product."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.product import TORPOR, free_port

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
PARTS = sorted((ROOT / "docs" / "tutorial").glob("[0-9]-*.md"))
TIMEOUT_S = 240


def test_every_command_of_the_tutorial_works_in_a_new_home(tmp_path: Path) -> None:
    assert len(PARTS) == 2
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TORPOR_", "XDG_"))}
    path = f"{Path(TORPOR).parent}:{kept['PATH']}"
    environment = {**kept, "PATH": path, "HOME": str(home), "TORPOR_PORT": str(free_port())}
    tour = [sys.executable, "tools/tour.py", *map(str, PARTS)]
    try:
        followed = subprocess.run(
            tour, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    finally:
        # It is stopped by the tutorial itself, unless a command before that failed.
        subprocess.run([TORPOR, "down"], cwd=home, env=environment, capture_output=True, timeout=60, check=False)
    assert followed.returncode == 0, f"{followed.stdout}\n{followed.stderr}"
    assert not (home / "torpor-tutorial").exists()
