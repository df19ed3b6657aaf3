"""Which changes of pods are reported, and that the product notices them at once."""

import json
from typing import Any

import pytest

from tests.runtimes.kubernetes.conftest import InstalledCluster
from tests.support.product import Product
from torpor.domain.errors import Unavailable
from torpor.runtimes.kubernetes.pod_watch import changed_workspace
from torpor.runtimes.object_labels import container_name

NOTICED_S = 60.0
"""Until the program runs again, on a busy machine."""


def change(kind: str, phase: str = "Running", **metadata: Any) -> bytes:
    labels = {"torpor.workspace": "w", "torpor.kind": "workspace"}
    return json.dumps(
        {"type": kind, "object": {"metadata": {"labels": labels, **metadata}, "status": {"phase": phase}}}
    ).encode()


@pytest.mark.parametrize(
    ("line", "workspace"),
    [
        (change("DELETED"), "w"),
        (change("MODIFIED", "Failed"), "w"),
        (change("MODIFIED", "Succeeded"), "w"),
        (change("MODIFIED", deletionTimestamp="2026-01-01T00:00:00Z"), "w"),
        (change("MODIFIED"), None),
        (change("MODIFIED", "Pending"), None),
        (change("ADDED"), None),
        (b'{"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "7"}}}', None),
    ],
)
def test_ends_and_deletions_are_reported(line: bytes, workspace: str | None) -> None:
    assert changed_workspace(line) == workspace


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "message": "too old", "code": 410}}', "too old"),
        (b"{", "cannot be read"),
    ],
)
def test_a_watch_that_fails_begins_again(line: bytes, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        changed_workspace(line)


@pytest.fixture
def more_settings() -> dict[str, str]:
    return {"reconciler_interval": "3600"}


def test_a_pod_deleted_by_hand_is_noticed_long_before_the_next_resync(installed: InstalledCluster, product: Product) -> None:
    product.ok("create", "one", "--wait")
    shown = product.show("one")
    installed.kubectl("delete", "pod", container_name(shown["id"]), timeout_s=NOTICED_S)
    product.until(
        "one", lambda now: bool(now["revision"] > shown["revision"] and now["phase"] == "RUNNING"), within_s=NOTICED_S
    )
