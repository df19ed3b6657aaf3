"""The command before an automatic stop runs, and never prevents the stop."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.builders import workspace
from tests.support.control_plane import FAST, ControlPlane, control_plane
from tests.support.waiting import until
from torpor.control import before_sleep
from torpor.control.before_sleep import KEPT_BYTES, run_before_sleep
from torpor.control.effect_executor import EffectExecutor
from torpor.domain.effects import BeforeSleep
from torpor.domain.records import EffectDone, Report, StaleEpoch, Workspace
from torpor.domain.states import Operation, Phase, Stage, Wish, WishOrigin
from torpor.ports import Container, Fence, Home, Limits, Program, RunningCommand, TerminalSize
from torpor.testing.defaults import tuning
from torpor.testing.fake_runtime import FakeArchives, FakeContainer, FakeRuntime, FakeWorld

pytestmark = pytest.mark.anyio

ROW = workspace()
LIMITS = Limits(1 << 20, 8)
QUICK_S = 0.3


def running_world() -> FakeWorld:
    world = FakeWorld()
    container = Container(Home(ROW.id, 1), 1, Program("terminal", ("true",)), LIMITS)
    world.containers[ROW.id] = FakeContainer(container, 1)
    return world


async def carried_out(
    world: FakeWorld, *command: str, within_s: float = 30, epoch: int = 1
) -> tuple[Report, Mapping[str, Any]]:
    """Return the report, and the line in Torpor's log."""
    hands = EffectExecutor(FakeRuntime(world), FakeArchives(world), lambda _: Program("t", ("true",)), LIMITS)
    with capture_logs() as logs:
        report = await hands.carry_out(ROW, BeforeSleep(command, within_s), Fence("op", epoch), lambda *_: None)
    return report, next((line for line in logs if line["event"].startswith("before_sleep")), {})


async def own_log(world: FakeWorld) -> str:
    return b"".join([line async for line in FakeRuntime(world).logs(ROW.id, tail=100)]).decode()


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_before_sleep_may_take_thirty_seconds() -> None:
    assert tuning().before_sleep_s == 30


async def test_the_output_is_in_the_log_and_in_the_log_of_the_workspace() -> None:
    world = running_world()
    report, line = await carried_out(world, "echo", "all", "saved")
    assert report == EffectDone()
    assert (line["event"], line["log_level"], line["output"]) == ("before_sleep_ended", "info", "all saved")
    assert line["workspace"] == ROW.id
    assert await own_log(world) == "all saved\ntorpor: before_sleep ended with exit code 0\n"


async def test_a_failed_command_is_logged_and_reported_as_done() -> None:
    world = running_world()
    report, line = await carried_out(world, "exit", "7")
    assert report == EffectDone()
    assert (line["event"], line["log_level"]) == ("before_sleep_failed", "warning")
    assert "exit code 7" in line["became"]
    assert "exit code 7" in await own_log(world)


async def test_a_missing_program_is_a_failure_like_any_other() -> None:
    report, line = await carried_out(running_world(), "no-such-program")
    assert report == EffectDone()
    assert "exit code 127" in line["became"]
    assert "no-such-program" in line["output"]


@pytest.mark.parametrize("command", ["sleep", "yes"], ids=["silent", "floods"])
async def test_a_command_that_hangs_is_ended_after_its_timeout(command: str) -> None:
    world = running_world()
    began = time.monotonic()
    report, line = await carried_out(world, command, within_s=QUICK_S)
    assert report == EffectDone()
    assert QUICK_S <= time.monotonic() - began < 20
    assert "did not end within 0.3 s" in line["became"]
    assert len(line["output"]) <= KEPT_BYTES


async def test_a_command_gets_the_end_of_its_input_at_once() -> None:
    report, line = await carried_out(running_world(), "cat")
    assert report == EffectDone()
    assert line["event"] == "before_sleep_ended"


async def test_only_the_end_of_the_output_is_kept_and_it_is_escaped() -> None:
    _, line = await carried_out(running_world(), "echo", "x" * 2 * KEPT_BYTES, "\x1b[2Jred\x07\r\u202e")
    assert len(line["output"]) < KEPT_BYTES + 40
    assert line["output"].endswith("\\x1b[2Jred\\x07\\r\\u202e")


async def test_a_stopped_workspace_causes_no_delay() -> None:
    began = time.monotonic()
    report, line = await carried_out(FakeWorld(), "echo")
    assert report == EffectDone()
    assert line["event"] == "before_sleep_failed"
    assert time.monotonic() - began < 20


async def test_a_controller_with_an_older_epoch_runs_no_command() -> None:
    world = running_world()
    world.epochs[ROW.id] = 2
    report, line = await carried_out(world, "echo", epoch=1)
    assert report == StaleEpoch(2)
    assert line == {}


class Watched(FakeRuntime):
    """Records the commands that it started, and whether they were ended."""

    def __init__(self, world: FakeWorld) -> None:
        super().__init__(world)
        self.commands: list[RunningCommand] = []

    async def start_command(
        self, workspace_id: str, command: Sequence[str], *, terminal: TerminalSize | None = None
    ) -> RunningCommand:
        made = await super().start_command(workspace_id, command, terminal=terminal)
        self.commands.append(made)
        return made


async def test_a_cancellation_ends_the_command() -> None:
    runtime = Watched(running_world())
    running = asyncio.ensure_future(run_before_sleep(runtime, ROW, ("sleep",), within_s=60))
    await until(lambda: runtime.commands)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await runtime.commands[0].read() is None, "it has ended"


async def test_a_log_that_cannot_be_written_causes_no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(before_sleep, "WRITE_LOG_S", 0.05)

    class Stuck(FakeRuntime):
        async def append_log(self, workspace_id: str, lines: bytes) -> None:
            await asyncio.Event().wait()

    async with asyncio.timeout(20):
        await run_before_sleep(Stuck(running_world()), ROW, ("echo", "x"), within_s=60)


# ── in the loop ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def here(database_url: str) -> AsyncIterator[ControlPlane]:
    async with control_plane(database_url, tuning=replace(FAST, before_sleep_s=60)) as made:
        yield made


async def asleep_by_itself(here: ControlPlane, *command: str) -> Workspace:
    """A running workspace with this command whose automatic stop was just requested by the idle watch."""
    made = await here.wishes.create(here.user, name="ada", before_sleep=command)
    await here.until_phase("ada", Phase.RUNNING)
    async with here.service.writing() as writing:
        await writing.set_wish(made.id, Wish.STANDBY, origin=WishOrigin.IDLE)
    here.controller.hint(made.id)
    return made


async def test_the_command_runs_and_the_workspace_is_stopped(here: ControlPlane) -> None:
    made = await asleep_by_itself(here, "echo", "good night")
    await here.until_phase("ada", Phase.STANDBY)
    assert here.world.logs[made.id][0] == b"good night\n"
    assert [attempt.kind for attempt in await here.service.history(made.id, limit=1)] == [Operation.STOPPING]


async def test_a_stop_by_a_user_does_not_run_the_command(here: ControlPlane) -> None:
    made = await here.wishes.create(here.user, name="ada", before_sleep=("echo", "good night"))
    await here.until_phase("ada", Phase.RUNNING)
    await here.wishes.wish(here.user, "ada", Wish.STANDBY)
    await here.until_phase("ada", Phase.STANDBY)
    assert made.id not in here.world.logs


async def test_explain_shows_the_running_command_and_a_wake_prevents_the_stop(here: ControlPlane) -> None:
    made = await asleep_by_itself(here, "sleep")
    await here.until("ada", lambda seen: seen.stage is Stage.BEFORE_SLEEP)
    container = here.world.containers[made.id]
    _, explained = await here.wishes.explained(here.user, "ada")
    assert "before_sleep" in " ".join(explained.lines)
    await here.wishes.wake(here.user, "ada")
    woken = await here.until("ada", lambda seen: seen.operation is Operation.NONE)
    assert (woken.phase, woken.desired_state) == (Phase.RUNNING, Wish.RUNNING)
    assert here.world.containers[made.id] is container, "it was never stopped"


async def test_a_visit_during_the_command_prevents_the_stop(here: ControlPlane) -> None:
    await asleep_by_itself(here, "sleep")
    seen = await here.until("ada", lambda seen: seen.stage is Stage.BEFORE_SLEEP)
    assert (await here.wishes.using.stay(seen)).desired_state is Wish.RUNNING
    await here.until("ada", lambda seen: seen.operation is Operation.NONE and seen.phase is Phase.RUNNING)


async def test_a_hold_during_the_command_prevents_the_stop(here: ControlPlane) -> None:
    made = await asleep_by_itself(here, "sleep")
    seen = await here.until("ada", lambda seen: seen.stage is Stage.BEFORE_SLEEP)
    container = here.world.containers[made.id]
    await here.wishes.using.hold(here.user, seen, reason="kept awake for 1 hour", seconds=3600)
    assert (await here.wishes.find(here.user, "ada")).desired_state is Wish.RUNNING
    held = await here.until("ada", lambda seen: seen.operation is Operation.NONE)
    assert (held.phase, held.desired_state) == (Phase.RUNNING, Wish.RUNNING)
    assert here.world.containers[made.id] is container, "it was never stopped"


async def test_an_exec_during_the_command_prevents_the_stop(here: ControlPlane) -> None:
    made = await asleep_by_itself(here, "sleep")
    seen = await here.until("ada", lambda seen: seen.stage is Stage.BEFORE_SLEEP)
    container = here.world.containers[made.id]
    async with here.wishes.using.keeping_awake(seen):
        assert (await here.wishes.find(here.user, "ada")).desired_state is Wish.RUNNING
    used = await here.until("ada", lambda seen: seen.operation is Operation.NONE)
    assert (used.phase, used.desired_state) == (Phase.RUNNING, Wish.RUNNING)
    assert here.world.containers[made.id] is container, "it was never stopped"


async def test_commands_that_hang_do_not_delay_other_workspaces(database_url: str) -> None:
    async with control_plane(database_url, tuning=replace(FAST, before_sleep_s=60), parallel=1) as here:
        names = [f"w{number}" for number in range(8)]
        made = [await here.wishes.create(here.user, name=name, before_sleep=("sleep",)) for name in names]
        for name in names:
            await here.until_phase(name, Phase.RUNNING)
        async with here.service.writing() as writing:
            for one in made:
                await writing.set_wish(one.id, Wish.STANDBY, origin=WishOrigin.IDLE)
        here.controller.hint(*(one.id for one in made))
        for name in names:
            await here.until(name, lambda seen: seen.stage is Stage.BEFORE_SLEEP)
        await here.wishes.create(here.user, name="other")
        await here.until_phase("other", Phase.RUNNING)
