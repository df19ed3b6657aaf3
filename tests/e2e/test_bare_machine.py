"""A workspace runs on a machine without bubblewrap, iptables and pasta, on which every folder is private."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.product import Product

pytestmark = pytest.mark.e2e

BARE = str(Path(__file__).parents[2] / "tools" / "bare")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Product]:
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare, to hide the tools of this machine")
    tmp_path.chmod(0o700)
    product = Product(tmp_path / "data", before=(BARE,))
    with product.running():
        yield product


def test_a_workspace_runs_is_restored_and_survives_a_kill(here: Product) -> None:
    assert "bubblewrap is not installed" in here.log()
    here.ok("create", "demo", "--wait")
    assert b"<html" in here.get("demo")[2], "the terminal answers through its socket"
    user = here.ok("exec", "demo", "--", "sh", "-c", "echo hello > note; id -u")
    assert here.home(here.show("demo")).stat().st_uid == int(user) != 0

    here.ok("archive", "demo", "--wait")
    here.ok("start", "demo", "--wait")
    assert here.ok("exec", "demo", "--", "cat", "note") == "hello\n"

    here.kill()
    here.up()
    here.until("demo", lambda seen: seen["phase"] == "RUNNING" and seen["operation"] == "NONE")
    assert here.ok("exec", "demo", "--", "cat", "note") == "hello\n"
    here.ok("delete", "demo", "--purge", "--wait")
