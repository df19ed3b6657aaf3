"""A lost archive directory is reported until it is back, and never replaced by an empty one."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.product import Product

pytestmark = pytest.mark.e2e


def store_finding(here: Product) -> dict[str, Any]:
    done = here.run("doctor", "--json")
    found: dict[str, Any] = {one["what"]: one for one in json.loads(done.stdout)["items"]}["archive store"]
    assert found["ok"] or done.returncode != 0
    return found


def refused(here: Product) -> str:
    done = here.run("up", timeout_s=60)
    said = done.stderr.decode()
    assert (done.returncode, "Traceback" in said) == (1, False), said
    return said


@pytest.mark.long
def test_a_lost_archive_directory_is_reported_until_it_is_back(tmp_path: Path) -> None:
    here, archives, aside = Product(tmp_path / "data"), tmp_path / "data" / "archives", tmp_path / "aside"
    assert store_finding(here)["ok"]
    with here.running():
        here.ok("create", "demo", "--wait")
        here.ok("exec", "demo", "--", "sh", "-c", "echo precious > ~/note")
        here.ok("archive", "demo", "--wait")
    archives.rename(aside)

    for _ in range(2):
        found = store_finding(here)
        assert not found["ok"]
        assert str(archives) in found["detail"]
        assert "missing" in found["detail"]
        said = refused(here)
        assert f"the archive directory {archives} is missing" in said
        assert "restore it from a backup" in said
        assert not archives.exists(), "no empty directory takes its place"
    assert not store_finding(here)["ok"]

    archives.mkdir()
    said = refused(here)
    assert f"{archives} is the archive store" in said, "an empty directory is another store"
    assert "TORPOR_ARCHIVE_URL" not in said

    for remains in archives.iterdir():
        remains.unlink()
    archives.rmdir()
    aside.rename(archives)
    assert store_finding(here)["ok"]
    with here.running():
        here.ok("start", "demo", "--wait")
        assert here.ok("exec", "demo", "--", "cat", "note") == "precious\n"


def test_with_another_store_the_archive_directory_does_not_matter(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    here = Product(tmp_path / "data", environment={"TORPOR_ARCHIVE_URL": store.as_uri()})
    for _ in range(2):
        with here.running():
            assert store_finding(here)["ok"]
        assert not (here.data / "archives").exists()
