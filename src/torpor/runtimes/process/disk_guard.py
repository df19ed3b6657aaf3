"""Pause the processes that fill the disk, before the database, the bus and the archives have no space left.

Without quotas any workspace can fill the disk. The free space is checked several times a second: below half of `disk_reserve`,
processes that write are paused (SIGSTOP); below a quarter, all processes of workspaces. They resume when the whole reserve is
free again. New commands in a paused workspace are not paused unless they write, so you can remove files from inside.

One call of `fallocate` can fill a disk at once. For that case a file (`ballast`) reserves some space; it is removed when all
processes are paused.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import structlog

from torpor import metrics
from torpor.atomic_file import replacing
from torpor.domain.disk import Disk, PauseAction, pause_action, writers
from torpor.loops import Loop
from torpor.runtimes.process import processes
from torpor.runtimes.process.supervisor import Supervisor

log = structlog.get_logger()

LOOK_S = 0.2
GONE_S = 5.0
COMPARE_S = 0.05
"""Between two measurements of written bytes, if there is no earlier one."""
MOST_BALLAST_BYTES = 64 << 20
"""A few segments of the database's log."""
NEAR = 4
"""Below this many reserves, written bytes are measured: a fast disk fills one reserve between two checks."""

Written = Mapping[str, Mapping[int, int]]
"""The bytes that each process has written so far, by workspace."""


class DiskGuard:
    def __init__(
        self,
        look: Callable[[], Disk],
        reserve_bytes: int,
        containers: Mapping[str, Supervisor],
        on_change: Callable[[str], None],
        ballast: Path | None,
    ) -> None:
        """`ballast` is the path of the file that reserves space; None if Torpor's data is not on this disk."""
        self._look = look
        self._reserve_bytes = reserve_bytes
        self._containers = containers
        self._on_change = on_change
        self._ballast = ballast
        self._ballast_bytes = min(MOST_BALLAST_BYTES, reserve_bytes // 4)
        self._written: Written | None = None
        self._wholly_paused: set[str] = set()
        self._measuring: asyncio.Future[Disk] | None = None

    async def run(self) -> None:
        """Until cancelled."""
        await Loop("disk-guard", self.look, interval_s=LOOK_S).run()

    async def look(self) -> float | None:
        if self._measuring is not None and not self._measuring.done():
            return None  # a disk that hangs blocks one thread, not one more for every check
        self._measuring = asyncio.ensure_future(asyncio.to_thread(self._look))
        try:
            free_bytes = (await asyncio.shield(self._measuring)).free_bytes
        except OSError:
            return GONE_S  # it is not mounted; the runtime's observations report it
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
                    await asyncio.to_thread(supervisor.resume)
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
        # A workspace that stops frees space, so it is not paused.
        if supervisor is None or (supervisor.is_stopping and what is not PauseAction.ALL):
            return
        chosen = writers(before, now)
        if what is PauseAction.ALL and name not in self._wholly_paused:
            # Only once: commands that remove files later must be able to run.
            self._wholly_paused.add(name)
            chosen = frozenset(now)
        if not chosen:
            return
        if not supervisor.is_paused:
            log.warning("workspace_paused", workspace=name, processes=len(chosen), free_bytes=free_bytes)
        await asyncio.to_thread(partial(supervisor.pause, chosen))

    def _hold_ballast(self) -> None:
        """Create the ballast if the disk has space. Errors are ignored: without it, less space can be released."""
        with contextlib.suppress(OSError):
            if self._ballast is None or self._ballast.exists():
                return
            aside = self._ballast.with_name(f"{self._ballast.name}.new")
            with replacing(self._ballast, aside, mode=0o600, sync=False) as descriptor:
                os.posix_fallocate(descriptor, 0, self._ballast_bytes)

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
