"""A volume that is removed by hand, in any phase, leads to a clear error and never to another home."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.product import Product, product
from tests.support.waiting import wait_until
from torpor.archives.tree import tree_root

pytestmark = pytest.mark.e2e

WITHIN_S = 30
HOME_BYTES = 150_000_000
MIDDLE_BYTES = 20_000_000
"""When this much is written, the operation is in the middle of its work."""
NEVER_READY = ("sh", "-c", "sleep 1000")
IGNORES_TERM = ("sh", "-c", "trap '' TERM HUP INT; python3 -m http.server --bind 127.0.0.1 $PORT")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(
        tmp_path_factory.mktemp("removed"),
        TORPOR_MAX_RUNNING_PER_USER="20",
        TORPOR_WORKSPACE_STOP_GRACE="3",
        TORPOR_RECONCILER_INTERVAL="1",
        TORPOR_RECONCILER_ACTIVE_INTERVAL="0.2",
        TORPOR_RECONCILER_RETRY_BACKOFF="1",
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_left(here: Product) -> Iterator[None]:
    """However its volume was lost, the workspace can be purged, and all its data is removed."""
    yield
    for one in json.loads(here.ok("list", "--json"))["items"]:
        here.ok("delete", one["name"], "--purge", "--wait", "--timeout", str(WITHIN_S))
    assert volumes(here) == []


def volumes(here: Product) -> list[str]:
    return [path.name for path in (here.data / "volumes").iterdir() if path.name.startswith("ws-")]


def remove(here: Product, volume: Path) -> None:
    """At once, as a lost disk: renamed first, because its files may still be written."""
    aside = here.data.parent / "removed"
    volume.rename(aside)

    def is_removed() -> bool:
        shutil.rmtree(aside, ignore_errors=True)
        return not aside.exists()

    wait_until(is_removed)


def ends_in_error(here: Product, name: str, *reasons: str) -> dict[str, Any]:
    """A start does not help, and creates no other home."""
    here.until(name, lambda seen: seen["phase"] == "ERROR" and seen["operation"] == "NONE", within_s=WITHIN_S)
    started = here.run("start", name, "--wait", "--timeout", "3")
    assert started.returncode != 0
    lost = here.show(name)
    assert (lost["phase"], lost["error"]["reason"] in reasons) == ("ERROR", True), lost["error"]
    assert volumes(here) == []
    return lost


def bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def wait_for_the_middle(folder: Path, before: int = 0) -> None:
    wait_until(lambda: bytes_below(folder) >= before + MIDDLE_BYTES, within_s=WITHIN_S, every_s=0.005)


def large(here: Product, name: str) -> str:
    """A stopped workspace whose home takes seconds to archive; returns the hash of the home."""
    here.ok("create", name, "--wait")
    here.ok("exec", name, "--", "sh", "-c", f"echo precious > note; head -c {HOME_BYTES} /dev/urandom > large")
    here.ok("stop", name, "--wait")
    return tree_root(here.home(here.show(name)))


def test_a_volume_removed_while_running_is_an_error(here: Product) -> None:
    here.ok("create", "running", "--wait")
    here.ok("exec", "running", "--", "sh", "-c", "echo precious > note")
    remove(here, here.home(here.show("running")).parent)
    ends_in_error(here, "running", "ContainerWithoutVolume", "DataLost")


def test_a_volume_removed_while_stopped_is_an_error(here: Product) -> None:
    here.ok("create", "standing", "--wait")
    here.ok("stop", "standing", "--wait")
    remove(here, here.home(here.show("standing")).parent)
    ends_in_error(here, "standing", "DataLost")


def test_a_volume_removed_while_starting_is_an_error(here: Product) -> None:
    here.ok("create", "starting", "--template", "command", "--", *NEVER_READY)
    here.until("starting", lambda seen: seen["operation"] == "STARTING")
    remove(here, here.home(here.show("starting")).parent)
    ends_in_error(here, "starting", "ContainerWithoutVolume", "DataLost")


def test_a_volume_removed_while_stopping_is_an_error(here: Product) -> None:
    here.ok("create", "stopping", "--template", "command", "--wait", "--", *IGNORES_TERM)
    volume = here.home(here.show("stopping")).parent
    here.ok("stop", "stopping")
    remove(here, volume)
    ends_in_error(here, "stopping", "ContainerWithoutVolume", "DataLost")


@pytest.mark.long
def test_a_volume_removed_during_an_operation_is_not_replaced_by_an_older_home(here: Product) -> None:
    root = large(here, "large")
    first = here.show("large")
    here.ok("archive", "large", "--wait")
    restoring = here.home({**first, "generation": first["generation"] + 1}).parent
    here.ok("stop", "large")
    wait_for_the_middle(restoring)
    remove(here, restoring)
    restored = here.until(
        "large", lambda seen: seen["phase"] in ("STANDBY", "ERROR") and seen["operation"] == "NONE", within_s=WITHIN_S
    )
    assert restored["phase"] == "STANDBY", "its archive is still there"
    assert here.home(restored).parent != restoring, "removed too late to show anything"
    assert tree_root(here.home(restored)) == root

    here.ok("start", "large", "--wait")
    here.ok("exec", "large", "--", "sh", "-c", f"echo newer > note; head -c {HOME_BYTES} /dev/urandom > large")
    here.ok("stop", "large", "--wait")
    archiving = here.home(here.show("large")).parent
    stored = bytes_below(here.data / "archives")
    here.ok("archive", "large")
    wait_for_the_middle(here.data / "archives", stored)
    remove(here, archiving)
    lost = ends_in_error(here, "large", "DataLost")
    assert lost["archive_key"] == restored["archive_key"], "half an archive does not count"

    here.ok("recover", "large", "--archive-key", lost["archive_key"], "--wait")
    here.ok("start", "large", "--wait")
    here.ok("exec", "large", "--", "sh", "-c", f"echo newest > note; head -c {HOME_BYTES} /dev/urandom > large")
    deleting = here.home(here.show("large")).parent
    stored = bytes_below(here.data / "archives")
    here.ok("delete", "large")
    wait_for_the_middle(here.data / "archives", stored)
    remove(here, deleting)
    here.until(lost["id"], lambda seen: seen["phase"] == "DELETED" and seen["operation"] == "NONE", within_s=WITHIN_S)
    undeleted = here.run("undelete", lost["id"], "--wait", "--timeout", str(WITHIN_S))
    assert undeleted.returncode == 3, "the older archive is not passed off as the home that was deleted"
    ends_in_error(here, "large", "DataLost")
