"""Installations of `torpor serve` on a real engine: a controller is killed in an operation, and another takes over."""

import asyncio
import contextlib
import secrets
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from tests.support.cluster import Cluster, Node, cluster
from tests.support.engine_relay import EngineRelay
from tests.support.waiting import until

NAME = "demo"
SOON_S = 60.0
"""Until another controller has taken over and finished, on a busy machine."""
WRITE = "head -c 300000 /dev/urandom > noise; echo mine > file"
READ = "stat -c '%n %a %s %Y %u' * && cat noise file"


@dataclass
class Installation:
    here: Cluster
    settings: Mapping[str, str]
    of_controllers: Mapping[str, str]
    """Such as the address of the engine, which other processes do not get."""

    async def serve(self, role: str) -> Node:
        settings = dict(self.settings)
        if role == "controller":
            settings |= self.of_controllers
        if role == "proxy":
            settings["api_url"] = f"http://127.0.0.1:{self.here.living('api')[0].port}"
        return await self.here.serve(role, **settings)


@contextlib.asynccontextmanager
async def installation(
    folder: Path, settings: Mapping[str, str], of_controllers: Mapping[str, str]
) -> AsyncIterator[Installation]:
    key = folder / "key"
    key.write_bytes(b64encode(secrets.token_bytes(32)))
    key.chmod(0o600)
    async with cluster(folder) as here:
        yield Installation(here, {**settings, "secret_key_file": str(key)}, of_controllers)


async def revisions_of(here: Cluster) -> dict[str, int]:
    connection = await asyncpg.connect(here.postgres.dsn)
    try:
        return {row["name"]: row["revision"] for row in await connection.fetch("SELECT name, revision FROM workspaces")}
    finally:
        await connection.close()


@dataclass
class Place(ABC):
    """One workspace on an engine, with an archive store whose requests can be held."""

    made: Installation
    store: EngineRelay

    @property
    def here(self) -> Cluster:
        return self.made.here

    async def created(self) -> bytes:
        """The content of the new workspace."""
        await self.here.create(NAME)
        await self.here.until_served(within_s=SOON_S)
        await self.execute(WRITE)
        return await self.content()

    async def content(self) -> bytes:
        """The facts about all files, and what is in them."""
        return await self.execute(READ)

    async def execute(self, script: str) -> bytes:
        done = await self.here.accepted("POST", f"/workspaces/{NAME}/exec", {"command": ["sh", "-c", script]})
        assert done["exit_code"] == 0, done
        return b64decode(done["stdout"])

    async def holder(self) -> Node | None:
        """The controller that has begun the operation in progress, if it lives."""
        connection = await asyncpg.connect(self.here.postgres.dsn)
        try:
            found = await connection.fetchval("SELECT node_id FROM controllers c JOIN workspaces w ON w.held_by = c.epoch")
        finally:
            await connection.close()
        return next((node for node in self.here.living("controller") if node.name == found), None)

    async def kill_holder(self) -> None:
        killed = await self.holder()
        assert killed is not None
        await killed.kill()

    @abstractmethod
    def containers(self, kind: str) -> list[str]:
        """The ids of all containers of this kind."""


def pack_uploads(store: EngineRelay) -> list[str]:
    """A job that is started again writes the same packs again."""
    return [line for line in store.requests if line.startswith("PUT ") and "/packs/" in line]


async def another_controller_finishes_a_pack_and_a_restore(place: Place) -> None:
    here, store = place.here, place.store
    await asyncio.gather(*(place.made.serve("controller") for _ in range(2)))
    before = await place.created()
    revisions = await revisions_of(here)

    store.hold(lambda line: line.startswith("PUT ") and "/packs/" in line)
    await here.wish(NAME, "ARCHIVED")
    await until(lambda: store.held, within_s=SOON_S)
    (packing,) = place.containers("job")
    await place.kill_holder()
    await until(place.holder, within_s=SOON_S)
    store.release()
    await here.until_served(within_s=SOON_S)
    assert place.containers("job") == place.containers("workspace") == []
    uploads = pack_uploads(store)
    assert uploads
    assert len(uploads) == len(set(uploads)), f"the next controller did not continue with the job {packing} that ran"

    await place.made.serve("controller")
    store.held.clear()
    # A job reads the first document alone, before its processes read contents.
    store.hold(lambda line: line.startswith("GET ") and "/packs/" in line)
    await here.wish(NAME, "RUNNING")
    await until(lambda: store.held, within_s=SOON_S)
    (restoring,) = place.containers("job")
    await place.kill_holder()
    await until(lambda: len(store.held) > 1, within_s=SOON_S)
    (again,) = place.containers("job")
    assert again != restoring, "the next controller begins a restore again"
    store.release()
    await here.until_served(within_s=SOON_S)
    assert await place.content() == before
    await until(lambda: place.containers("job") == [], within_s=SOON_S)  # on Docker, one may measure the home now
    assert len(place.containers("workspace")) == 1
    assert (await revisions_of(here))[NAME] == revisions[NAME] + 1, "of the start after the restore, and of no takeover"
