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
    with product(tmp_path_factory.mktemp("time"), TORPOR_MAX_RUNNING_PER_USER="20") as running:
        yield running


def archived(here: Product, note: str, name: str = "demo") -> str:
    """The key of a new archive with this note."""
    here.ok("start", name, "--wait")
    here.ok("exec", name, "--", "sh", "-c", f"mkdir -p ~/folder; echo {note} > ~/folder/note; touch ~/only-{note}")
    here.ok("archive", name, "--wait")
    return str(here.show(name)["archive_key"])


def formats(here: Product, name: str) -> dict[str, int]:
    return {one["key"]: one["format"] for one in json.loads(here.ok("archives", name, "--json"))["items"]}


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


def test_archives_of_the_old_format_are_used_after_an_upgrade(tmp_path: Path) -> None:
    """As an older version wrote them. The next archive has the new format."""
    with product(tmp_path, TORPOR_ARCHIVE_FORMAT="1") as here:
        here.ok("create", "demo", "--wait")
        old = archived(here, "first")
        here.stop()
        del here.environment["TORPOR_ARCHIVE_FORMAT"]
        here.up()
        new = archived(here, "second")
        assert formats(here, "demo") == {new: 2, old: 1}
        assert here.ok("archives", "demo", "--get", "folder/note", "--archive", old) == "first\n"
        changes = {tuple(line.split()) for line in here.ok("archives", "demo", "--diff", old, new).splitlines()}
        assert {("changed", "folder/note"), ("added", "only-second")} <= changes

        here.ok("restore", "demo", "--archive", old, "--wait")
        assert here.show("demo")["archive_key"] == old
        here.ok("start", "demo", "--wait")
        assert here.ok("exec", "demo", "--", "cat", "folder/note") == "first\n"
        again = archived(here, "third")
        here.ok("fork", "demo", "copy", "--archive", old, "--wait")
        assert here.ok("exec", "copy", "--", "cat", "folder/note") == "first\n"
        assert formats(here, "demo")[again] == 2
        preview = json.loads(here.ok("gc", "--dry-run", "--json"))
        assert (preview["unknown_count"], preview["missing_count"], preview["would_mark"]) == (0, 0, 0), preview
        assert (preview["packs"]["unknown_count"], preview["packs"]["missing_count"]) == (0, 0), preview
