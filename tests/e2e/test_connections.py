"""The real product responds to its users while one client opens as many connections as it can."""

import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.support.product import Product

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]

CONNECTIONS = 400
DESCRIPTORS = 600
SLOW_POST = (
    b"POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    b'{"username": "'
)


def test_slow_posts_of_one_address_do_not_block_others(tmp_path: Path) -> None:
    """Each of them takes three descriptors; without a limit there were not enough for the database."""
    few = ("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$0" "$@"')
    here = Product(tmp_path / "data", before=few, environment={"TORPOR_CONNECTIONS_PER_ADDRESS": "20"})
    with here.running(), ExitStack() as stack:
        for _ in range(CONNECTIONS):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", here.port), 10, ("127.0.0.2", 0)))
            with suppress(OSError):  # it may be closed already
                slow.sendall(SLOW_POST)
        here.ok("create", "demo", "--wait")
        assert "demo" in here.ok("list")
        assert here.log().count("too_many_connections") == 1
