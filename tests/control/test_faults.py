"""The control plane handles faults at the worst moment.

The provider is a fake and the database is real. Tests change resources from outside, and block, refuse or repeat effects.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.control_plane import FAST, ControlPlane, control_plane
from tests.support.waiting import until
from torpor.domain.errors import Code, Deposed, Failed, Reason, Refused, Unavailable
from torpor.domain.limits import RunningLimits
from torpor.domain.missing_homes_latch import Latch
from torpor.domain.records import Change, ProgramExit
from torpor.domain.states import Operation, Outcome, Phase, Stage, Wish
from torpor.domain.tuning import Intervals
from torpor.loops import loop_statuses
from torpor.ports import Fence, Home
from torpor.testing.fake_runtime import FakeRuntime, FakeVolume

pytestmark = pytest.mark.anyio


async def running(here: ControlPlane, name: str = "demo") -> str:
    created = await here.wishes.create(here.user, name=name)
    await here.until_phase(name, Phase.RUNNING)
    return created.id


async def asleep(here: ControlPlane, name: str = "demo") -> str:
    """A STANDBY workspace with a note in its home."""
    workspace_id = await running(here, name)
    here.world.volumes[Home(workspace_id, 1)].files["note"] = b"hello"
    await here.wishes.wish(here.user, name, Wish.STANDBY)
    await here.until_phase(name, Phase.STANDBY)
    return workspace_id


class Gate:
    """Blocks one verb until it is opened, like a slow provider or a stopped process."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, verb: str, _workspace_id: str) -> None:
        if verb == self.verb:
            self.reached.set()
            await self.opened.wait()


async def test_a_program_that_ended_is_started_again(database_url: str) -> None:
    async with control_plane(database_url) as here:
        workspace_id = await running(here)
        here.world.containers[workspace_id].ended = ProgramExit(137, "killed")
        again = await here.until("demo", lambda seen: seen.revision == 2 and seen.phase is Phase.RUNNING)
        assert again.quick_ends == 1
        assert here.world.containers[workspace_id].ended is None


async def test_three_quick_exits_are_an_error_with_the_reason(database_url: str) -> None:
    async with control_plane(database_url) as here:
        workspace_id = await running(here)
        for revision in (2, 3):
            here.world.containers[workspace_id].ended = ProgramExit(1, "no such file")
            await here.until("demo", lambda seen, at=revision: seen.revision == at and seen.phase is Phase.RUNNING)  # type: ignore[misc]
        here.world.containers[workspace_id].ended = ProgramExit(1, "no such file")
        broken = await here.until_phase("demo", Phase.ERROR)
        assert broken.error is not None
        assert broken.error.reason is Reason.ACTION_FAILED
        assert broken.error.context["exit_code"] == 1
        assert broken.error.context["last_lines"] == "no such file"

        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        assert (await here.until_phase("demo", Phase.RUNNING)).quick_ends == 0


async def test_a_missing_volume_is_data_lost_and_never_an_empty_home(database_url: str) -> None:
    async with control_plane(database_url) as here:
        workspace_id = await asleep(here)
        kept = here.world.volumes.pop(Home(workspace_id, 1))
        lost = await here.until_phase("demo", Phase.ERROR)
        assert lost.error is not None
        assert lost.error.reason is Reason.DATA_LOST

        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        await asyncio.sleep(0.6)
        assert (await here.show("demo")).phase is Phase.ERROR
        assert not here.world.volumes

        here.world.volumes[Home(workspace_id, 1)] = kept
        await here.until_phase("demo", Phase.RUNNING)


async def test_a_volume_that_disappears_when_its_workspace_becomes_idle_is_noticed(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here:
        pace = here.controller._schedule

        async def step() -> Phase:
            await here.controller.look(await pace.next())
            return (await here.show("demo")).phase

        workspace_id = (await here.wishes.create(here.user, name="demo")).id
        while await step() is not Phase.RUNNING:
            pass
        await here.wishes.wish(here.user, "demo", Wish.STANDBY)
        while await step() is not Phase.STANDBY:
            pass
        # The full pass is due before the pass that would observe it at rest.
        del here.world.volumes[Home(workspace_id, 1)]
        here.controller.hint()
        for _ in range(10):
            if await step() is Phase.ERROR:
                break
        lost = (await here.show("demo")).error
        assert lost is not None
        assert lost.reason is Reason.DATA_LOST


async def test_a_missing_volume_is_not_replaced_by_an_older_archive(database_url: str) -> None:
    async with control_plane(database_url) as here:
        workspace_id = await asleep(here)
        await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
        first = await here.until_phase("demo", Phase.ARCHIVED)
        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        await here.until_phase("demo", Phase.RUNNING)
        here.world.volumes[Home(workspace_id, 2)].files["note"] = b"newer"
        await here.wishes.wish(here.user, "demo", Wish.STANDBY)
        await here.until_phase("demo", Phase.STANDBY)

        del here.world.volumes[Home(workspace_id, 2)]
        await here.until_phase("demo", Phase.ERROR)
        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        await asyncio.sleep(0.6)
        assert (await here.show("demo")).phase is Phase.ERROR

        with pytest.raises(Refused) as refused:
            await here.wishes.recover(here.user, "demo")
        assert refused.value.code == "say_which_way"
        assert first.archive is not None
        assert refused.value.context["archive_keys"] == [str(first.archive.key)]

        await here.wishes.recover(here.user, "demo", archive_key=str(first.archive.key))
        await here.until_phase("demo", Phase.RUNNING)
        assert [volume.files for volume in here.world.volumes.values()] == [{"note": b"hello"}]


@pytest.mark.parametrize("fate", ["lost", "another"])
async def test_a_missing_or_different_archive_is_data_lost_before_a_volume_is_created(database_url: str, fate: str) -> None:
    async with control_plane(database_url) as here:
        await asleep(here)
        await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
        archived = await here.until_phase("demo", Phase.ARCHIVED)
        assert archived.archive is not None
        key = str(archived.archive.key)
        kept = here.world.archives.pop(key)
        if fate == "another":
            here.world.archives[key] = ({}, "another root")
        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        await here.until_phase("demo", Phase.ERROR)
        lost = await here.until("demo", lambda seen: seen.conditions.archive_ready.reason == "Lost")
        assert lost.error is not None
        assert lost.error.reason is Reason.DATA_LOST
        assert lost.error.context["archive_key"] == key
        assert not here.world.volumes

        here.world.archives[key] = kept
        await here.wishes.recover(here.user, "demo", archive_key=key)
        await here.until_phase("demo", Phase.RUNNING)
        assert [volume.files for volume in here.world.volumes.values()] == [{"note": b"hello"}]


async def test_recover_with_an_empty_home(database_url: str) -> None:
    async with control_plane(database_url) as here:
        workspace_id = await asleep(here)
        del here.world.volumes[Home(workspace_id, 1)]
        await here.until_phase("demo", Phase.ERROR)
        await here.wishes.recover(here.user, "demo", empty=True)
        recovered = await here.until_phase("demo", Phase.STANDBY)
        assert recovered.generation > 1
        assert [volume.files for volume in here.world.volumes.values()] == [{}]


async def test_archiving_is_cancelled_at_once_by_a_start(database_url: str) -> None:
    async with control_plane(database_url) as here:
        await asleep(here)
        gate = Gate("run_at_home")
        here.world.interfere = gate
        await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
        await gate.reached.wait()

        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        back = await here.until_phase("demo", Phase.RUNNING)
        assert back.generation == 1, "the volume was never touched"
        assert not here.world.archives
        turned = [one for one in (await here.wishes.history(here.user, "demo")).items if one.kind is Operation.ARCHIVING]
        assert [one.outcome for one in turned] == [Outcome.TURNED]


async def test_starting_is_cancelled_by_a_stop_and_the_container_is_removed(database_url: str) -> None:
    async with control_plane(database_url) as here:
        here.world.starts_ready = False
        await here.wishes.create(here.user, name="demo")
        await here.until("demo", lambda seen: seen.operation is Operation.STARTING and seen.container_present)
        await here.wishes.wish(here.user, "demo", Wish.STANDBY)
        await here.until_phase("demo", Phase.STANDBY)
        assert not here.world.containers


async def test_restoring_times_out_and_the_incomplete_home_is_never_started(database_url: str) -> None:
    hasty = replace(FAST, timeouts_s={**FAST.timeouts_s, Operation.RESTORING: 0.3})
    async with control_plane(database_url, tuning=hasty) as here:
        workspace_id = await asleep(here)
        await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
        await here.until_phase("demo", Phase.ARCHIVED)
        gate = Gate("run_at_home")
        here.world.interfere = gate
        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        stuck = await here.until_phase("demo", Phase.ERROR)
        assert stuck.error is not None
        assert stuck.error.reason is Reason.TIMEOUT
        half = Home(workspace_id, stuck.generation)
        assert half not in here.world.volumes, "the canceled attempt discarded it"

        here.world.volumes[half] = FakeVolume({"note": b"hel"}, is_half_made=True)  # as if it had been killed
        gate.verb = "nothing any more"
        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        whole = await here.until_phase("demo", Phase.RUNNING)
        assert whole.generation == stuck.generation + 1
        assert list(here.world.volumes) == [Home(workspace_id, whole.generation)], "the half-made one was discarded"
        assert here.world.volumes[Home(workspace_id, whole.generation)].files == {"note": b"hello"}


async def test_a_workspace_can_be_used_after_archiving_timed_out_with_its_key_stored(database_url: str) -> None:
    hasty = replace(FAST, timeouts_s={**FAST.timeouts_s, Operation.ARCHIVING: 0.3})
    async with control_plane(database_url, tuning=hasty) as here:
        workspace_id = await asleep(here)
        gate = Gate("ensure_no_volume")
        here.world.interfere = gate
        await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
        stuck = await here.until_phase("demo", Phase.ERROR)
        assert stuck.archive is not None
        gate.verb = "nothing any more"

        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        working = await here.until_phase("demo", Phase.RUNNING)
        assert (working.generation, working.revision) == (1, 2)
        assert not working.is_archived, "the archive does not hold the current state"
        here.world.volumes[Home(workspace_id, 1)].files["note"] = b"newer"

        await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
        archived = await here.until_phase("demo", Phase.ARCHIVED)
        assert archived.archive is not None
        assert archived.archive.key != stuck.archive.key
        assert here.world.archives[str(archived.archive.key)][0] == {"note": b"newer"}


async def test_a_late_volume_delete_does_not_delete_a_current_home(database_url: str) -> None:
    """A controller is stopped before its volume delete, and continues after the home was restored or opened again."""
    async with control_plane(database_url) as here:
        workspace_id = await asleep(here)
        await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
        await here.until_phase("demo", Phase.ARCHIVED)
        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        alive = await here.until_phase("demo", Phase.RUNNING)

        late = FakeRuntime(here.world)
        await late.ensure_no_volume(Home(workspace_id, 1), Fence("late", 1), archived_revision=1)
        with pytest.raises(Failed) as reopened:
            await late.ensure_no_volume(Home(workspace_id, alive.generation), Fence("late", 1), archived_revision=1)
        assert reopened.value.code is Code.VOLUME_REOPENED
        assert here.world.volumes[Home(workspace_id, alive.generation)].files == {"note": b"hello"}


async def test_a_deposed_controller_writes_nothing_and_stops(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here:
        await here.wishes.create(here.user, name="demo")
        old = here.controller
        new = await here.successor()
        with pytest.raises(Deposed):
            await old.look()
        assert (await here.show("demo")).operation is Operation.NONE
        await new.look()
        assert (await here.show("demo")).operation is Operation.PROVISIONING


async def test_a_successor_continues_a_restore_in_a_new_generation(database_url: str) -> None:
    async with control_plane(database_url) as here:
        workspace_id = await asleep(here)
        await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
        await here.until_phase("demo", Phase.ARCHIVED)
        gate = Gate("run_at_home")
        here.world.interfere = gate
        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        await gate.reached.wait()
        before = await here.show("demo")

        successor = await here.successor()
        gate.verb = "nothing any more"
        taking_over = asyncio.create_task(successor.run())
        try:
            after = await here.until_phase("demo", Phase.RUNNING)
        finally:
            taking_over.cancel()
            await asyncio.gather(taking_over, return_exceptions=True)
        assert after.generation == before.generation + 1
        gate.opened.set()
        await asyncio.sleep(0.2)
        assert list(here.world.containers) == [workspace_id]
        assert here.world.volumes[Home(workspace_id, after.generation)].files == {"note": b"hello"}
        restoring = [one for one in (await here.wishes.history(here.user, "demo")).items if one.kind is Operation.RESTORING]
        assert [one.outcome for one in restoring] == [Outcome.DONE, Outcome.ABANDONED]


async def test_failures_are_retried_with_backoff_and_then_given_up(database_url: str) -> None:
    async def refuse(verb: str, _workspace_id: str) -> None:
        if verb == "ensure_running":
            raise Failed(Code.CONTAINER_START_FAILED, "no room")

    async with control_plane(database_url) as here:
        here.world.interfere = refuse
        await here.wishes.create(here.user, name="demo")
        broken = await here.until_phase("demo", Phase.ERROR)
        assert broken.error is not None
        assert broken.error.reason is Reason.RETRY_EXCEEDED
        assert broken.error.context["last_reason"] == Reason.ACTION_FAILED
        attempts = [one for one in (await here.wishes.history(here.user, "demo")).items if one.kind is Operation.STARTING]
        assert [one.attempt for one in attempts] == [4, 3, 2, 1]
        assert {one.outcome for one in attempts} == {Outcome.FAILED}


async def test_an_outage_of_the_provider_counts_as_no_failure(database_url: str) -> None:
    hasty = replace(FAST, max_retries=0, timeouts_s={**FAST.timeouts_s, Operation.ARCHIVING: 0.5})
    async with control_plane(database_url, tuning=hasty) as here:
        await asleep(here)

        async def store_out(verb: str, _workspace_id: str) -> None:
            if verb == "run_at_home" and here.world.archives_out:
                raise Unavailable("no route to the store")

        here.world.interfere = store_out
        here.world.archives_out = True
        await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
        await here.until("demo", lambda seen: seen.stage is Stage.BACKOFF)
        await asyncio.sleep(1.2)
        assert (await here.show("demo")).operation is Operation.ARCHIVING
        here.world.archives_out = False
        await here.until_phase("demo", Phase.ARCHIVED)


async def test_an_outage_of_the_runtime_pauses_deadlines_and_loses_nothing(database_url: str) -> None:
    hasty = replace(FAST, timeouts_s={**FAST.timeouts_s, Operation.STARTING: 0.5})
    async with control_plane(database_url, tuning=hasty) as here:
        here.world.starts_ready = False
        created = await here.wishes.create(here.user, name="demo")
        await here.until("demo", lambda seen: seen.stage is Stage.SEE)
        here.world.runtime_out = True
        await asyncio.sleep(1.2)
        here.world.containers[created.id].ready = True
        here.world.runtime_out = False
        await here.until_phase("demo", Phase.RUNNING)


async def test_after_a_failed_pass_the_next_follows_soon(database_url: str) -> None:
    async with control_plane(database_url, intervals=Intervals(idle_s=600, active_s=0.05)) as here:
        await until(lambda: here.controller.tally.looks)
        here.world.runtime_out = True
        await here.wishes.create(here.user, name="demo")
        await until(lambda: loop_statuses()["controller"].failures)
        here.world.runtime_out = False
        await here.until_phase("demo", Phase.RUNNING)


async def test_a_readback_mismatch_archives_again_under_another_name(database_url: str) -> None:
    async with control_plane(database_url) as here:
        await asleep(here)
        failed: list[str] = []

        async def once(verb: str, workspace_id: str) -> None:
            if verb == "run_at_home" and not failed:
                failed.append(workspace_id)
                raise Failed(Code.READBACK_MISMATCH, "the data read back differs")

        here.world.interfere = once
        await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
        await here.until_phase("demo", Phase.ARCHIVED)
        archiving = [one for one in (await here.wishes.history(here.user, "demo")).items if one.kind is Operation.ARCHIVING]
        assert [one.outcome for one in archiving] == [Outcome.DONE, Outcome.FAILED]
        assert archiving[0].op_id != archiving[1].op_id


async def test_a_container_without_volume_is_an_error_and_a_new_request_stops_it(database_url: str) -> None:
    async with control_plane(database_url) as here:
        workspace_id = await running(here)
        kept = here.world.volumes.pop(Home(workspace_id, 1))
        broken = await here.until_phase("demo", Phase.ERROR)
        assert broken.error is not None
        assert broken.error.reason is Reason.CONTAINER_WITHOUT_VOLUME
        assert broken.observed_status == "RUNNING"
        await here.wishes.wish(here.user, "demo", Wish.STANDBY)
        await here.until("demo", lambda _seen: not here.world.containers)
        here.world.volumes[Home(workspace_id, 1)] = kept
        await here.until_phase("demo", Phase.STANDBY)


async def test_delete_keeps_a_last_archive_and_undelete_restores_the_home(database_url: str) -> None:
    async with control_plane(database_url) as here:
        workspace_id = await asleep(here)
        await here.wishes.delete(here.user, "demo")
        await here.until_phase("demo", Phase.DELETED)
        assert not here.world.volumes
        await here.wishes.undelete(here.user, "demo")
        await here.until_phase("demo", Phase.ARCHIVED)
        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        back = await here.until_phase("demo", Phase.RUNNING)
        assert here.world.volumes[Home(workspace_id, back.generation)].files == {"note": b"hello"}


async def test_delete_says_why_it_cannot_archive_and_a_purge_always_finishes(database_url: str) -> None:
    async def no_archive(verb: str, _workspace_id: str) -> None:
        if verb == "run_at_home":
            raise Failed(Code.DISK_FULL, "no space left")

    async with control_plane(database_url) as here:
        await asleep(here)
        here.world.interfere = no_archive
        await here.wishes.delete(here.user, "demo")
        stands = await here.until("demo", lambda seen: seen.error is not None and seen.error.is_terminal)
        assert stands.phase is Phase.DELETING
        assert here.world.volumes, "not deleted without an archive"
        await here.wishes.delete(here.user, "demo", purge=True)
        await here.until("demo", lambda seen: seen.phase is Phase.DELETED)
        assert not here.world.volumes
        assert not here.world.archives


async def test_delete_while_restoring_discards_the_incomplete_volume(database_url: str) -> None:
    async with control_plane(database_url) as here:
        await asleep(here)
        await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
        archived = await here.until_phase("demo", Phase.ARCHIVED)
        gate = Gate("run_at_home")
        here.world.interfere = gate
        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        await gate.reached.wait()
        await here.wishes.delete(here.user, "demo")
        await here.until_phase("demo", Phase.DELETED)
        assert not here.world.volumes
        assert archived.archive is not None
        assert str(archived.archive.key) in here.world.archives


async def test_one_slow_workspace_delays_no_other(database_url: str) -> None:
    async with control_plane(database_url) as here:
        slow = await here.wishes.create(here.user, name="slow", desired_state=Wish.STANDBY)
        await here.until_phase("slow", Phase.STANDBY)
        gate = Gate("ensure_running")

        async def hold_the_slow(verb: str, workspace_id: str) -> None:
            if workspace_id == slow.id:
                await gate(verb, workspace_id)

        here.world.interfere = hold_the_slow
        await here.wishes.wish(here.user, "slow", Wish.RUNNING)
        await gate.reached.wait()
        for number in range(5):
            await running(here, f"quick-{number}")
        assert (await here.show("slow")).operation is Operation.STARTING
        gate.opened.set()
        await here.until_phase("slow", Phase.RUNNING)


async def test_a_pass_without_changes_writes_nothing(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here:
        for number in range(10):
            await here.wishes.create(here.user, name=f"w-{number}")

        async def all_run() -> bool:
            await here.controller.look()
            seen = (await here.wishes.page(here.user)).items
            return {(one.phase, one.operation) for one in seen} == {(Phase.RUNNING, Operation.NONE)}

        await until(all_run)
        written = here.controller.tally.rows_written
        for _ in range(5):
            await here.controller.look()
        assert here.controller.tally.rows_written == written


async def test_a_home_with_an_unreadable_marker_survives_a_delete_but_not_a_purge(database_url: str) -> None:
    async with control_plane(database_url) as here:
        workspace_id = await asleep(here)
        volume = here.world.volumes[Home(workspace_id, 1)]
        volume.is_illegible = True
        await here.wishes.delete(here.user, "demo")
        stands = await here.until("demo", lambda seen: seen.error is not None and seen.error.is_terminal)
        assert stands.phase is Phase.DELETING
        assert volume in here.world.volumes.values(), "I1: a home without an archive is not removed"

        volume.is_illegible = False
        await here.until_phase("demo", Phase.DELETED)
        await here.wishes.undelete(here.user, "demo")
        await here.until_phase("demo", Phase.ARCHIVED)

        await here.wishes.wish(here.user, "demo", Wish.STANDBY)
        again = await here.until_phase("demo", Phase.STANDBY)
        here.world.volumes[Home(workspace_id, again.generation)].is_illegible = True
        await here.wishes.delete(here.user, "demo", purge=True)
        await here.until("demo", lambda seen: seen.phase is Phase.DELETED)
        assert not here.world.volumes


@pytest.mark.parametrize("wish", [Wish.RUNNING, Wish.ARCHIVED])
async def test_an_unreadable_marker_is_reported_and_the_home_can_be_accepted(database_url: str, wish: Wish) -> None:
    async with control_plane(database_url) as here:
        workspace_id = await asleep(here)
        home = Home(workspace_id, 1)
        here.world.volumes[home].is_illegible = True
        broken = await here.until_phase("demo", Phase.ERROR)
        assert broken.error is not None
        assert broken.error.reason is Reason.MARKER_UNREADABLE
        assert "the home exists, but its marker cannot be read: fake:" in broken.error.message
        with pytest.raises(Refused) as refusal:
            await here.wishes.recover(here.user, "demo")
        assert (refusal.value.code, refusal.value.context["can_accept"]) == ("say_which_way", True)
        with pytest.raises(Refused) as refusal:
            await here.wishes.recover(here.user, "demo", empty=True, accept=True)
        assert refusal.value.code == "bad_recovery"

        await here.wishes.wish(here.user, "demo", wish)
        await here.wishes.recover(here.user, "demo", accept=True)
        there = await here.until_phase("demo", Phase(wish.value))
        assert (there.error, there.generation) == (None, 1)
        assert ("mark_volume", workspace_id) in here.world.done[-3:]
        assert (home in here.world.volumes) is (wish is Wish.RUNNING)


async def test_a_home_without_its_metadata_files_is_kept_when_its_owner_recovers_without_it(database_url: str) -> None:
    async with control_plane(database_url) as here:
        workspace_id = await asleep(here)
        await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
        archived = await here.until_phase("demo", Phase.ARCHIVED)
        await here.wishes.wish(here.user, "demo", Wish.STANDBY)
        restored = await here.until_phase("demo", Phase.STANDBY)
        first = Home(workspace_id, restored.generation)
        left = here.world.volumes[first]
        left.files["note"] = b"precious"
        left.lose_small_files()
        await here.until_phase("demo", Phase.ERROR)
        await here.wishes.recover(here.user, "demo", empty=True)
        emptied = await here.until_phase("demo", Phase.STANDBY)
        second = Home(workspace_id, emptied.generation)
        here.world.volumes[second].lose_small_files()
        await here.until_phase("demo", Phase.ERROR)
        assert archived.archive is not None
        await here.wishes.recover(here.user, "demo", archive_key=str(archived.archive.key))
        await here.until_phase("demo", Phase.STANDBY)
        assert first.generation < second.generation < (await here.show("demo")).generation
        assert here.world.volumes[first] is left
        assert left.files["note"] == b"precious"
        assert second in here.world.volumes


async def test_a_missing_or_deleted_home_cannot_be_accepted(database_url: str) -> None:
    async with control_plane(database_url) as here:
        workspace_id = await asleep(here)
        volume = here.world.volumes.pop(Home(workspace_id, 1))
        await here.until_phase("demo", Phase.ERROR)
        with pytest.raises(Refused) as refusal:
            await here.wishes.recover(here.user, "demo", accept=True)
        assert refusal.value.code == "bad_recovery"
        volume.is_illegible = True
        here.world.volumes[Home(workspace_id, 1)] = volume
        unmarked = Reason.MARKER_UNREADABLE
        await here.until("demo", lambda seen: seen.error is not None and seen.error.reason is unmarked)
        await here.wishes.delete(here.user, "demo")
        await here.until("demo", lambda seen: seen.phase is Phase.DELETING and seen.error is not None)
        with pytest.raises(Refused) as refusal:
            await here.wishes.recover(here.user, "demo", accept=True)
        assert refusal.value.code == "is_deleted"
        await here.wishes.undelete(here.user, "demo")
        await here.until_phase("demo", Phase.ERROR)
        await here.wishes.recover(here.user, "demo", accept=True)
        archived = await here.until_phase("demo", Phase.ARCHIVED)
        assert archived.archive is not None
        assert here.world.archives[str(archived.archive.key)][0], "the content of the home is in the archive"


async def test_another_workspaces_home_is_never_accepted(database_url: str) -> None:
    async with control_plane(database_url) as here:
        workspace_id, other = await asleep(here), await asleep(here, "other")
        volume, copied = here.world.volumes[Home(workspace_id, 1)], here.world.volumes[Home(other, 1)]
        volume.files, volume.marker = dict(copied.files), copied.marker
        broken = await here.until_phase("demo", Phase.ERROR)
        assert broken.error is not None
        assert broken.error.reason is Reason.DATA_LOST
        with pytest.raises(Refused) as refusal:
            await here.wishes.recover(here.user, "demo", accept=True)
        assert refusal.value.code == "bad_recovery"
        assert "its marker names another workspace" in refusal.value.message
        with pytest.raises(Refused) as refusal:
            await here.wishes.recover(here.user, "demo")
        assert refusal.value.context["can_accept"] is False
        assert volume.marker == copied.marker

        volume.marker = None  # an administrator confirms that the files belong to this workspace
        unmarked = Reason.MARKER_UNREADABLE
        await here.until("demo", lambda seen: seen.error is not None and seen.error.reason is unmarked)
        await here.wishes.recover(here.user, "demo", accept=True)
        await here.until_phase("demo", Phase.STANDBY)


async def test_the_last_lines_of_a_program_may_contain_any_bytes(database_url: str) -> None:
    async with control_plane(database_url) as here:
        other = await running(here, "innocent")
        workspace_id = await running(here, "evil")
        for revision in (2, 3):
            here.world.containers[workspace_id].ended = ProgramExit(3, "a\0b \udc80")
            await here.until("evil", lambda seen, at=revision: seen.revision == at and seen.phase is Phase.RUNNING)  # type: ignore[misc]
        here.world.containers[workspace_id].ended = ProgramExit(3, "a\0b \udc80")
        broken = await here.until_phase("evil", Phase.ERROR)
        assert broken.error is not None
        assert "a" in broken.error.context["last_lines"]
        here.world.containers[other].ended = ProgramExit(0, "")
        await here.until("innocent", lambda seen: seen.revision == 2 and seen.phase is Phase.RUNNING)


async def test_a_change_that_the_database_refuses_does_not_affect_the_others(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here:
        for name in ("one", "two", "three"):
            await here.wishes.create(here.user, name=name, desired_state=Wish.STANDBY)
        loaded = await here.controller_store.load_due(here.hold())
        changes = [Change(row, replace(row, generation=1)) for row in loaded.workspaces]
        changes[1] = replace(changes[1], after=replace(changes[1].after, generation=-1))
        written = await here.controller_store.persist(changes, life=here.life.life)
        assert written == {changes[0].after.id, changes[2].after.id}


async def test_a_locked_row_does_not_delay_other_workspaces(database_url: str) -> None:
    async with control_plane(database_url) as here:
        held = await here.wishes.create(here.user, name="held", desired_state=Wish.STANDBY)
        await here.until_phase("held", Phase.STANDBY)
        async with here.service.writing() as writing:
            await writing.lock(held.id)
            here.world.volumes[Home(held.id, 1)].marker = None
            here.controller.hint()
            await running(here, "free")
        await here.until("held", lambda seen: seen.phase is Phase.ERROR)


async def test_unknown_volumes_are_not_touched(database_url: str) -> None:
    async with control_plane(database_url) as here:
        here.world.volumes[Home("backup", 1)] = FakeVolume()
        await running(here)
        for _ in range(3):
            here.controller.hint()
            await asyncio.sleep(0.1)
        await here.wishes.wish(here.user, "demo", Wish.STANDBY)
        await here.until_phase("demo", Phase.STANDBY)
        assert Home("backup", 1) in here.world.volumes


async def test_long_effects_do_not_delay_quick_ones(database_url: str) -> None:
    hasty = replace(FAST, timeouts_s={**FAST.timeouts_s, Operation.STARTING: 1.0})
    async with control_plane(database_url, tuning=hasty) as here:
        gate = Gate("run_at_home")
        for number in range(12):
            await here.wishes.create(here.user, name=f"slow-{number}", desired_state=Wish.STANDBY)
        for number in range(12):
            await here.until_phase(f"slow-{number}", Phase.STANDBY)
        here.world.interfere = gate
        for number in range(12):
            await here.wishes.wish(here.user, f"slow-{number}", Wish.ARCHIVED)
        await gate.reached.wait()
        await running(here, "quick")
        gate.opened.set()
        for number in range(12):
            await here.until_phase(f"slow-{number}", Phase.ARCHIVED)


async def test_waiting_for_a_slot_does_not_count_towards_the_deadline(database_url: str) -> None:
    hasty = replace(FAST, timeouts_s={**FAST.timeouts_s, Operation.ARCHIVING: 1.0})
    async with control_plane(database_url, tuning=hasty, parallel=1) as here:
        for name in ("first", "second"):
            await here.wishes.create(here.user, name=name, desired_state=Wish.STANDBY)
            await here.until_phase(name, Phase.STANDBY)

        async def take_your_time(verb: str, _workspace_id: str) -> None:
            if verb == "run_at_home":
                await asyncio.sleep(0.8)

        here.world.interfere = take_your_time
        for name in ("first", "second"):
            await here.wishes.wish(here.user, name, Wish.ARCHIVED)
        for name in ("first", "second"):
            await here.until_phase(name, Phase.ARCHIVED)


async def test_an_effect_that_ends_during_the_observation_is_not_started_again(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here:
        await here.wishes.create(here.user, name="demo", desired_state=Wish.STANDBY)
        calls: list[str] = []

        async def fail(verb: str, _workspace_id: str) -> None:
            calls.append(verb)
            await asyncio.sleep(0.1)
            raise Failed(Code.VOLUME_CREATE_FAILED, "no room")

        here.world.interfere = fail
        await here.controller.look()
        await here.controller.look()
        here.world.observed_slowly_s = 0.3
        await here.controller.look()
        here.world.observed_slowly_s = 0.0
        await here.controller.look()
        failed = await here.show("demo")
        assert calls == ["ensure_volume"]
        assert (failed.stage, failed.error_count) == (Stage.BACKOFF, 1)


async def test_many_concurrent_starts_are_all_answered(database_url: str) -> None:
    async with control_plane(database_url) as here:
        for number in range(20):
            await here.wishes.create(here.user, name=f"w-{number}", desired_state=Wish.STANDBY)
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(here.wishes.wish(here.user, f"w-{number}", Wish.RUNNING) for number in range(20)))
        assert asyncio.get_running_loop().time() - began < 8, "they waited for each other's connections"
        for number in range(20):
            await here.until_phase(f"w-{number}", Phase.RUNNING)


async def test_limits_hold_when_many_start_at_once(database_url: str) -> None:
    async with control_plane(database_url, limits=RunningLimits(per_user=3, overall=100)) as here:
        for number in range(20):
            await here.wishes.create(here.user, name=f"w-{number}", desired_state=Wish.STANDBY)
        wishes = (here.wishes.wish(here.user, f"w-{number}", Wish.RUNNING) for number in range(20))
        answers = await asyncio.gather(*wishes, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, Refused)]
        assert {one.code for one in refused} == {"limit_reached"}
        assert len(answers) - len(refused) == 3


async def test_many_missing_homes_set_the_latch_and_nothing_is_changed(database_url: str) -> None:
    async with control_plane(database_url) as here:
        for number in range(5):
            await asleep(here, f"w-{number}")
        gone = {home: here.world.volumes.pop(home) for home in list(here.world.volumes)[:3]}
        (latch,) = await latched(here)
        assert (latch.provider, latch.expected, latch.missing) == ("fake", 5, 3)
        await here.wishes.wish(here.user, "w-4", Wish.RUNNING)
        await asyncio.sleep(0.8)
        assert {one.phase for one in (await here.wishes.page(here.user)).items} == {Phase.STANDBY}
        assert not here.world.containers

        here.world.volumes |= gone
        await here.until_phase("w-4", Phase.RUNNING)
        assert await here.wishes.latches.all() == []


async def test_after_a_release_of_the_latch_missing_homes_are_errors(database_url: str) -> None:
    async with control_plane(database_url) as here:
        for number in range(4):
            await asleep(here, f"w-{number}")
        for home in list(here.world.volumes)[:3]:
            del here.world.volumes[home]
        await latched(here)
        await here.wishes.latches.release(here.user, "fake")
        await here.until("w-0", lambda seen: seen.phase is Phase.ERROR)
        phases = sorted(one.phase for one in (await here.wishes.page(here.user)).items)
        assert phases.count(Phase.ERROR) == 3
        with pytest.raises(Refused, match="only an administrator"):
            await here.wishes.latches.release(replace(here.user, user=replace(here.user.user, is_admin=False)), "fake")


async def latched(here: ControlPlane) -> Sequence[Latch]:
    return await until(here.wishes.latches.all)
