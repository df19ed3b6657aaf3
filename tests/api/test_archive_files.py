"""Archives are read over HTTP by clients that leave or take nothing, from a store that does not answer, and by many at once."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from tests.archives.packs.stage import PackStage, base_of
from tests.support.hanging_object import hanging
from tests.support.live_api import Client, LiveApi, live_api
from tests.support.waiting import until
from torpor.api import archive_files, archive_stream
from torpor.archives.reader import MOST_STREAMS
from torpor.domain.records import ArchiveKey
from torpor.store.archive_leases import reading

pytestmark = pytest.mark.anyio

LARGE = 12 << 20
"""More than the sockets and the server hold for a client that does not read."""
ARCHIVE = """
INSERT INTO archives (key, workspace_id, op_id, generation, revision, manifest_root, size_bytes, home_bytes, proven_at)
VALUES ($1, $2, $3, 1, 1, 'root', 1000, 2000, now())
"""
EXPORT = "/workspaces/demo/archives/export"
CONTENT = "/workspaces/demo/archives/content?path=b"


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        yield made


async def know(here: LiveApi, key: ArchiveKey) -> None:
    """As a controller writes it."""
    workspace = uuid.UUID(key.workspace_id)
    await here.db.execute(ARCHIVE, str(key), workspace, uuid.UUID(key.op_id))
    await here.db.execute(
        "UPDATE workspaces SET archive_key = $2, archive_generation = 1, archive_revision = 1, archive_root = 'root',"
        " generation = 2, revision = 1, phase = 'STANDBY', volume_present = true WHERE id = $1",
        workspace,
        str(key),
    )


async def with_archive(here: LiveApi, name: str = "demo", owner: str = "ada", *, size: int = LARGE) -> Path:
    """A workspace with an archive that has the files `a`, large, and `b`; returns the pack that has only `b`."""
    stage = PackStage(here.path.parent, await here.create(name, owner))
    home = here.path.parent / name / "home"
    home.mkdir(parents=True)
    (home / "a").write_bytes(os.urandom(size))
    first = stage.archive(home)
    (home / "b").write_bytes(os.urandom(1000))
    second = stage.archive(home, base_of(first))
    await know(here, second.root.key)
    new = {pack.name for pack in second.packs} - {pack.name for pack in first.packs}
    documents = {section.tree.frame.pack for section in second.root.sections}
    [content] = new - documents
    return stage.pack(content)


async def leases(here: LiveApi) -> int:
    held: int = await here.db.fetchval("SELECT count(*) FROM archive_leases")
    return held


async def open_exports(here: LiveApi, count: int, *, by: str = "ada", name: str = "demo") -> list[Client]:
    target = f"/workspaces/{name}/archives/export"
    return [await here.follow(target, by=by, buffer_bytes=4096) for _ in range(count)]


async def test_the_lease_of_a_client_that_leaves_while_the_store_is_read_ends(here: LiveApi) -> None:
    with hanging(await with_archive(here)):
        client = await here.follow(EXPORT)
        assert client.status == 200
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client._reader.readexactly(2 * LARGE), 1)  # the server has sent all that it could read
        assert await leases(here) == 1
        client.leave()
        await until(lambda: _none_left(here))


async def test_a_client_that_leaves_before_the_first_piece_is_noticed(here: LiveApi) -> None:
    with hanging(await with_archive(here, size=10)):
        _, writer = await asyncio.open_unix_connection(here.path)
        head = f"GET /api/v1{CONTENT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {here.people['ada'].token}\r\n\r\n"
        writer.write(head.encode())
        await until(lambda: _one_held(here))
        writer.transport.abort()
        await until(lambda: _none_left(here))


async def _none_left(here: LiveApi) -> bool:
    return await leases(here) == 0


async def _one_held(here: LiveApi) -> bool:
    return await leases(here) == 1


async def test_a_lease_ends_also_if_every_further_await_of_its_reader_is_cancelled(here: LiveApi) -> None:
    demo = await here.create("demo")
    with anyio.CancelScope() as scope:
        async with reading(here.service, demo, "a test reads", lease_s=900):
            assert await leases(here) == 1
            scope.cancel()
            await anyio.sleep_forever()
    await until(lambda: _none_left(here))


async def test_one_user_cannot_take_all_streams(here: LiveApi) -> None:
    await with_archive(here)
    await with_archive(here, "other", "bob", size=10)
    most = archive_files.STREAMS_PER_USER
    assert most < MOST_STREAMS
    tried = await open_exports(here, MOST_STREAMS)
    assert [client.status for client in tried] == [200] * most + [429] * (MOST_STREAMS - most)
    assert (await tried[-1].text())["code"] == "too_many_streams"
    assert int(tried[-1].headers["retry-after"]) > 0
    read = await here.call("GET", "/workspaces/other/archives/files", by="bob")
    assert (read.status_code, len(read.text.splitlines())) == (200, 2)
    tried[0].leave()
    await until(lambda: _is_let_in(here))


async def _is_let_in(here: LiveApi) -> bool:
    return (await here.call("GET", "/workspaces/demo/archives/files")).status_code == 200


async def test_a_client_that_takes_nothing_is_disconnected(here: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_stream, "TAKES_WITHIN_S", 0.2)
    await with_archive(here)
    stalled = await open_exports(here, archive_files.STREAMS_PER_USER)
    await until(lambda: _none_left(here))
    assert await _is_let_in(here)
    for client in stalled:
        assert await _is_cut_off(client)


async def _is_cut_off(client: Client) -> bool:
    """The connection ends before the last chunk, so that the client does not take a part for the whole."""
    rest = await asyncio.wait_for(client._reader.read(), 20)
    return not rest.endswith(b"0\r\n\r\n")


async def test_a_stream_ends_when_its_lease_was_lost(here: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs may have been removed since, and others may follow."""
    monkeypatch.setattr(archive_files, "READING_LEASE_S", 0.0)
    await with_archive(here)
    [client] = await open_exports(here, 1)
    await here.db.execute("DELETE FROM archive_leases")
    assert await _is_cut_off(client)
