"""Processes that fill the disk are paused, can be cleaned up and stopped meanwhile, and resume afterwards."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.contracts.runtime_contract import FENCE, LIMITS, a_home, marker_of, program, unheard
from tests.support.waiting import until
from torpor.domain.busy import WorkHistory, busy_with, with_observation
from torpor.domain.disk import Disk
from torpor.ports import Container, Home
from torpor.runtimes.process import ProcessRuntime
from torpor.runtimes.process.disk_guard import MOST_BALLAST_BYTES, DiskGuard
from torpor.testing.defaults import process_options

pytestmark = pytest.mark.anyio

RESERVE = 1 << 30
AMPLE, WRITERS_PAUSE, ALL_PAUSE = 8 * RESERVE, RESERVE * 3 // 8, 0
# Serves, and writes much in a separate process once the file `go` exists; `count` shows its progress.
FILLER = """
(until [ -e go ]; do sleep 0.02; done
 while :; do head -c 300000 /dev/zero > big; echo x >> count; sleep 0.01; done) &
exec python3 -S -m http.server --bind 127.0.0.1 $PORT
"""


@dataclass
class Here:
    runtime: ProcessRuntime
    guard: DiskGuard
    _free: list[int]

    @property
    def free_bytes(self) -> int:
        return self._free[0]

    @free_bytes.setter
    def free_bytes(self, free_bytes: int) -> None:
        self._free[0] = free_bytes

    async def started(self, *, fills: bool) -> Home:
        home = a_home()
        await self.runtime.ensure_volume(home, FENCE)
        await self.runtime.mark_volume(home, marker_of(home), FENCE)
        container = Container(home, 1, program("sh", "-c", FILLER), LIMITS)
        await self.runtime.ensure_running(container, FENCE, unheard)
        await until(lambda: self.is_ready(home))
        if fills:
            await self.shell(home, "touch go; until [ -e count ]; do sleep 0.02; done")
        return home

    async def is_ready(self, home: Home) -> bool:
        seen = (await self.runtime.observe()).of(home.workspace_id).container
        return seen is not None and seen.ready

    async def is_paused(self, home: Home) -> bool:
        seen = (await self.runtime.observe()).of(home.workspace_id).container
        assert seen is not None
        assert seen.ready, "a paused workspace counts as it was"
        return seen.is_paused

    async def shell(self, home: Home, script: str) -> bytes:
        done = await asyncio.wait_for(self.runtime.execute(home.workspace_id, ["sh", "-c", script], b""), 20)
        assert done.exit_code == 0, done
        return done.stdout

    async def count(self, home: Home) -> int:
        return len(await self.shell(home, "cat count"))

    async def look_until_paused(self, *homes: Home) -> None:
        async def are_paused() -> bool:
            await self.guard.look()
            return all([await self.is_paused(home) for home in homes])

        await until(are_paused)

    async def is_at_rest(self, home: Home) -> bool:
        before = await self.count(home)
        for _ in range(10):
            await self.guard.look()
            await self.shell(home, "sleep 0.03")
        return await self.count(home) == before


@pytest.fixture(params=["as good as this machine can", "bare"])
async def here(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Here]:
    asking = partial(subprocess.run, ["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True)
    kind = await asyncio.to_thread(asking)
    if kind.stdout.strip() == "tmpfs":
        pytest.skip("the kernel does not count what is written to a tmpfs")
    await asyncio.to_thread(tmp_path.chmod, 0o711)
    confines = request.param != "bare"
    options = process_options(grace_s=2.0, bubblewrap=confines, own_network=confines, cgroups=confines)
    runtime = ProcessRuntime(tmp_path / "data", options=options)
    await runtime.start()
    free = [AMPLE]
    guard = DiskGuard(lambda: Disk("/", free[0]), RESERVE, runtime._containers, lambda _: None, ballast=runtime.paths.ballast)
    made = Here(runtime, guard, free)
    yield made
    await runtime.close()


async def test_only_writers_are_paused_and_they_continue_when_there_is_space(here: Here) -> None:
    filler, calm = await here.started(fills=True), await here.started(fills=False)
    await here.guard.look()
    assert not await here.is_paused(filler), "there is space"
    here.free_bytes = WRITERS_PAUSE
    await here.look_until_paused(filler)
    assert not await here.is_paused(calm)
    await until(lambda: here.is_at_rest(filler))

    here.free_bytes = RESERVE - 1
    await here.guard.look()
    assert await here.is_paused(filler), "not before the whole reserve is free"
    here.free_bytes = RESERVE
    await here.guard.look()
    assert not await here.is_paused(filler)
    before = await here.count(filler)

    async def writes_again() -> bool:
        return await here.count(filler) > before

    await until(writes_again)


async def test_without_a_known_writer_all_workspaces_are_paused(here: Here) -> None:
    homes = [await here.started(fills=False) for _ in range(2)]
    here.free_bytes = ALL_PAUSE
    await here.look_until_paused(*homes)
    assert await here.shell(homes[0], "rm -f big; echo cleaned") == b"cleaned\n", "commands run inside"
    here.free_bytes = AMPLE
    await here.guard.look()
    assert [await here.is_paused(home) for home in homes] == [False, False]


async def test_the_reserved_file_is_removed_when_the_disk_is_full(here: Here) -> None:
    ballast = here.runtime.paths.ballast
    await here.guard.look()
    held = await asyncio.to_thread(ballast.stat)
    assert held.st_blocks * 512 >= MOST_BALLAST_BYTES
    here.free_bytes = WRITERS_PAUSE
    await here.guard.look()
    assert await asyncio.to_thread(ballast.exists)
    here.free_bytes = ALL_PAUSE
    await here.guard.look()
    assert not await asyncio.to_thread(ballast.exists)
    here.free_bytes = RESERVE
    await here.guard.look()
    assert not await asyncio.to_thread(ballast.exists), "it would take from the reserve"
    here.free_bytes = AMPLE
    await here.guard.look()
    assert await asyncio.to_thread(ballast.exists)


async def test_a_paused_workspace_counts_as_busy(here: Here) -> None:
    home = await here.started(fills=False)
    here.free_bytes = ALL_PAUSE
    await here.look_until_paused(home)
    work = (await here.runtime.work())[home.workspace_id]
    history = with_observation(WorkHistory(), work, 0.0)
    assert busy_with(history, work, 0.0, foreground_ttl_s=1) == "its processes wait for disk space"


async def test_a_paused_workspace_can_be_stopped_with_time_to_save(here: Here) -> None:
    """Its program has time to save: it is resumed before it is asked to end."""
    home = await here.started(fills=False)
    saving = "trap '' HUP; trap 'echo saved > saved; exit' TERM; touch waits; while :; do sleep 0.05; done"
    await here.shell(home, f'setsid sh -c "{saving}" >/dev/null 2>&1 & until [ -e waits ]; do sleep 0.02; done')
    here.free_bytes = ALL_PAUSE
    await here.look_until_paused(home)
    await here.runtime.ensure_no_container(home.workspace_id, FENCE)
    assert (here.runtime.paths.volume(home) / "home" / "saved").read_text() == "saved\n"
    assert (await here.runtime.observe()).of(home.workspace_id).container is None


async def test_a_process_stopped_by_the_user_stays_stopped(here: Here) -> None:
    home = await here.started(fills=False)
    pid_inside = await here.shell(home, "setsid sleep 60 >/dev/null 2>&1 & sleep 0.2; kill -STOP $!; echo $!")
    here.free_bytes = ALL_PAUSE
    await here.look_until_paused(home)
    here.free_bytes = AMPLE
    await here.guard.look()
    assert not await here.is_paused(home)
    state = await here.shell(home, f"grep State /proc/{pid_inside.decode().strip()}/status")
    assert b"T (stopped)" in state


# One process, so that no new one is paused in its place.
WRITER = """
import os, time
open("pid", "w").write(str(os.getpid()))
while True:
    with open("big", "wb") as big, open("count", "ab") as count:
        big.write(bytes(300_000))
        big.flush()
        os.fsync(big.fileno())
        count.write(b"x")
    time.sleep(0.01)
"""


async def test_a_writer_continued_from_inside_is_paused_again(here: Here) -> None:
    """Like `fg` in a shell."""
    home = await here.started(fills=False)
    begin = f"setsid python3 -S -c '{WRITER}' >/dev/null 2>&1 & until [ -s pid ] && [ -s count ]; do sleep 0.02; done"
    await here.shell(home, begin)
    here.free_bytes = WRITERS_PAUSE
    await here.look_until_paused(home)
    await until(lambda: here.is_at_rest(home))
    before = await here.count(home)
    await here.shell(home, f"kill -CONT $(cat pid); until [ $(wc -c < count) -gt {before} ]; do sleep 0.02; done")
    await until(lambda: here.is_at_rest(home))
