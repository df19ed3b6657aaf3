"""What docs/how-to/back-up-and-restore.md says brings an installation back."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.product import Product, free_port
from torpor.archives.tree import tree_root

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to" / "back-up-and-restore.md"
FILL = "mkdir -p a/b; echo precious > a/b/note; ln -s ../a a/link; chmod 600 a/b/note; touch .hidden"


def follow(here: Product, backup: Path) -> None:
    """Run the commands of the document: back up, move the data directory away, restore."""
    path = f"{Path(here.command).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "tools/tour.py", str(HOW_TO)],
        cwd=ROOT,
        env={**here.env(), "PATH": path, "BACKUP": str(backup)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_a_restored_installation_has_its_users_its_homes_and_its_archives(tmp_path: Path) -> None:
    here = Product(tmp_path / "data", free_port())
    here.ok("up", "--detach")
    try:
        for name in ("kept", "archived"):
            here.ok("create", name, "--wait")
            here.ok("exec", name, "--", "sh", "-c", FILL)
        here.ok("stop", "kept", "--wait")
        here.ok("archive", "archived", "--wait")
        before = here.show("kept")
        home = tree_root(here.home(before))

        backup = tmp_path / "backup.tar.gz"
        follow(here, backup)
        assert backup.stat().st_mode & 0o077 == 0
        # The restored installation uses nothing of the old one.
        shutil.rmtree(tmp_path / "data.before-restore")

        after = here.show("kept")
        assert (after["id"], after["generation"], after["revision"]) == tuple(
            before[name] for name in ("id", "generation", "revision")
        )
        assert tree_root(here.home(after)) == home
        for name in ("kept", "archived"):
            here.ok("start", name, "--wait")
            assert here.ok("exec", name, "--", "sh", "-c", "cat a/b/note; stat -c %a a/b/note") == "precious\n600\n"
    finally:
        here.run("down")
