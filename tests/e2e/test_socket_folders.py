"""Socket folders that a kill -9 leaves behind are removed at the next start."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.product import Product

pytestmark = pytest.mark.e2e


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A new temporary directory with a short path, as sockets need."""
    folder = Path(tempfile.mkdtemp(prefix="tmp-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.long
def test_the_next_start_removes_socket_folders_of_a_killed_one(tmp_path: Path, temporary: Path) -> None:
    # A path so long that database and bus have their sockets in the temporary directory, too.
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    killed = Product(folder / "data", environment={"TMPDIR": str(temporary)})
    with killed.running():
        killed.kill()
    left = set(temporary.iterdir())
    assert left

    other = Product(tmp_path / "data", environment={"TMPDIR": str(temporary)})
    with other.running():
        held = set(temporary.iterdir())
        assert held
        assert not held & left, "those of the dead process are gone"
        with killed.running():
            assert held < set(temporary.iterdir()), "those of a living process stay"
            other.ok("list")
    assert list(temporary.iterdir()) == []
    assert len(left) == 3, "the folders of API, database and bus"
