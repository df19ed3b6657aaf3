"""A workspace for which no node has room: it waits, says why all the time, and runs as soon as there is room."""

import time
from pathlib import Path

import pytest
import yaml

from tests.runtimes.kubernetes.conftest import InstalledCluster
from tests.support.product import Product
from tests.support.waiting import wait_until

PENDING_S = 600.0
SOON_S = 60.0
REASON = "no node can run it now"


@pytest.fixture
def pod_file(pod_file: Path) -> Path:
    fields = yaml.safe_load(pod_file.read_text())
    pod_file.write_text(yaml.safe_dump({**fields, "workspaces": {"nodeSelector": {"room": "for-workspaces"}}}))
    return pod_file


def test_ten_minutes_without_room_are_no_error(installed: InstalledCluster, product: Product) -> None:
    began = time.monotonic()
    product.ok("create", "one")
    wait_until(lambda: REASON in product.ok("explain", "one"), within_s=SOON_S)

    def has_waited_long_enough() -> bool:
        shown = product.show("one")
        assert (shown["operation"], shown["error"]) == ("STARTING", None), shown
        assert REASON in product.ok("explain", "one")
        return time.monotonic() - began > PENDING_S

    wait_until(has_waited_long_enough, within_s=PENDING_S + SOON_S, every_s=5.0)
    node = installed.cluster.nodes[0].name
    installed.kubectl("label", "node", node, "room=for-workspaces")
    try:
        product.until("one", lambda shown: shown["phase"] == "RUNNING", within_s=SOON_S)
    finally:
        installed.kubectl("label", "node", node, "room-")
