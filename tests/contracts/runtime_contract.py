"""The tests that every runtime passes.

`RuntimeContract` is for every implementation and for the fake; `ProgramContract` for those that really run programs.
A suite does not depend on the implementation: its `World` creates resources and simulates external events.
"""

import asyncio
import contextlib
import socket
import uuid
from abc import ABC, abstractmethod
from dataclasses import replace

import pytest

from tests.support.waiting import until
from torpor.domain.errors import Code, Failed, Refused, Unavailable
from torpor.domain.records import NOTHING_SEEN, FileCount, Marker, Observation, ObservedContainer, ObservedVolume
from torpor.ports import (
    Container,
    Fence,
    Home,
    HomeJob,
    Limits,
    Output,
    Program,
    RunningCommand,
    Runtime,
    Shell,
    Stream,
    TerminalSize,
)

FENCE = Fence("op-1", 1)
LIMITS = Limits(memory_bytes=512 << 20, processes=128)
PATIENCE_S = 20.0


class World(ABC):
    """One implementation without workspaces, with methods to simulate external events."""

    runtime: Runtime
    tells_its_size: tuple[str, ...]
    """A command that writes the rows and columns of its terminal, and again when they change."""

    @abstractmethod
    def serving(self, home: Home, revision: int = 1) -> Container:
        """A container whose program answers on its port and keeps running."""

    @abstractmethod
    def silent(self, home: Home, revision: int = 1) -> Container:
        """A container whose program runs and never listens."""

    @abstractmethod
    def filling(self) -> HomeJob:
        """A job that writes to the home and succeeds with a result."""

    @abstractmethod
    def reading(self) -> HomeJob:
        """A job that reads the home and succeeds with a result."""

    @abstractmethod
    async def end_program(self, workspace_id: str, exit_code: int, said: str) -> None:
        """The program writes some output and ends by itself."""

    @abstractmethod
    async def stop_outside(self, workspace_id: str) -> None:
        """The container is stopped from outside Torpor, by force, while its program runs."""

    @abstractmethod
    async def destroy_volume(self, home: Home) -> None:
        """The volume is removed from outside."""

    @abstractmethod
    async def spoil_marker(self, home: Home) -> None:
        """The volume's marker exists but becomes unreadable."""

    @abstractmethod
    async def lose_marker(self, home: Home) -> None:
        """The volume's marker is removed."""

    @abstractmethod
    async def lose_small_files(self, home: Home) -> None:
        """All files of the volume except the home are removed."""

    @abstractmethod
    async def lose_provider(self) -> None: ...

    @abstractmethod
    async def find_provider_again(self) -> None: ...


# ── helpers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def a_home(generation: int = 1) -> Home:
    return Home(str(uuid.uuid4()), generation)


def marker_of(home: Home, manifest_root: str = "") -> Marker:
    return Marker(home.workspace_id, home.generation, manifest_root)


def unheard(_done: int, _total: int | None, _files: FileCount | None = None) -> None:
    return None


async def ready_volume(world: World, home: Home | None = None, fence: Fence = FENCE) -> Home:
    home = home or a_home()
    await world.runtime.ensure_volume(home, fence)
    await world.runtime.mark_volume(home, marker_of(home), fence)
    return home


async def container_of(world: World, home: Home) -> ObservedContainer | None:
    """Without its location, which only engines have."""
    seen = (await world.runtime.observe()).of(home.workspace_id).container
    return replace(seen, location=None) if seen is not None else None


async def until_ready(world: World, home: Home, within_s: float = 20.0) -> ObservedContainer:
    async def ready_or_ended() -> ObservedContainer | None:
        seen = await container_of(world, home)
        return seen if seen is not None and (seen.ready or seen.ended) else None

    seen = await until(ready_or_ended, within_s=within_s)
    assert seen.ended is None, seen.ended
    return seen


async def until_ended(world: World, home: Home, within_s: float = 20.0) -> ObservedContainer:
    async def ended() -> ObservedContainer | None:
        seen = await container_of(world, home)
        return seen if seen is not None and seen.ended is not None else None

    return await until(ended, within_s=within_s)


async def running(world: World, home: Home | None = None) -> Home:
    home = await ready_volume(world, home)
    await world.runtime.ensure_running(world.serving(home), FENCE, unheard)
    await until_ready(world, home)
    return home


async def until_shown(shell: Shell, wanted: bytes) -> bytes:
    """All its output up to this text."""
    shown = b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while wanted not in shown:
                data = await shell.read()
                assert data, f"it ended, and showed {shown!r}"
                shown += data
    except TimeoutError:
        raise AssertionError(f"it showed {shown!r}, and not {wanted!r}") from None
    return shown


async def gathered(command: RunningCommand) -> tuple[int, bytes, bytes]:
    """The exit code of a command, and all its output."""
    written = dict.fromkeys(Stream, b"")
    async with asyncio.timeout(PATIENCE_S):
        while (output := await command.read()) is not None:
            written[output.stream] += output.data
        code = await command.exit_code()
    await command.close()
    return code, written[Stream.STDOUT], written[Stream.STDERR]


async def until_written(command: RunningCommand, wanted: bytes) -> None:
    written = b""
    async with asyncio.timeout(PATIENCE_S):
        while wanted not in written:
            output = await command.read()
            assert output is not None, f"it ended, and wrote {written!r}"
            written += output.data


# ── every runtime ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.anyio
class HomeContract:
    """What needs no process inside of a workspace: an engine that only keeps objects fulfils it, too."""

    async def test_nothing_is_observed_at_first(self, world: World) -> None:
        assert (await world.runtime.observe()).seen == {}
        assert (await world.runtime.observe()).of("nobody") == NOTHING_SEEN

    async def test_the_runtime_has_a_constant_identity(self, world: World) -> None:
        name = await world.runtime.world()
        assert name.removeprefix(f"{world.runtime.name}:") not in ("", name)
        await ready_volume(world)
        assert await world.runtime.world() == name

    # volumes

    async def test_a_new_volume_is_present_but_not_ready(self, world: World) -> None:
        home = a_home()
        await world.runtime.ensure_volume(home, FENCE)
        seen = (await world.runtime.observe()).of(home.workspace_id)
        assert seen.volumes == {ObservedVolume(1, None)}
        assert seen.container is None

    async def test_marking_a_volume_makes_it_ready_and_can_be_repeated(self, world: World) -> None:
        home = a_home()
        for _ in range(2):
            await world.runtime.ensure_volume(home, FENCE)
            await world.runtime.mark_volume(home, marker_of(home, "root-1"), FENCE)
        assert (await world.runtime.observe()).of(home.workspace_id).volumes == {ObservedVolume(1, marker_of(home, "root-1"))}

    async def test_a_missing_volume_cannot_be_marked(self, world: World) -> None:
        home = a_home()
        with pytest.raises(Failed) as refusal:
            await world.runtime.mark_volume(home, marker_of(home), FENCE)
        assert refusal.value.code is Code.VOLUME_NOT_READY

    async def test_several_generations_of_a_volume_can_exist(self, world: World) -> None:
        home = await ready_volume(world)
        await world.runtime.ensure_volume(Home(home.workspace_id, 2), FENCE)
        assert (await world.runtime.observe()).of(home.workspace_id).volumes == {
            ObservedVolume(1, marker_of(home)),
            ObservedVolume(2, None),
        }
        await world.runtime.ensure_no_volume(home, FENCE, archived_revision=None)
        assert (await world.runtime.observe()).of(home.workspace_id).volumes == {ObservedVolume(2, None)}

    async def test_deleting_a_volume_can_be_repeated(self, world: World) -> None:
        home = await ready_volume(world)
        for _ in range(2):
            await world.runtime.ensure_no_volume(home, FENCE, archived_revision=0)
            assert (await world.runtime.observe()).of(home.workspace_id) == NOTHING_SEEN

    async def test_a_volume_destroyed_from_outside_is_absent(self, world: World) -> None:
        home, other = await ready_volume(world), await ready_volume(world)
        await world.destroy_volume(home)
        survey = await world.runtime.observe()
        assert survey.of(home.workspace_id) == NOTHING_SEEN
        assert survey.of(other.workspace_id).volumes == {ObservedVolume(1, marker_of(other))}

    async def test_observing_some_shows_only_those(self, world: World) -> None:
        home, other = await ready_volume(world), await ready_volume(world)
        survey = await world.runtime.observe(frozenset({home.workspace_id}))
        assert set(survey.seen) == {home.workspace_id}
        assert other.workspace_id not in survey.seen

    async def test_every_call_without_the_provider_is_unavailable(self, world: World) -> None:
        home = await ready_volume(world)
        await world.lose_provider()
        with pytest.raises(Unavailable):
            await world.runtime.observe()
        with pytest.raises(Unavailable):
            await world.runtime.ensure_volume(a_home(), FENCE)
        with pytest.raises(Unavailable):
            await world.runtime.world()
        await world.find_provider_again()
        assert (await world.runtime.observe()).of(home.workspace_id).volumes == {ObservedVolume(1, marker_of(home))}

    async def test_a_complete_volume_is_not_discarded_as_incomplete(self, world: World) -> None:
        home = await ready_volume(world)
        await world.runtime.ensure_no_half_made(home, FENCE)
        assert (await world.runtime.observe()).of(home.workspace_id).volumes == {ObservedVolume(1, marker_of(home))}

    async def test_a_home_that_carries_another_workspaces_marker_is_never_marked(self, world: World) -> None:
        home, other = a_home(), a_home()
        await world.runtime.ensure_volume(home, FENCE)
        await world.runtime.mark_volume(home, marker_of(other), FENCE)
        (volume,) = (await world.runtime.observe()).of(home.workspace_id).volumes
        assert volume == ObservedVolume(1, None, is_illegible=True, has_home=False)
        assert "its marker names another workspace" in volume.fault
        with pytest.raises(Failed) as refusal:
            await world.runtime.mark_volume(home, marker_of(home), FENCE)
        assert refusal.value.code is Code.VOLUME_NOT_READY
        await world.runtime.ensure_no_half_made(home, FENCE)
        assert (await world.runtime.observe()).of(home.workspace_id).volumes == {volume}
        await world.runtime.ensure_no_volume(home, FENCE, archived_revision=None)

    async def test_a_home_with_an_unreadable_marker_can_be_deleted_explicitly(self, world: World) -> None:
        home = await ready_volume(world)
        await world.spoil_marker(home)
        await world.runtime.ensure_no_volume(home, FENCE, archived_revision=None)
        assert (await world.runtime.observe()).of(home.workspace_id) == NOTHING_SEEN

    # refusals

    @pytest.mark.parametrize("present", [True, False], ids=["half-made", "absent"])
    async def test_no_container_starts_on_a_volume_without_its_marker(self, world: World, present: bool) -> None:
        home = a_home()
        if present:
            await world.runtime.ensure_volume(home, FENCE)
        with pytest.raises(Failed) as refusal:
            await world.runtime.ensure_running(world.serving(home), FENCE, unheard)
        assert refusal.value.code is Code.VOLUME_NOT_READY
        assert await container_of(world, home) is None

    async def test_an_admitted_epoch_fences_older_ones(self, world: World) -> None:
        """The first call had no effect, but late calls are still refused."""
        home = await ready_volume(world, fence=Fence("op-1", 1))
        await world.runtime.admit(home.workspace_id, Fence("op-2", 2))
        with pytest.raises(Failed) as refusal:
            await world.runtime.ensure_running(world.serving(home), Fence("op-1", 1), unheard)
        assert refusal.value.code is Code.STALE_EPOCH
        assert refusal.value.context["seen"] == 2
        with pytest.raises(Failed):
            await world.runtime.admit(home.workspace_id, Fence("op-1", 1))

    async def test_the_epoch_of_another_workspace_does_not_matter(self, world: World) -> None:
        await ready_volume(world, fence=Fence("op-9", 9))
        home = await ready_volume(world, fence=Fence("op-1", 1))
        assert (await world.runtime.observe()).of(home.workspace_id).volumes == {ObservedVolume(1, marker_of(home))}

    async def test_no_job_runs_without_a_volume(self, world: World) -> None:
        for job in (world.filling(), world.reading()):
            with pytest.raises(Failed) as refusal:
                await world.runtime.run_at_home(a_home(), job, FENCE, unheard)
            assert refusal.value.code is Code.VOLUME_NOT_READY


class RuntimeContract(HomeContract):
    # homes that were opened

    async def test_discarding_an_incomplete_volume_can_be_repeated(self, world: World) -> None:
        home = a_home()
        await world.runtime.ensure_volume(home, FENCE)
        await world.runtime.run_at_home(home, world.filling(), FENCE, unheard)
        for _ in range(2):
            await world.runtime.ensure_no_half_made(home, FENCE)
            assert (await world.runtime.observe()).of(home.workspace_id) == NOTHING_SEEN

    @pytest.mark.parametrize("is_opened", [True, False], ids=["opened", "never opened"])
    @pytest.mark.parametrize("fate", ["spoil_marker", "lose_marker", "lose_small_files"])
    async def test_a_home_with_an_unreadable_marker_is_kept_until_it_is_marked_again(
        self, world: World, fate: str, is_opened: bool
    ) -> None:
        home = await ready_volume(world)
        if is_opened:
            await world.runtime.ensure_running(world.serving(home), FENCE, unheard)
            await world.runtime.ensure_no_container(home.workspace_id, FENCE)
        await getattr(world, fate)(home)
        await world.runtime.ensure_no_half_made(home, FENCE)
        (volume,) = (await world.runtime.observe()).of(home.workspace_id).volumes
        assert volume == ObservedVolume(1, None, is_illegible=True)
        assert "marker" in volume.fault
        assert volume.home_at
        refused = (
            world.runtime.ensure_running(world.serving(home, 2), FENCE, unheard),
            world.runtime.run_at_home(home, world.reading(), FENCE, unheard),
            world.runtime.run_at_home(home, world.filling(), FENCE, unheard),
        )
        for effect in refused:
            with pytest.raises(Failed) as refusal:
                await effect
            assert refusal.value.code is Code.VOLUME_NOT_READY
        await world.runtime.mark_volume(home, marker_of(home), FENCE)
        assert (await world.runtime.observe()).of(home.workspace_id).volumes == {ObservedVolume(1, marker_of(home))}
        await world.runtime.ensure_running(world.serving(home, 2), FENCE, unheard)

    async def test_a_volume_opened_since_its_archive_is_not_deleted(self, world: World) -> None:
        home = await ready_volume(world)
        await world.runtime.ensure_running(world.serving(home, revision=3), FENCE, unheard)
        await world.runtime.ensure_no_container(home.workspace_id, FENCE)
        with pytest.raises(Failed) as refusal:
            await world.runtime.ensure_no_volume(home, FENCE, archived_revision=2)
        assert refusal.value.code is Code.VOLUME_REOPENED
        assert (await world.runtime.observe()).of(home.workspace_id).volumes == {ObservedVolume(1, marker_of(home))}
        await world.runtime.ensure_no_volume(home, FENCE, archived_revision=3)
        assert (await world.runtime.observe()).of(home.workspace_id) == NOTHING_SEEN

    async def test_a_volume_with_a_container_on_it_is_not_deleted(self, world: World) -> None:
        home = await ready_volume(world)
        await world.runtime.ensure_running(world.serving(home, revision=1), FENCE, unheard)
        with pytest.raises(Failed) as refusal:
            await world.runtime.ensure_no_volume(home, FENCE, archived_revision=9)
        assert refusal.value.code is Code.VOLUME_REOPENED
        assert (await world.runtime.observe()).of(home.workspace_id).volumes == {ObservedVolume(1, marker_of(home))}

    async def test_a_volume_can_be_deleted_explicitly_without_an_archive(self, world: World) -> None:
        home = await ready_volume(world)
        await world.runtime.ensure_running(world.serving(home, revision=3), FENCE, unheard)
        await world.runtime.ensure_no_container(home.workspace_id, FENCE)
        await world.runtime.ensure_no_volume(home, FENCE, archived_revision=None)
        assert (await world.runtime.observe()).of(home.workspace_id) == NOTHING_SEEN

    async def test_an_older_epoch_is_refused_by_every_effect(self, world: World) -> None:
        newer, older = Fence("op-2", 2), Fence("op-1", 1)
        home = await ready_volume(world, fence=newer)
        await world.runtime.ensure_running(world.serving(home), newer, unheard)
        late = (
            world.runtime.ensure_volume(home, older),
            world.runtime.mark_volume(home, marker_of(home, "late"), older),
            world.runtime.run_at_home(home, world.reading(), older, unheard),
            world.runtime.ensure_running(world.serving(home, 9), older, unheard),
            world.runtime.ensure_no_container(home.workspace_id, older),
            world.runtime.ensure_no_volume(home, older, archived_revision=None),
            world.runtime.ensure_no_half_made(home, older),
        )
        for effect in late:
            with pytest.raises(Failed) as refusal:
                await effect
            assert refusal.value.code is Code.STALE_EPOCH
        seen = (await world.runtime.observe()).of(home.workspace_id)
        assert seen.volumes == {ObservedVolume(1, marker_of(home))}
        assert seen.container is not None
        assert seen.container.ended is None

    async def test_an_older_epoch_is_refused_after_a_stop_by_a_newer_one(self, world: World) -> None:
        """The important case is a late start after a stop by a newer controller, which relies on that stop."""
        newer, older = Fence("op-2", 2), Fence("op-1", 1)
        home = await ready_volume(world, fence=older)
        await world.runtime.ensure_running(world.serving(home), older, unheard)
        await world.runtime.ensure_no_container(home.workspace_id, newer)
        late = (
            world.runtime.ensure_running(world.serving(home, 9), older, unheard),
            world.runtime.ensure_no_container(home.workspace_id, older),
            world.runtime.ensure_volume(Home(home.workspace_id, 2), older),
        )
        for effect in late:
            with pytest.raises(Failed) as refusal:
                await effect
            assert refusal.value.code is Code.STALE_EPOCH
        assert (await world.runtime.observe()).of(home.workspace_id) == Observation(
            frozenset({ObservedVolume(1, marker_of(home))}), None
        )

    # jobs

    async def test_an_incomplete_volume_is_filled_and_a_complete_one_is_read(self, world: World) -> None:
        home = a_home()
        await world.runtime.ensure_volume(home, FENCE)
        heard: list[int] = []
        assert await world.runtime.run_at_home(
            home, world.filling(), FENCE, lambda done, _total, _files=None: heard.append(done)
        )
        assert heard
        assert heard == sorted(heard)
        with pytest.raises(Failed) as refusal:
            await world.runtime.run_at_home(home, world.reading(), FENCE, unheard)
        assert refusal.value.code is Code.VOLUME_NOT_READY
        await world.runtime.mark_volume(home, marker_of(home), FENCE)
        assert await world.runtime.run_at_home(home, world.reading(), FENCE, unheard)
        with pytest.raises(Failed) as refusal:
            await world.runtime.run_at_home(home, world.filling(), FENCE, unheard)
        assert refusal.value.code is Code.VOLUME_NOT_READY

    # containers

    async def test_a_container_is_ready_when_its_port_answers(self, world: World) -> None:
        home = await ready_volume(world)
        await world.runtime.ensure_running(world.serving(home, revision=5), FENCE, unheard)
        assert await until_ready(world, home) == ObservedContainer(1, 5, ready=True)

    async def test_a_container_that_does_not_listen_is_present_and_never_ready(self, world: World) -> None:
        home = await ready_volume(world)
        await world.runtime.ensure_running(world.silent(home), FENCE, unheard)
        for _ in range(5):
            assert await container_of(world, home) == ObservedContainer(1, 1, ready=False)
            await asyncio.sleep(0.05)

    async def test_stopping_a_container_can_be_repeated(self, world: World) -> None:
        home = await running(world)
        for _ in range(2):
            await world.runtime.ensure_no_container(home.workspace_id, FENCE)
            seen = (await world.runtime.observe()).of(home.workspace_id)
            assert seen.container is None
            assert seen.volumes == {ObservedVolume(1, marker_of(home))}

    async def test_a_home_is_measured(self, world: World) -> None:
        home = await ready_volume(world)
        empty_bytes = await world.runtime.home_bytes(home)
        assert empty_bytes is not None
        assert await world.runtime.home_bytes(a_home()) is None
        filled = a_home()
        await world.runtime.ensure_volume(filled, FENCE)
        await world.runtime.run_at_home(filled, world.filling(), FENCE, unheard)
        assert (await world.runtime.home_bytes(filled) or 0) >= empty_bytes

    async def test_measuring_a_home_without_the_provider_is_unavailable(self, world: World) -> None:
        home = await ready_volume(world)
        await world.lose_provider()
        with pytest.raises(Unavailable):
            await world.runtime.home_bytes(home)
        await world.find_provider_again()
        assert await world.runtime.home_bytes(home) is not None

    async def test_the_disk_of_the_homes_is_unknown_or_has_free_space_and_a_path(self, world: World) -> None:
        disk = await world.runtime.disk()
        assert disk is None or (disk.free_bytes > 0 and disk.path)

    async def test_work_is_reported_for_running_workspaces_only(self, world: World) -> None:
        home = await running(world)
        work = (await world.runtime.work())[home.workspace_id]
        assert (work.template, work.foregrounds) == (world.serving(home).program.template, ())
        assert work.cpu_s >= 0
        await world.runtime.ensure_no_container(home.workspace_id, FENCE)
        assert home.workspace_id not in await world.runtime.work()

    async def test_usage_is_reported_for_running_workspaces_only(self, world: World) -> None:
        home = await running(world)
        usage = (await world.runtime.usage())[home.workspace_id]
        assert usage.cpu_s >= 0
        assert usage.memory_bytes >= 0
        await world.runtime.ensure_no_container(home.workspace_id, FENCE)
        assert home.workspace_id not in await world.runtime.usage()

    async def test_only_the_workspaces_of_a_controller_are_checked_and_measured(self, world: World) -> None:
        own, other = await running(world), await running(world)
        for found in (await world.runtime.work(own.workspace_id.__eq__), await world.runtime.usage(own.workspace_id.__eq__)):
            assert own.workspace_id in found
            assert other.workspace_id not in found

    async def test_the_exit_code_and_last_lines_of_an_ended_program_are_kept(self, world: World) -> None:
        home = await running(world)
        await world.end_program(home.workspace_id, 3, "goodbye")
        seen = await until_ended(world, home)
        assert seen.ended is not None
        assert not seen.ready
        assert seen.ended.exit_code == 3
        assert "goodbye" in seen.ended.last_lines
        assert not seen.ended.is_stopped_outside

    @pytest.mark.parametrize("exit_code", [137, 143, 255])
    async def test_a_program_that_ends_like_a_stopped_one_still_ended_by_itself(self, world: World, exit_code: int) -> None:
        home = await running(world)
        await world.end_program(home.workspace_id, exit_code, "goodbye")
        ended = (await until_ended(world, home)).ended
        assert ended is not None
        assert (ended.exit_code, ended.is_stopped_outside, ended.last_lines.strip()) == (exit_code, False, "goodbye")

    async def test_a_container_that_was_stopped_outside_is_no_end_of_its_program(self, world: World) -> None:
        home = await running(world)
        await world.stop_outside(home.workspace_id)
        seen = await until_ended(world, home)
        assert not seen.ready
        assert seen.ended is not None
        assert seen.ended.is_stopped_outside
        await world.runtime.ensure_running(world.serving(home, revision=2), FENCE, unheard)
        assert await until_ready(world, home) == ObservedContainer(1, 2, ready=True)

    async def test_an_ended_container_can_be_started_again_or_removed(self, world: World) -> None:
        home = await running(world)
        await world.end_program(home.workspace_id, 3, "goodbye")
        await until_ended(world, home)
        await world.runtime.ensure_running(world.serving(home, revision=2), FENCE, unheard)
        assert await until_ready(world, home) == ObservedContainer(1, 2, ready=True)
        await world.end_program(home.workspace_id, 4, "again")
        await until_ended(world, home)
        await world.runtime.ensure_no_container(home.workspace_id, FENCE)
        assert await container_of(world, home) is None

    async def test_an_ended_container_does_not_prevent_deleting_its_volume(self, world: World) -> None:
        home = await running(world)
        await world.end_program(home.workspace_id, 3, "goodbye")
        await until_ended(world, home)
        await world.runtime.ensure_no_volume(home, FENCE, archived_revision=1)
        assert (await world.runtime.observe()).of(home.workspace_id).volumes == frozenset()

    async def test_workspaces_do_not_affect_each_other(self, world: World) -> None:
        one, two = await asyncio.gather(running(world), running(world))
        await world.runtime.ensure_no_container(one.workspace_id, FENCE)
        await world.runtime.ensure_no_volume(one, FENCE, archived_revision=1)
        assert (await world.runtime.observe()).of(one.workspace_id) == NOTHING_SEEN
        assert await container_of(world, two) == ObservedContainer(1, 1, ready=True)

    async def test_no_command_is_executed_in_a_stopped_workspace(self, world: World) -> None:
        home = await ready_volume(world)
        with pytest.raises(Refused) as refusal:
            await world.runtime.execute(home.workspace_id, ["true"], b"")
        assert refusal.value.code == "not_running"
        assert world.runtime.address(home.workspace_id) is None

    # commands

    async def test_a_command_streams_its_output_and_ends_with_its_code(self, world: World) -> None:
        home = await running(world)
        start = world.runtime.start_command
        assert await gathered(await start(home.workspace_id, ["echo", "good", "bye"])) == (0, b"good bye\n", b"")
        code, stdout, stderr = await gathered(await start(home.workspace_id, ["no-such-program"]))
        assert (code, stdout) == (127, b"")
        assert b"no-such-program" in stderr

    async def test_a_command_reads_its_input_to_the_end(self, world: World) -> None:
        home = await running(world)
        command = await world.runtime.start_command(home.workspace_id, ["cat"])
        for word in (b"one ", b"two"):
            await command.write(word)
            await until_written(command, word)
        await command.end_input()
        assert await gathered(command) == (0, b"", b"")
        async with asyncio.timeout(PATIENCE_S):
            assert await command.read() is None
            await command.write(b"too late" * 100_000)
            await command.send_signal("INT")
            await command.end_input()
        await command.close()

    @pytest.mark.parametrize(("name", "code"), [("INT", 130), ("TERM", 143), ("KILL", 137)])
    async def test_a_signal_ends_a_command_that_neither_reads_nor_is_read(self, world: World, name: str, code: int) -> None:
        home = await running(world)
        command = await world.runtime.start_command(home.workspace_id, ["sleep", "1000"])
        writing = asyncio.ensure_future(command.write(bytes(1 << 20)))
        done, _ = await asyncio.wait([writing], timeout=0.2)
        assert not done, "the command does not read, so the writer waits"
        await command.send_signal(name)
        assert await gathered(command) == (code, b"", b"")
        await asyncio.wait_for(writing, PATIENCE_S)

    async def test_a_command_can_have_a_terminal(self, world: World) -> None:
        home = await running(world)
        command = await world.runtime.start_command(
            home.workspace_id, world.tells_its_size, terminal=TerminalSize(columns=97, rows=31)
        )
        await until_written(command, b"31 97")
        await command.resize(columns=120, rows=40)
        await until_written(command, b"40 120")
        await command.close()

    async def test_a_command_ends_with_its_container(self, world: World) -> None:
        home = await running(world)
        command = await world.runtime.start_command(home.workspace_id, ["sleep", "1000"])
        await world.runtime.ensure_no_container(home.workspace_id, FENCE)
        async with asyncio.timeout(PATIENCE_S):
            assert await command.read() is None
            # Whether the exit code was reported in time depends on which of the two ended first.
            with contextlib.suppress(Refused):
                assert await command.exit_code() != 0
        await command.close()

    async def test_no_command_starts_in_a_stopped_workspace(self, world: World) -> None:
        home = await ready_volume(world)
        with pytest.raises(Refused) as refusal:
            await world.runtime.start_command(home.workspace_id, ["echo"])
        assert refusal.value.code == "not_running"

    async def test_lines_can_be_appended_to_the_log_and_the_next_start_clears_it(self, world: World) -> None:
        home = await running(world)
        workspace_id = home.workspace_id
        await world.runtime.append_log(workspace_id, b"one\ntwo\n")
        assert [line async for line in world.runtime.logs(workspace_id, tail=1)] == [b"two\n"]
        await world.runtime.ensure_no_container(workspace_id, FENCE)
        assert [line async for line in world.runtime.logs(workspace_id, tail=2)] == [b"one\n", b"two\n"]
        await world.runtime.append_log(workspace_id, b"nothing runs here\n")
        assert [line async for line in world.runtime.logs(workspace_id, tail=1)] == [b"two\n"]
        await world.runtime.ensure_running(world.serving(home), FENCE, unheard)
        assert b"two\n" not in [line async for line in world.runtime.logs(workspace_id, tail=10)]

    # shells

    async def test_a_shell_has_a_terminal_of_the_given_size(self, world: World) -> None:
        home = await running(world)
        shell = await world.runtime.shell(home.workspace_id, columns=97, rows=31)
        await shell.write(b"stty size\n")
        await until_shown(shell, b"31 97")
        await shell.resize(columns=120, rows=40)
        await shell.write(b"stty size\n")
        await until_shown(shell, b"40 120")
        await shell.close()

    async def test_a_shell_ends_with_its_exit_code_after_all_its_output(self, world: World) -> None:
        home = await running(world)
        shell = await world.runtime.shell(home.workspace_id, columns=80, rows=24)
        await shell.write(b"echo good; echo bye\nexit 7\n")
        async with asyncio.timeout(PATIENCE_S):
            assert await shell.exit_code() == 7
            shown = b""
            while data := await shell.read():
                shown += data
            assert b"good" in shown
            assert shown.count(b"bye") >= 2, "as it was typed, and as it was said"
            assert await shell.read() == b""
            await shell.write(b"nobody reads this")
            await shell.resize(columns=10, rows=10)
        await shell.close()
        await shell.close()

    async def test_several_shells_are_independent(self, world: World) -> None:
        home = await running(world)
        one, two = [await world.runtime.shell(home.workspace_id, columns=80 + n, rows=24) for n in range(2)]
        await one.close()
        await two.write(b"stty size\n")
        await until_shown(two, b"24 81")
        async with asyncio.timeout(PATIENCE_S):
            while await one.read():
                pass
            with pytest.raises(Refused):
                await one.exit_code()
        await two.close()

    async def test_a_shell_ends_with_its_container(self, world: World) -> None:
        home = await running(world)
        shell = await world.runtime.shell(home.workspace_id, columns=80, rows=24)
        await shell.write(b"stty size\n")
        await until_shown(shell, b"24 80")
        await world.runtime.ensure_no_container(home.workspace_id, FENCE)
        async with asyncio.timeout(PATIENCE_S):
            while await shell.read():
                pass
            # Whether the exit code was reported in time depends on which of the two ended first.
            with contextlib.suppress(Refused):
                assert await shell.exit_code() != 0
        await shell.close()

    async def test_no_shell_starts_in_a_stopped_workspace(self, world: World) -> None:
        home = await ready_volume(world)
        with pytest.raises(Refused) as refusal:
            await world.runtime.shell(home.workspace_id, columns=80, rows=24)
        assert refusal.value.code == "not_running"
        assert world.runtime.address(home.workspace_id, 8000) is None

    async def test_stopping_all_keeps_the_homes(self, world: World) -> None:
        home = await running(world)
        await world.runtime.stop_all()
        seen = (await world.runtime.observe()).of(home.workspace_id)
        assert seen.volumes == {ObservedVolume(1, marker_of(home))}


# ── runtimes that really run programs ─────────────────────────────────────────────────────────────────────────────────


class ProgramWorld(World):
    @abstractmethod
    def running(self, home: Home, command: tuple[str, ...], revision: int = 1, **environment: str) -> Container:
        """A container that runs this command."""

    @abstractmethod
    def python_job(self, code: str, *, writes: bool) -> HomeJob:
        """A job that runs this Python code; `home` is the directory, and `say` writes a line of JSON."""

    @abstractmethod
    def serving_on(self, home: Home, port: int) -> Container:
        """Like `serving`, and this port of its loopback answers as well."""

    @abstractmethod
    async def ask(self, workspace_id: str, sent: bytes, port: int | None = None) -> bytes:
        """The whole answer of the program at its address, or of the server at this port."""


def free_port() -> int:
    """A free port of this machine, since some runtimes share its loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def program(*command: str, **environment: str) -> Program:
    return Program("contract", command, environment)


@pytest.mark.anyio
class ProgramContract:
    async def test_the_program_is_reached_at_its_address(self, world: ProgramWorld) -> None:
        home = await running(world)
        assert await world.ask(home.workspace_id, b"ping") == b"you said ping"
        await world.runtime.ensure_no_container(home.workspace_id, FENCE)
        assert world.runtime.address(home.workspace_id) is None

    async def test_any_port_of_the_workspace_is_reached_and_no_other(self, world: ProgramWorld) -> None:
        port = free_port()
        home, other = await ready_volume(world), await running(world)
        await world.runtime.ensure_running(world.serving_on(home, port), FENCE, unheard)
        await until_ready(world, home)
        for sent in (b"ping", b"pong"):
            assert await world.ask(home.workspace_id, sent, port) == b"you said " + sent
        assert await world.ask(home.workspace_id, b"ping") == b"you said ping"
        assert await world.ask(other.workspace_id, b"ping", port) == b""
        await world.runtime.ensure_no_container(home.workspace_id, FENCE)
        assert world.runtime.address(home.workspace_id, port) is None

    async def test_a_port_without_a_listener_closes_the_connection(self, world: ProgramWorld) -> None:
        home = await running(world)
        assert await world.ask(home.workspace_id, b"ping", free_port()) == b""

    # usage

    async def test_the_memory_and_cpu_time_of_all_processes_are_measured(self, world: ProgramWorld) -> None:
        home = await running(world)
        before = (await world.runtime.usage())[home.workspace_id]
        code = "held = b'x' * (64 << 20)\nfor _ in range(3_000_000): pass\nprint('ready', flush=True)\ninput()"
        command = await world.runtime.start_command(home.workspace_id, ["python3", "-c", code])
        assert (await asyncio.wait_for(command.read(), PATIENCE_S)) == Output(Stream.STDOUT, b"ready\n")
        during = (await world.runtime.usage())[home.workspace_id]
        assert during.memory_bytes - before.memory_bytes > 60 << 20
        assert during.cpu_s > before.cpu_s
        await command.close()

    # shells

    async def test_a_shell_is_a_login_shell_at_home(self, world: ProgramWorld) -> None:
        home = await running(world)
        shell = await world.runtime.shell(home.workspace_id, columns=80, rows=24)
        await shell.write(b'test "$PWD" = "$HOME" && test -t 0 && echo "$0 $TERM ${PORT:-free}" | tr a-z A-Z\n')
        shown = await until_shown(shell, b"XTERM-256COLOR FREE")
        assert b"-BASH" in shown or b"-SH" in shown
        await shell.close()

    async def test_ctrl_c_ends_the_foreground_command_and_not_the_shell(self, world: ProgramWorld) -> None:
        home = await running(world)
        shell = await world.runtime.shell(home.workspace_id, columns=80, rows=24)
        # Written by the program itself, which then has the terminal.
        await shell.write(b"sh -c \"echo be''gun; exec sleep 1000\"\n")
        await until_shown(shell, b"begun")
        await shell.write(b"\x03")
        await until_shown(shell, b"$ ")  # earlier input is discarded, as at any terminal
        await shell.write(b"echo code $?\n")
        await until_shown(shell, b"code 130")
        await shell.write(b"sh -c \"echo be''gun again; exec sleep 1000\"\n")
        await until_shown(shell, b"begun again")
        await shell.write(b"\x1a")
        await until_shown(shell, b"Stopped")
        await shell.close()

    async def test_closing_a_shell_ends_its_foreground_command(self, world: ProgramWorld) -> None:
        home = await running(world)
        shell = await world.runtime.shell(home.workspace_id, columns=80, rows=24)
        await shell.write(b"echo $$ > pid; while :; do date +%s%N > beat; sleep 0.02; done\n")
        execute = world.runtime.execute
        until = ["sh", "-c", "until test -s beat; do sleep 0.01; done"]
        await execute(home.workspace_id, until, b"")
        await shell.close()
        gone = ["sh", "-c", "while kill -0 $(cat pid) 2> /dev/null; do sleep 0.01; done"]
        assert (await asyncio.wait_for(execute(home.workspace_id, gone, b""), PATIENCE_S)).exit_code == 0

    async def test_unread_output_blocks_the_writer(self, world: ProgramWorld) -> None:
        home = await running(world)
        shell = await world.runtime.shell(home.workspace_id, columns=80, rows=24)
        much = 24 << 20  # more than the two ends of a TCP connection buffer
        await shell.write(b"stty -opost; head -c %d /dev/zero | tr '\\0' x; touch written; exit 5\n" % much)
        seen = (await until_shown(shell, b"x" * 100)).count(b"x")
        await asyncio.sleep(0.5)
        look = ["test", "-e", "written"]
        assert (await world.runtime.execute(home.workspace_id, look, b"")).exit_code == 1
        async with asyncio.timeout(PATIENCE_S):
            while data := await shell.read():
                seen += data.count(b"x")
            assert await shell.exit_code() == 5
        assert seen >= much, "all of it, and what was typed"
        assert (await world.runtime.execute(home.workspace_id, look, b"")).exit_code == 0

    async def test_large_input_arrives_completely_and_delays_neither_resize_nor_close(self, world: ProgramWorld) -> None:
        home = await running(world)
        shell = await world.runtime.shell(home.workspace_id, columns=80, rows=24)
        much = bytes(range(256)) * 2000
        await shell.write(b"tty > tty; stty raw -echo; echo re''ady; until test -e go; do sleep 0.01; done; ")
        await shell.write(b"head -c %d > got\n" % len(much))
        await until_shown(shell, b"ready")
        typing = asyncio.ensure_future(shell.write(much))
        await asyncio.sleep(0.2)
        assert not typing.done(), "nobody reads it, so whoever types must wait"
        await shell.resize(columns=33, rows=11)
        seen = ["sh", "-c", 'until test "$(stty size < $(cat tty))" = "11 33"; do sleep 0.01; done']
        assert (await asyncio.wait_for(world.runtime.execute(home.workspace_id, seen, b""), PATIENCE_S)).exit_code == 0
        assert not typing.done()
        await world.runtime.execute(home.workspace_id, ["touch", "go"], b"")
        await asyncio.wait_for(typing, PATIENCE_S)
        whole = f"until test $(stat -c %s got) = {len(much)}; do sleep 0.01; done; cat got"
        assert (await world.runtime.execute(home.workspace_id, ["sh", "-c", whole], b"")).stdout == much
        await shell.write(b"sleep 1000\r")
        waiting = asyncio.ensure_future(shell.write(much))
        await asyncio.sleep(0.1)
        await shell.close()
        await asyncio.wait_for(waiting, PATIENCE_S)
        gone = ["sh", "-c", "while stty size < $(cat tty) 2> /dev/null; do sleep 0.01; done"]
        await asyncio.wait_for(world.runtime.execute(home.workspace_id, gone, b""), PATIENCE_S)

    # commands

    async def test_stdout_and_stderr_of_a_command_are_separate(self, world: ProgramWorld) -> None:
        home = await running(world)
        script = 'test "$PWD" = "$HOME" && test ! -t 0 && echo out && echo err >&2; exit 7'
        command = await world.runtime.start_command(home.workspace_id, ["sh", "-c", script])
        assert await gathered(command) == (7, b"out\n", b"err\n")

    async def test_a_cancelled_close_still_ends_the_command(self, world: ProgramWorld) -> None:
        home = await running(world)
        command = await world.runtime.start_command(home.workspace_id, ["sh", "-c", "echo $$ > pid; echo begun; sleep 1000"])
        await until_written(command, b"begun")
        closing = asyncio.ensure_future(command.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)

        async def is_over() -> bool:
            return (await world.runtime.execute(home.workspace_id, ["sh", "-c", "kill -0 $(cat pid)"], b"")).exit_code != 0

        await until(is_over, within_s=PATIENCE_S)

    async def test_a_command_does_not_inherit_the_pythonpath_of_the_program(self, world: ProgramWorld) -> None:
        home = await ready_volume(world)
        container = world.running(home, ("sleep", "60"), GREETING="hello", PYTHONPATH="/torpor/site")
        await world.runtime.ensure_running(container, FENCE, unheard)
        script = ["sh", "-c", "echo ${PYTHONPATH-none} $GREETING"]
        assert (await world.runtime.execute(home.workspace_id, script, b"")).stdout == b"none hello\n"
        assert (await gathered(await world.runtime.start_command(home.workspace_id, script)))[1] == b"none hello\n"

    async def test_a_command_waits_for_its_reader_and_no_output_is_lost(self, world: ProgramWorld) -> None:
        home = await running(world)
        much = 24 << 20  # more than the two ends of a TCP connection buffer
        script = f"head -c {much} /dev/zero; touch written; echo end >&2; exit 5"
        command = await world.runtime.start_command(home.workspace_id, ["sh", "-c", script])
        await until_written(command, b"\0")
        await asyncio.sleep(0.5)
        look = ["test", "-e", "written"]
        assert (await world.runtime.execute(home.workspace_id, look, b"")).exit_code == 1
        code, stdout, stderr = await gathered(command)
        assert (code, stderr) == (5, b"end\n")
        assert much - (1 << 16) <= len(stdout) < much

    async def test_the_last_output_of_a_command_waits_for_a_slow_reader(self, world: ProgramWorld) -> None:
        home = await running(world)
        script = "head -c 60000 /dev/zero; touch written"
        command = await world.runtime.start_command(home.workspace_id, ["sh", "-c", script])
        until_ended = ["sh", "-c", "until test -e written; do sleep 0.01; done"]
        await world.runtime.execute(home.workspace_id, until_ended, b"")
        assert await command.exit_code() == 0
        assert await gathered(command) == (0, bytes(60000), b"")

    async def test_background_processes_do_not_delay_the_end_of_a_command(self, world: ProgramWorld) -> None:
        home = await running(world)
        script = "sleep 1000 & echo begun"
        command = await world.runtime.start_command(home.workspace_id, ["sh", "-c", script])
        assert await gathered(command) == (0, b"begun\n", b"")

    async def test_a_command_that_is_closed_ends_with_its_process_group(self, world: ProgramWorld) -> None:
        home = await running(world)
        script = "sleep 1000 & echo $$ $! > pids; mv pids begun; wait"
        command = await world.runtime.start_command(home.workspace_id, ["sh", "-c", script])
        execute = world.runtime.execute
        begun = ["sh", "-c", "until test -e begun; do sleep 0.01; done"]
        await asyncio.wait_for(execute(home.workspace_id, begun, b""), PATIENCE_S)
        await command.close()
        gone = ["sh", "-c", "for pid in $(cat begun); do while kill -0 $pid 2> /dev/null; do sleep 0.01; done; done"]
        assert (await asyncio.wait_for(execute(home.workspace_id, gone, b""), PATIENCE_S)).exit_code == 0

    async def test_a_repeated_start_does_not_start_a_second_program(self, world: ProgramWorld) -> None:
        home = await running(world)
        first = await world.runtime.execute(home.workspace_id, ["sh", "-c", "echo one >> starts; echo $PPID"], b"")
        await world.runtime.ensure_running(world.serving(home), FENCE, unheard)
        second = await world.runtime.execute(home.workspace_id, ["sh", "-c", "echo $PPID"], b"")
        assert first.stdout == second.stdout

    async def test_commands_run_in_the_home_with_the_containers_environment(self, world: ProgramWorld) -> None:
        home = await ready_volume(world)
        await world.runtime.ensure_running(world.running(home, ("sleep", "60"), GREETING="hello"), FENCE, unheard)
        command = 'test "$PWD" = "$HOME" && test -n "$PORT" && printf "%s " "$GREETING" && cat && echo oops >&2 && exit 7'
        done = await world.runtime.execute(home.workspace_id, ["sh", "-c", command], b"world")
        assert (done.exit_code, done.stdout, done.stderr) == (7, b"hello world", b"oops\n")

    async def test_the_workspaces_own_variables_replace_those_of_the_template(self, world: ProgramWorld) -> None:
        home = await ready_volume(world)
        container = world.running(home, ("sleep", "60"), GREETING="template", OTHER="kept")
        own = replace(container.program, own_environment={"GREETING": "{home} is no placeholder"})
        await world.runtime.ensure_running(replace(container, program=own), FENCE, unheard)
        asked = await world.runtime.execute(home.workspace_id, ["sh", "-c", 'echo "$GREETING, $OTHER"'], b"")
        assert asked.stdout == b"{home} is no placeholder, kept\n"

    async def test_a_missing_command_exits_with_127(self, world: ProgramWorld) -> None:
        home = await running(world)
        done = await world.runtime.execute(home.workspace_id, ["no-such-program"], b"")
        assert done.exit_code == 127
        assert b"no-such-program" in done.stderr

    async def test_large_input_and_output_pass_through(self, world: ProgramWorld) -> None:
        home = await running(world)
        much = bytes(range(256)) * 4096
        done = await world.runtime.execute(home.workspace_id, ["cat"], much)
        assert done.stdout == much

    async def test_commands_run_concurrently(self, world: ProgramWorld) -> None:
        home = await running(world)
        execute = world.runtime.execute
        waiting = asyncio.ensure_future(
            execute(home.workspace_id, ["sh", "-c", "until test -e flag; do sleep 0.01; done; echo seen"], b"")
        )
        await execute(home.workspace_id, ["touch", "flag"], b"")
        assert (await asyncio.wait_for(waiting, 10)).stdout == b"seen\n"

    async def test_a_cancelled_command_ends(self, world: ProgramWorld) -> None:
        home = await running(world)
        execute = world.runtime.execute
        command = ["sh", "-c", "while :; do date +%s%N > beat; sleep 0.02; done"]
        endless = asyncio.ensure_future(execute(home.workspace_id, command, b""))

        async def has_begun() -> bool:
            return (await execute(home.workspace_id, ["test", "-e", "beat"], b"")).exit_code == 0

        await until(has_begun)
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        await asyncio.sleep(0.2)
        one = await execute(home.workspace_id, ["cat", "beat"], b"")
        await asyncio.sleep(0.2)
        assert (await execute(home.workspace_id, ["cat", "beat"], b"")).stdout == one.stdout

    async def test_the_log_has_the_programs_last_lines(self, world: ProgramWorld) -> None:
        home = await ready_volume(world)
        say = "for n in 1 2 3 4 5; do echo line $n; done; echo trouble >&2; exit 0"
        await world.runtime.ensure_running(world.running(home, ("sh", "-c", say)), FENCE, unheard)
        assert (await until_ended(world, home)).ended is not None
        assert [line async for line in world.runtime.logs(home.workspace_id, tail=2)] == [b"line 5\n", b"trouble\n"]
        await world.runtime.ensure_no_container(home.workspace_id, FENCE)
        assert [line async for line in world.runtime.logs(home.workspace_id, tail=1)] == [b"trouble\n"]

    async def test_the_log_of_an_unknown_workspace_is_empty(self, world: ProgramWorld) -> None:
        assert [line async for line in world.runtime.logs(str(uuid.uuid4()), tail=10)] == []

    async def test_a_program_that_cannot_be_started_is_reported_as_ended(self, world: ProgramWorld) -> None:
        home = await ready_volume(world)
        await world.runtime.ensure_running(world.running(home, ("/no/such/program",)), FENCE, unheard)
        seen = await until_ended(world, home)
        assert seen.ended is not None
        assert seen.ended.exit_code == 127
        assert "/no/such/program" in seen.ended.last_lines

    async def test_a_program_has_time_to_save_before_it_ends(self, world: ProgramWorld) -> None:
        home = await ready_volume(world)
        script = "trap 'sleep 0.2; echo saved > file; exit 0' TERM; touch up; while :; do sleep 0.01; done"
        await world.runtime.ensure_running(world.running(home, ("sh", "-c", script)), FENCE, unheard)
        await world.runtime.execute(home.workspace_id, ["sh", "-c", "until test -e up; do sleep 0.01; done"], b"")
        await world.runtime.ensure_no_container(home.workspace_id, FENCE)
        await world.runtime.ensure_running(world.serving(home, 2), FENCE, unheard)
        await until_ready(world, home)
        assert (await world.runtime.execute(home.workspace_id, ["cat", "file"], b"")).stdout == b"saved\n"

    async def test_progress_and_result_of_a_job_are_returned(self, world: ProgramWorld) -> None:
        home = a_home()
        await world.runtime.ensure_volume(home, FENCE)
        heard: list[tuple[int, int | None, FileCount | None]] = []

        def hear(done: int, total: int | None, files: FileCount | None = None) -> None:
            heard.append((done, total, files))

        code = (
            "say(progress=[1, None]); say(progress=[2, 4]); say(progress=[2, 4], files=[7, 9]); print('noise');"
            " say(result={'size': len(sys.stdin.read())})"
        )
        job = world.python_job(code, writes=True)
        result = await world.runtime.run_at_home(home, job, FENCE, hear)
        assert result == {"size": len(job.stdin)}
        assert heard == [(1, None, None), (2, 4, None), (2, 4, FileCount(7, 9))]

    async def test_a_failed_job_is_reported_with_its_code(self, world: ProgramWorld) -> None:
        home = await ready_volume(world)
        job = world.python_job(
            "say(error={'code': 'CHECKSUM_MISMATCH', 'message': 'bad', 'context': {'path': 'a', 'code': 1}})", writes=False
        )
        with pytest.raises(Failed) as failure:
            await world.runtime.run_at_home(home, job, FENCE, unheard)
        assert failure.value.code is Code.CHECKSUM_MISMATCH
        assert failure.value.context["path"] == "a"

    async def test_a_crashed_job_is_reported_with_exit_code_and_stderr(self, world: ProgramWorld) -> None:
        home = await ready_volume(world)
        job = world.python_job("print('the disk is on fire', file=sys.stderr, flush=True); os._exit(9)", writes=False)
        with pytest.raises(Failed) as failure:
            await world.runtime.run_at_home(home, job, FENCE, unheard)
        assert failure.value.code is Code.INTERNAL
        assert failure.value.context["exit_code"] == 9
        assert "the disk is on fire" in failure.value.message

    async def test_a_cancelled_job_ends_with_all_its_processes(self, world: ProgramWorld) -> None:
        home = await ready_volume(world)
        beat = "while :; do date +%s%N > '{home}/beat'; sleep 0.01; done"
        code = (
            "import subprocess, time\n"
            f"subprocess.Popen(['sh', '-c', {beat!r}.replace('{{home}}', home)], start_new_session=True)\n"
            "while not os.path.exists(home + '/beat'): time.sleep(0.01)\n"
            "say(progress=[1, 1])\n"
            "time.sleep(60)"
        )
        begun = asyncio.Event()
        job = world.python_job(code, writes=False)
        task = asyncio.ensure_future(world.runtime.run_at_home(home, job, FENCE, lambda *_: begun.set()))
        await asyncio.wait_for(begun.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        look = world.python_job("say(result={'beat': open(home + '/beat').read()})", writes=False)
        one = await world.runtime.run_at_home(home, look, FENCE, unheard)
        await asyncio.sleep(0.1)
        assert await world.runtime.run_at_home(home, look, FENCE, unheard) == one
