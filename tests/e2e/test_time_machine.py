"""Archives are listed, read, compared, restored and forked on the real product."""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.product import Product, product
from torpor.archives.frames import decompressed

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """With archives of format 2."""
    folder = tmp_path_factory.mktemp("time")
    with product(folder, TORPOR_MAX_RUNNING_PER_USER="20", TORPOR_ARCHIVE_FORMAT="2") as running:
        yield running


def archived(here: Product, note: str) -> str:
    """The key of a new archive with this note."""
    here.ok("start", "demo", "--wait")
    here.ok("exec", "demo", "--", "sh", "-c", f"mkdir -p ~/folder; echo {note} > ~/folder/note; touch ~/only-{note}")
    here.ok("archive", "demo", "--wait")
    return str(here.show("demo")["archive_key"])


def check_reading(here: Product, first: str, second: str, tmp_path: Path) -> None:
    """Archives are read without a start."""
    assert "folder/" in here.ok("archives", "demo", "--list")
    assert here.ok("archives", "demo", "--list", "folder").split()[-1] == "folder/note"
    assert here.ok("archives", "demo", "--get", "folder/note") == "second\n"
    here.ok("archives", "demo", "--get", "folder/note", "--archive", first, "-o", str(tmp_path / "note"))
    assert (tmp_path / "note").read_text() == "first\n"
    changes = {tuple(line.split()) for line in here.ok("archives", "demo", "--diff", first, second).splitlines()}
    assert {("changed", "folder/note"), ("added", "only-second")} <= changes
    assert ("removed", "only-first") not in changes
    assert ("removed", "only-second") in {
        tuple(line.split()) for line in here.ok("archives", "demo", "--diff", second, first).splitlines()
    }

    file = tmp_path / "home.tar.zst"
    here.ok("archives", "demo", "--export", str(file), "--archive", first)
    unpacked = io.BytesIO(b"".join(decompressed([file.read_bytes()])))
    with tarfile.open(fileobj=unpacked) as tar:
        found = tar.extractfile("./folder/note") if "./folder/note" in tar.getnames() else tar.extractfile("folder/note")
        assert found is not None
        assert found.read() == b"first\n"

    missing = here.run("archives", "demo", "--get", "nothing")
    assert (missing.returncode, b"no file 'nothing'" in missing.stderr) == (1, True), missing
    assert here.show("demo")["phase"] == "ARCHIVED"


def test_back_and_forth_and_a_fork(here: Product, tmp_path: Path) -> None:
    here.ok("create", "demo", "--wait")
    first, second = archived(here, "first"), archived(here, "second")
    check_reading(here, first, second, tmp_path)
    listed = json.loads(here.ok("archives", "demo", "--json"))["items"]
    assert [(one["key"], one["is_current"]) for one in listed] == [(second, True), (first, False)]

    here.ok("start", "demo", "--wait")
    here.ok("exec", "demo", "--", "sh", "-c", "echo third > ~/folder/note")
    here.ok("restore", "demo", "--archive", first, "--wait")
    assert here.ok("exec", "demo", "--", "cat", "folder/note") == "first\n"
    third = json.loads(here.ok("archives", "demo", "--json"))["items"][0]["key"]
    assert third not in (first, second), "the present home was archived first"
    here.ok("restore", "demo", "--archive", third, "--wait")
    assert here.ok("exec", "demo", "--", "cat", "folder/note") == "third\n"
    kinds = [one["kind"] for one in json.loads(here.ok("history", "demo", "--json"))["items"]]
    assert kinds[:4] == ["STARTING", "RESTORING", "ARCHIVING", "STOPPING"]

    here.ok("fork", "demo", "copy", "--archive", first, "--wait")
    here.ok("delete", "demo", "--purge", "--yes", "--wait")
    assert here.ok("exec", "copy", "--", "cat", "folder/note") == "first\n"
    here.ok("delete", "copy", "--purge", "--yes", "--wait")
