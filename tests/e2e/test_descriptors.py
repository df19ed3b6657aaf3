"""The real product closes every descriptor exactly once."""

from pathlib import Path

import pytest

from tests.support.product import Product
from tests.support.strace import failed_closes, strace

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]

NAMES = ("one", "two")


@pytest.mark.long
def test_no_close_fails_while_workspaces_start_and_are_archived(tmp_path: Path) -> None:
    here = Product(tmp_path / "data", before=strace(tmp_path / "closes"))
    with here.running():
        for name in NAMES:
            here.ok("create", name, "--wait")
        for name in NAMES:
            here.ok("archive", name, "--wait")
    assert failed_closes(tmp_path / "closes") == []
