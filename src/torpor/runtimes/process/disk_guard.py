"""Pause the processes that fill the disk, before the database, the bus and the archives have no space left.

Without quotas any workspace can take all of the disk. The free space is looked at several times a second: below half of
`disk_reserve` processes that write are stopped (SIGSTOP), below a quarter all processes of workspaces. They go on when the
whole reserve is free again. Commands that are run inside meanwhile are not stopped unless they write, so a paused workspace
can be cleaned up from inside.

One call of `fallocate` takes a whole disk at once. For that case a file (`ballast`) holds some space, which is given back when
everything is paused.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import structlog

from torpor import metrics
from torpor.domain.disk import Disk, PauseAction, pause_action, writers
from torpor.loops import Loop
from torpor.runtimes.process import processes
from torpor.runtimes.process.supervisor import Supervisor

log = structlog.get_logger()

LOOK_S = 0.2
GONE_S = 5.0
COMPARE_S = 0.05
"""Between two looks at who writes, where there was none before."""
MOST_BALLAST_BYTES = 64 << 20
"""A few segments of the database's log."""
NEAR = 4
"""So many reserves are near enough to know who writes: a fast disk takes one of them between two looks."""

Written = Mapping[str, Mapping[int, int]]
"""What each process has written so far, by workspace."""


class DiskGuard:
    def __init__(
        self,
        look: Callable[[], Disk],
        reserve_bytes: int,
        containers: Mapping[str, Supervisor],
        on_change: Callable[[str], None],
        ballast: Path | None,
    ) -> None:
        """`ballast`: where the file is that holds some space; None: nothing of ours is on this disk."""
        self._look = look
        self._reserve_bytes = reserve_bytes
        self._containers = containers
        self._on_change = on_change
        self._ballast = ballast
        self._ballast_bytes = min(MOST_BALLAST_BYTES, reserve_bytes // 4)
        self._written: Written | None = None
        self._wholly_paused: set[str] = set()
        self._looking: asyncio.Future[Disk] | None = None

    async def run(self) -> None:
        """Until cancelled."""
        await Loop("disk-guard", self.look, interval_s=LOOK_S).run()

    async def look(self) -> float | None:
        if self._looking is not None and not self._looking.done():
            return None  # a disk that hangs holds one thread, not one more for every look
        self._looking = asyncio.ensure_future(asyncio.to_thread(self._look))
        try:
            free_bytes = (await asyncio.shield(self._looking)).free_bytes
        except OSError:
            return GONE_S  # it is not mounted; every look of the runtime says so
        metrics.disk_free_bytes.set(free_bytes)
        paused = {name for name, one in self._containers.items() if one.is_paused}
        metrics.workspaces_paused.set(len(paused))
        if free_bytes >= self._reserve_bytes + self._ballast_bytes:
            await asyncio.to_thread(self._hold_ballast)
        if free_bytes >= NEAR * self._reserve_bytes and not paused:
            self._written = None
            return None
        await self._act(pause_action(free_bytes, self._reserve_bytes), free_bytes)
        for name in {name for name, one in self._containers.items() if one.is_paused} ^ paused:
            self._on_change(name)
        return None

    async def _act(self, what: PauseAction, free_bytes: int) -> None:
        if what is PauseAction.CONTINUE:
            self._wholly_paused.clear()
            for name, supervisor in list(self._containers.items()):
                if supervisor.is_paused:
                    log.warning("workspace_goes_on", workspace=name, free_bytes=free_bytes)
                    await asyncio.to_thread(supervisor.go_on)
        if self._written is None and what in (PauseAction.WRITERS, PauseAction.ALL):
            self._written = await asyncio.to_thread(self._measure)
            await asyncio.sleep(COMPARE_S)
        before, self._written = self._written or {}, await asyncio.to_thread(self._measure)
        if what in (PauseAction.WRITERS, PauseAction.ALL):
            for name, now in self._written.items():
                await self._pause(name, before.get(name, {}), now, what, free_bytes)
        if what is PauseAction.ALL and await asyncio.to_thread(self._release_ballast):
            log.warning("ballast_released", free_bytes=free_bytes, size_bytes=self._ballast_bytes)

    async def _pause(
        self, name: str, before: Mapping[int, int], now: Mapping[int, int], what: PauseAction, free_bytes: int
    ) -> None:
        supervisor = self._containers.get(name)
        # One that ends frees space, and must be able to.
        if supervisor is None or (supervisor.is_stopping and what is not PauseAction.ALL):
            return
        chosen = writers(before, now)
        if what is PauseAction.ALL and name not in self._wholly_paused:
            # Once: what is run in it later, to remove files, must be able to.
            self._wholly_paused.add(name)
            chosen = frozenset(now)
        if not chosen:
            return
        if not supervisor.is_paused:
            log.warning("workspace_paused", workspace=name, processes=len(chosen), free_bytes=free_bytes)
        await asyncio.to_thread(partial(supervisor.pause, chosen))

    def _hold_ballast(self) -> None:
        """As far as this disk allows it: without it there is less to give back, and nothing else is worse."""
        with contextlib.suppress(OSError):
            if self._ballast is None or self._ballast.exists():
                return
            aside = self._ballast.with_name(f"{self._ballast.name}.new")
            with aside.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, self._ballast_bytes)
            aside.replace(self._ballast)

    def _release_ballast(self) -> bool:
        if self._ballast is None or not self._ballast.exists():
            return False
        self._ballast.unlink()
        return True

    def _measure(self) -> Written:
        agents = {name: agent.pid for name, one in list(self._containers.items()) if (agent := one.agent) is not None}
        return {
            name: {pid: processes.written_bytes(pid) or 0 for pid in pids}
            for name, pids in processes.descendants(agents).items()
        }
