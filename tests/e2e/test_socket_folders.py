"""Does a kill -9 leave no socket folder behind for longer than to the next start?"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.product import Product

pytestmark = pytest.mark.e2e


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary directory of its own whose path is short, as that of a socket must be."""
    folder = Path(tempfile.mkdtemp(prefix="tmp-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.long
def test_the_next_start_removes_what_a_killed_one_left(tmp_path: Path, temporary: Path) -> None:
    # So long a path that database and bus have their sockets in the temporary directory, too.
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
