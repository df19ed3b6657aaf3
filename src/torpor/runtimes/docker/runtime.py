"""Run workspaces as containers of a Docker engine: the verbs about volumes of `torpor.ports.Runtime`.

Containers, commands and jobs are not built yet.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Coroutine
from weakref import WeakValueDictionary

from torpor.domain.disk import Disk
from torpor.domain.errors import Failed, Unavailable
from torpor.domain.records import Marker, Observation, ObservedVolume, Survey
from torpor.loops import stop
from torpor.ports import Fence, Home
from torpor.runtimes.docker import record_changes
from torpor.runtimes.docker.engine_client import DockerClient
from torpor.runtimes.docker.home_record import HomeRecord, RecordState
from torpor.runtimes.docker.homes import EngineHomes
from torpor.runtimes.docker.listing import EngineListing, ListedHome
from torpor.runtimes.docker.options import DockerOptions

MOST_HELD_AT_ONCE = 4
"""How many lost holders are created at the same time."""


class DockerRuntime:
    """Call `start` first and `close` last. Any number of processes can use one engine."""

    name = "docker"

    def __init__(self, options: DockerOptions) -> None:
        self._options = options
        self._engine = DockerClient(options.engine, options.call_s)
        self._homes = EngineHomes(self._engine, options.installation, options.user)
        self._epochs: dict[str, int] = {}
        # A lock exists only while a call holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._holding: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._engine.connect()
        with contextlib.suppress(Unavailable):  # every observation raises it, until the engine is available
            await self._homes.open_identity()

    async def close(self) -> None:
        await stop(*self._holding)
        await self._engine.close()

    # ── observation ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def world(self) -> str:
        self._engine.connect()
        return f"{self.name}:{await self._homes.open_identity()}"

    async def observe(self, only: frozenset[str] | None = None) -> Survey:
        found = await self._homes.list(only)
        self._hold_again(found)
        volumes: dict[str, set[ObservedVolume]] = {}
        for home, listed in found.homes.items():
            if (seen := listed.seen()) is not None:
                volumes.setdefault(home.workspace_id, set()).add(seen)
        return Survey({workspace_id: Observation(frozenset(seen)) for workspace_id, seen in volumes.items()})

    def _hold_again(self, found: EngineListing) -> None:
        """Create lost holders again, a few at a time: without them a prune removes the homes."""
        lost = [one for one in found.homes.values() if one.lacks_holder]
        for listed in lost[: MOST_HELD_AT_ONCE - len(self._holding)]:
            self._in_background(self._hold_one(listed.home))
        if not found.is_identity_held and not self._holding:
            self._in_background(self._hold_identity(found))

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._holding.add(task)
        task.add_done_callback(self._holding.discard)

    async def _hold_identity(self, found: EngineListing) -> None:
        with contextlib.suppress(Unavailable, Failed):  # the next observation tries again
            await self._homes.hold_identity(found)

    async def disk(self) -> Disk | None:
        """The disk is the engine's, and may be on another machine."""
        return None

    async def _hold_one(self, home: Home) -> None:
        async with self._lock_of(home.workspace_id):
            with contextlib.suppress(Unavailable, Failed):  # the next observation tries again
                await self._homes.hold((await self._homes.list(frozenset({home.workspace_id}))).of(home))

    # ── volumes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ensure_volume(self, home: Home, fence: Fence) -> None:
        nonce, birth = _word(), _word()

        def decide(listed: ListedHome, found: EngineListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.made(listed, fence.epoch, nonce, birth)

        async with self._exclusive(home.workspace_id, fence):
            listed = await self._homes.change(home, decide)
            if listed.record is not None and listed.record.state is RecordState.HALF_MADE:
                await self._homes.put_folders(home)

    async def admit(self, workspace_id: str, fence: Fence) -> None:
        async with self._exclusive(workspace_id, fence):
            pass

    async def mark_volume(self, home: Home, marker: Marker, fence: Fence) -> None:
        nonce = _word()

        def decide(listed: ListedHome, found: EngineListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.marked(listed, marker, fence.epoch, nonce)

        async with self._exclusive(home.workspace_id, fence) as found:
            record_changes.marked(found.of(home), marker, fence.epoch, nonce)  # refuses before any file is written
            await self._homes.put_marker(found.of(home), marker)
            await self._homes.change(home, decide)

    async def ensure_no_volume(self, home: Home, fence: Fence, *, archived_revision: int | None) -> None:
        nonce = _word()

        def decide(listed: ListedHome, found: EngineListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.going(
                listed, fence.epoch, nonce, archived_revision=archived_revision, is_running=found.runs_on(home)
            )

        async with self._exclusive(home.workspace_id, fence):
            await self._homes.remove(home, decide)

    async def ensure_no_half_made(self, home: Home, fence: Fence) -> None:
        nonce = _word()

        def decide(listed: ListedHome, found: EngineListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.discarded(listed, fence.epoch, nonce)

        async with self._exclusive(home.workspace_id, fence) as found:
            if found.of(home).is_half_made:
                await self._homes.remove(home, decide)

    # ── locks and fences ──────────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def _exclusive(self, workspace_id: str, fence: Fence) -> AsyncIterator[EngineListing]:
        """Run one verb at a time for each workspace, and refuse a controller with an old epoch, now and from now on."""
        async with self._lock_of(workspace_id):
            found = await self._homes.list(frozenset({workspace_id}))
            self._admit(found, workspace_id, fence)
            if found.epoch(workspace_id) < fence.epoch:
                for listed in found.homes_of(workspace_id):
                    await self._note_epoch(listed.home, fence)
                found = await self._homes.list(frozenset({workspace_id}))
            yield found

    def _admit(self, found: EngineListing, workspace_id: str, fence: Fence) -> None:
        found.admit(workspace_id, fence, self._epochs.get(workspace_id, 0))
        if found.homes_of(workspace_id):  # without a home no epoch is needed, and the dictionary would grow with every id
            self._epochs[workspace_id] = fence.epoch
        else:
            self._epochs.pop(workspace_id, None)

    async def _note_epoch(self, home: Home, fence: Fence) -> None:
        nonce = _word()

        def decide(listed: ListedHome, found: EngineListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.admitted(listed, fence.epoch, nonce)

        await self._homes.change(home, decide)

    def _lock_of(self, workspace_id: str) -> asyncio.Lock:
        lock = self._locks.get(workspace_id)
        if lock is None:
            lock = self._locks[workspace_id] = asyncio.Lock()
        return lock


def _word() -> str:
    return secrets.token_hex(16)
