"""A home survives an archive store that is read-only for a while, or replaced by an older copy."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.product import Product, product
from tests.support.small_disk import small_disk
from tests.support.waiting import wait_until
from torpor.archives.packs.layout import ROOT_SUFFIX
from torpor.archives.tree import tree_root

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]


def ready(here: Product) -> bool:
    items = json.loads(here.run("doctor", "--json").stdout)["items"]
    return {one["what"]: bool(one["ok"]) for one in items}["archive store"]


def attempts(here: Product, name: str) -> list[dict[str, Any]]:
    """The archiving operations, the latest first."""
    history = json.loads(here.ok("history", name, "--json"))["items"]
    return [one for one in history if one["kind"] == "ARCHIVING"]


@pytest.mark.long
def test_a_read_only_store_loses_no_home_and_is_used_again_when_writable(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "store", "64m") as store,
        product(tmp_path, TORPOR_ARCHIVE_URL=store.as_uri(), TORPOR_RECONCILER_RETRY_BACKOFF="1") as here,
    ):
        here.ok("create", "demo", "--wait")
        here.ok("exec", "demo", "--", "sh", "-c", "mkdir folder; echo precious > folder/note")
        here.ok("stop", "demo", "--wait")
        home = here.home(here.show("demo"))
        root = tree_root(home)
        remount(store, "ro")
        here.ok("archive", "demo")
        wait_until(lambda: len(attempts(here, "demo")) >= 2, every_s=0.1, otherwise=here.log)
        assert "Read-only file system" in json.dumps(attempts(here, "demo")[-1])
        assert not ready(here)
        stands = here.show("demo")
        assert (stands["phase"], stands["archive_key"]) == ("STANDBY", None)
        assert tree_root(home) == root

        remount(store, "rw")
        here.ok("archive", "demo", "--wait", "--timeout", "60")
        assert ready(here)
        assert not home.exists()
        here.ok("stop", "demo", "--wait")
        assert tree_root(here.home(here.show("demo"))) == root


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)


@pytest.mark.long
def test_a_store_replaced_by_an_older_copy_restores_no_older_home_and_loses_nothing(tmp_path: Path) -> None:
    older, newer = tmp_path / "older", tmp_path / "newer"
    with product(tmp_path, TORPOR_GC_INTERVAL="1", TORPOR_GC_GRACE="1", TORPOR_GC_KEEP="1") as here:
        store = here.data / "archives"
        for name in ("woken", "asleep"):
            archive_with_note(here, name, "old")
        shutil.copytree(store, older)
        roots = {name: archive_with_note(here, name, "new") for name in ("woken", "asleep")}
        store.rename(newer)
        older.rename(store)
        before = objects(store)

        started = here.run("start", "woken", "--wait", "--timeout", "60")
        assert started.returncode == 3
        lost = here.show("woken")
        assert (lost["phase"], lost["error"]["reason"]) == ("ERROR", "DataLost")
        assert not here.home(lost).exists(), "no empty and no older home"
        for _ in range(2):  # the first would mark what the second removes
            assert b"missing in the store" in here.run("gc").stderr
        assert objects(store) == before, "nothing is removed from a store that lacks what is newer"

        store.rename(older)
        newer.rename(store)
        here.ok("recover", "woken", "--archive-key", lost["archive_key"], "--wait")
        for name, root in roots.items():
            here.ok("start", name, "--wait")
            here.ok("stop", name, "--wait")
            assert tree_root(here.home(here.show(name))) == root
        old = {name for name in before if name.endswith(ROOT_SUFFIX)}
        assert len(old) == 2
        wait_until(lambda: not set(objects(store)) & old, every_s=0.1, otherwise=here.log)


def archive_with_note(here: Product, name: str, note: str) -> str:
    """Returns the hash of the archived home."""
    if note == "old":
        here.ok("create", name, "--wait")
    else:
        here.ok("start", name, "--wait")
    here.ok("exec", name, "--", "sh", "-c", f"echo {note} > note")
    here.ok("stop", name, "--wait")
    root = tree_root(here.home(here.show(name)))
    here.ok("archive", name, "--wait")
    return root


def objects(store: Path) -> list[str]:
    return sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())
