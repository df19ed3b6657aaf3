"""`torpor kit build` works for every user on a bare machine, and its interpreter runs."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.product import TORPOR
from torpor.kit.layout import python_argv_anywhere

pytestmark = pytest.mark.e2e


def test_a_kit_is_built_and_runs(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORPOR_")}
    argv = [TORPOR, "kit", "build", "--json", "--data", str(tmp_path)]
    built = subprocess.run(argv, env=environment, cwd=tmp_path, capture_output=True, timeout=180, check=False)
    assert (built.returncode, built.stderr) == (0, b"building the kit\n")
    kit = json.loads(built.stdout)
    argv = [*python_argv_anywhere(Path(kit["path"]), kit["loader"]), "-m", "torpor.archives.job", "/absent"]
    ended = subprocess.run(argv, input=b"{}", env={}, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert json.loads(ended.stdout) == {"error": {"code": "INTERNAL", "message": "KeyError: 'environment'", "context": {}}}
