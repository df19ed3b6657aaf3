"""Test that API and proxy find an agent by the row alone, and only with the key of the controllers."""

import asyncio

import pytest

from tests.support.builders import workspace
from tests.support.kept_logs import LogsInMemory
from torpor.domain.errors import Refused
from torpor.domain.records import ContainerLocation
from torpor.inside.proof import container_key, key_id
from torpor.runtimes.row_access import RowAccess

pytestmark = pytest.mark.anyio

KEY = b"the key of the installation"
LOCATION = ContainerLocation("127.0.0.1", 7008, "nonce", key_id(KEY))


async def test_the_address_is_made_of_the_row_and_the_key() -> None:
    access = RowAccess(KEY, LogsInMemory())
    running = workspace(location=LOCATION)
    address = access.address(running)
    assert address is not None
    assert (address.host, address.port, address.key) == ("127.0.0.1", 7008, container_key(KEY, "nonce"))
    assert access.address(running) is address, "the proxy compares addresses for every request"
    assert access.address(running, 3000) != address
    assert repr(address.key) not in repr(address)


async def test_a_workspace_without_a_container_has_no_address_and_its_kept_log() -> None:
    logs = LogsInMemory()
    access, stopped = RowAccess(KEY, logs), workspace(location=None)
    await logs.keep(stopped.id, b"one\ntwo\nthree\n")
    assert access.address(stopped) is None
    assert [line async for line in access.logs(stopped, tail=2)] == [b"two\n", b"three\n"]
    with pytest.raises(Refused, match="no running container"):
        await access.execute(stopped, ["true"], b"")


async def test_another_key_finds_no_agent() -> None:
    access = RowAccess(b"another key", LogsInMemory())
    assert access.address(workspace(location=LOCATION)) is None


async def test_the_kept_log_is_read_if_the_container_has_just_ended() -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    logs = LogsInMemory()
    running = workspace(location=ContainerLocation("127.0.0.1", port, "nonce", key_id(KEY)))
    await logs.keep(running.id, b"last\n")
    async with server:
        assert [line async for line in RowAccess(KEY, logs).logs(running, tail=5)] == [b"last\n"]
