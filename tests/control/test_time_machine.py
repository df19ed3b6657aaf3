"""The loop replaces a home by an older archive and copies archives, also if a controller ends between any two steps."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.control_plane import ControlPlane, control_plane
from tests.support.gc_stage import RETENTION, GcStage, deleted, gc_stage
from torpor.archives.archives import HomeArchives
from torpor.control.controller import Controller
from torpor.domain.errors import Reason, Refused
from torpor.domain.records import Workspace
from torpor.domain.states import Operation, Phase, Wish
from torpor.testing.fake_runtime import FakeVolume

pytestmark = pytest.mark.anyio


def home(here: ControlPlane, workspace: Workspace) -> FakeVolume:
    (found,) = (volume for place, volume in here.world.volumes.items() if place.workspace_id == workspace.id)
    return found


def archived(here: ControlPlane, workspace: Workspace) -> list[bytes]:
    """The notes in its archives."""
    kept = (files for key, (files, _) in here.world.archives.items() if key.startswith(workspace.id))
    return sorted(files["note"] for files in kept if "note" in files)


async def with_history(here: ControlPlane, name: str, then: Wish = Wish.RUNNING) -> str:
    """The key of the archive with the note "first"; the home has "second", which no archive has."""
    await here.wishes.create(here.user, name=name)
    home(here, await here.until_phase(name, Phase.RUNNING)).files["note"] = b"first"
    await here.wishes.wish(here.user, name, Wish.ARCHIVED)
    first = (await here.until_phase(name, Phase.ARCHIVED)).archive
    await here.wishes.wish(here.user, name, Wish.RUNNING)
    home(here, await here.until_phase(name, Phase.RUNNING)).files["note"] = b"second"
    await here.wishes.wish(here.user, name, then)
    await here.until_phase(name, Phase(then))
    assert first is not None
    return str(first.key)


async def with_histories(here: ControlPlane, count: int) -> dict[str, str]:
    names = [f"demo-{number}" for number in range(count)]
    return dict(zip(names, await asyncio.gather(*(with_history(here, name) for name in names)), strict=True))


async def until_restored(here: ControlPlane, name: str, phase: Phase) -> Workspace:
    return await here.until(
        name, lambda seen: seen.restore is None and seen.phase is phase and seen.operation is Operation.NONE
    )


async def test_a_running_workspace_goes_back_and_forth(database_url: str) -> None:
    async with control_plane(database_url) as here:
        first = await with_history(here, "demo")
        asked = await here.wishes.time_machine.restore(here.user, "demo", first)
        assert asked.restore is not None
        assert asked.desired_state is Wish.RUNNING
        restored = await until_restored(here, "demo", Phase.RUNNING)
        assert home(here, restored).files == {"note": b"first"}
        assert archived(here, restored) == [b"first", b"second"]
        listing = await here.wishes.time_machine.archives(here.user, "demo")
        second, kept_first = (str(one.archive.key) for one in listing.items)
        assert (kept_first, str(restored.archive.key if restored.archive else None)) == (first, first)

        await here.wishes.time_machine.restore(here.user, "demo", second)
        assert home(here, await until_restored(here, "demo", Phase.RUNNING)).files == {"note": b"second"}
        history = (await here.wishes.history(here.user, "demo", limit=4)).items
        assert [attempt.kind for attempt in reversed(history)] == ["STOPPING", "ARCHIVING", "RESTORING", "STARTING"]
        assert history[1].message == f"the archive {second}, as requested"


async def test_an_archived_workspace_at_rest_is_restored_without_another_request(database_url: str) -> None:
    """The row is at its requested state: the open restore alone makes it due."""
    async with control_plane(database_url) as here:
        first = await with_history(here, "demo", Wish.ARCHIVED)
        await here.until("demo", lambda seen: seen.operation is Operation.NONE)
        generation = (await here.show("demo")).generation
        await here.wishes.time_machine.restore(here.user, "demo", first)
        restored = await until_restored(here, "demo", Phase.ARCHIVED)
        assert (str(restored.archive.key if restored.archive else None), restored.generation) == (first, generation + 1)
        assert not here.world.volumes


async def some_passes(here: ControlPlane, count: int) -> None:
    """A controller that ends without notice after so many passes."""
    controller = await here.successor()
    for _ in range(count):
        await controller.look()
    await controller._effects.end_all()


@contextlib.asynccontextmanager
async def successor(here: ControlPlane) -> AsyncIterator[Controller]:
    controller = await here.successor()
    running = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_no_home_is_lost_if_the_controller_ends_after_any_step_of_a_restore(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here:
        async with successor(here):
            keys = await with_histories(here, 16)
        for crash_at, (name, first) in enumerate(keys.items()):
            await here.wishes.time_machine.restore(here.user, name, first)
            await some_passes(here, crash_at)
            async with successor(here):
                restored = await until_restored(here, name, Phase.RUNNING)
            assert home(here, restored).files == {"note": b"first"}, name
            assert archived(here, restored) == [b"first", b"second"], name


async def test_a_cancel_after_any_step_keeps_the_present_home_or_is_refused(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here:
        async with successor(here):
            keys = await with_histories(here, 16)
        notes = set()
        for crash_at, (name, first) in enumerate(keys.items()):
            await here.wishes.time_machine.restore(here.user, name, first)
            await some_passes(here, crash_at)
            if (await here.show(name)).restore is not None:
                await here.wishes.time_machine.cancel_restore(here.user, name)
                note = b"second"
            else:
                with pytest.raises(Refused) as refused:
                    await here.wishes.time_machine.cancel_restore(here.user, name)
                assert refused.value.code == "no_restore"
                note = b"first"
            async with successor(here):
                assert home(here, await until_restored(here, name, Phase.RUNNING)).files == {"note": note}
            notes.add(note)
        assert notes == {b"first", b"second"}


async def test_a_fork_has_the_home_and_settings_of_its_source_and_outlives_it(database_url: str) -> None:
    async with control_plane(database_url) as here:
        first = await with_history(here, "demo")
        await here.wishes.change(here.user, "demo", standby_ttl_s=77, environment={"A": "1"})
        forked = await here.wishes.fork(here.user, "demo", name="copy", archive_key=first)
        assert (forked.workspace.standby_ttl_s, forked.workspace.environment) == (77, {"A": "1"})
        assert len(forked.warnings) == 1
        copy = await here.until_phase("copy", Phase.RUNNING)
        assert home(here, copy).files == {"note": b"first"}
        assert archived(here, copy) == [b"first"]
        await here.wishes.delete(here.user, "demo", purge=True)
        await here.until_phase("demo", Phase.DELETED)
        for key in [key for key in here.world.archives if not key.startswith(copy.id)]:
            del here.world.archives[key]
        for wish in (Wish.ARCHIVED, Wish.RUNNING):
            await here.wishes.wish(here.user, "copy", wish)
            await here.until_phase("copy", Phase(wish))
        assert home(here, await here.show("copy")).files == {"note": b"first"}


async def test_a_fork_is_copied_if_the_controller_ends_after_any_step(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here:
        async with successor(here):
            first = await with_history(here, "demo")
        for crash_at in range(8):
            await here.wishes.fork(here.user, "demo", name=f"copy-{crash_at}", archive_key=first)
            await some_passes(here, crash_at)
            async with successor(here):
                copy = await here.until_phase(f"copy-{crash_at}", Phase.RUNNING)
            assert home(here, copy).files == {"note": b"first"}


async def test_a_fork_of_a_lost_archive_is_an_error_that_says_so(database_url: str) -> None:
    async with control_plane(database_url) as here:
        first = await with_history(here, "demo")
        del here.world.archives[first]
        await here.wishes.fork(here.user, "demo", name="copy", archive_key=first)
        lost = await here.until_phase("copy", Phase.ERROR)
        assert lost.error is not None
        assert (lost.error.reason, first in lost.error.message) == (Reason.DATA_LOST, True)
        await here.wishes.recover(here.user, "copy", empty=True)
        assert home(here, await here.until_phase("copy", Phase.RUNNING)).files == {}


# ── garbage collection ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def stage(database_url: str, tmp_path: Path) -> AsyncIterator[GcStage]:
    async with gc_stage(database_url, HomeArchives(f"file://{tmp_path}")) as made:
        yield made


async def marked(stage: GcStage) -> set[str]:
    return {key for key, (is_marked, _) in (await stage.rows()).items() if is_marked}


async def test_an_archive_that_a_restore_requests_is_kept_until_it_is_cancelled(stage: GcStage) -> None:
    demo = await stage.workspace("demo")
    keys = [await stage.archive(demo, hours=hours) for hours in range(1, RETENTION.keep + 3)]
    await stage.wishes.time_machine.restore(stage.user, "demo", keys[-1])
    await stage.collect()
    assert await marked(stage) == {keys[-2]}
    await stage.wishes.time_machine.cancel_restore(stage.user, "demo")
    await stage.collect()
    assert await marked(stage) == set(keys[-2:])
    for refused_by in (stage.wishes.time_machine.restore(stage.user, "demo", keys[-1]), fork_of(stage, keys[-1])):
        with pytest.raises(Refused) as refused:
            await refused_by
        assert refused.value.code == "archive_collected"


async def fork_of(stage: GcStage, key: str, name: str = "copy") -> str:
    return (await stage.wishes.fork(stage.user, "demo", name=name, archive_key=key)).workspace.id


@pytest.mark.parametrize("purge", [False, True])
async def test_the_source_of_a_fork_is_kept_until_the_copy_exists(stage: GcStage, purge: bool) -> None:
    demo = await stage.workspace("demo")
    keys = [await stage.archive(demo, hours=hours) for hours in (1, 2, 3)]
    fork = await fork_of(stage, keys[2])
    await stage.change(demo, **deleted(days=30), **({"purge": "true"} if purge else {}))
    await stage.collect()
    assert await marked(stage) == set(keys[:2]), "all but the source"
    await stage.grace_passes()
    await stage.collect()
    assert set(await stage.rows()) == {keys[2]}
    copied = f"{fork}/{uuid.uuid4()}"
    await stage.change(fork, archive_key=f"'{copied}'", archive_generation="0", archive_revision="0", archive_root="'root'")
    await stage.collect()
    assert await marked(stage) == {keys[2]}


async def test_a_deleted_fork_gives_its_source_free_and_is_not_undeleted_without_it(stage: GcStage) -> None:
    demo = await stage.workspace("demo")
    keys = [await stage.archive(demo, hours=hours) for hours in (1, 2, 3)]
    fork = await fork_of(stage, keys[2])
    await stage.change(fork, **deleted(hours=1))
    await stage.collect()
    assert await marked(stage) == {keys[2]}
    with pytest.raises(Refused) as refused:
        await stage.wishes.undelete(stage.user, fork)
    assert refused.value.code == "archive_collected"
    stored = {"key": keys[2], "generation": 1, "revision": 0, "manifest_root": "root"}
    await stage.change(demo, recover_request=f"""'{{"wish_version": 1, "archive": {json.dumps(stored)}}}'""")
    await stage.collect()
    assert (await stage.wishes.undelete(stage.user, fork)).desired_state is Wish.ARCHIVED
