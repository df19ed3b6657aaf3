"""Homes on a real Docker engine."""

import asyncio
import time

import pytest

from tests.contracts.runtime_contract import FENCE, LIMITS, a_home, marker_of, program, unheard
from tests.runtimes.docker.conftest import MakeRuntime
from tests.support.container_engine import ContainerEngine
from tests.support.waiting import until
from torpor.domain.errors import Code, Failed, Unavailable
from torpor.domain.records import NOTHING_SEEN, Observation, ObservedVolume
from torpor.ports import Container, Fence, Home
from torpor.runtimes.docker.object_names import holder_name, identity_holder_name, record_name
from torpor.runtimes.docker.runtime import DockerRuntime
from torpor.runtimes.object_labels import container_name, home_name

pytestmark = [pytest.mark.anyio, pytest.mark.both_engines]


async def seen(runtime: DockerRuntime, home: Home) -> Observation:
    return (await runtime.observe()).of(home.workspace_id)


async def ready(runtime: DockerRuntime, home: Home | None = None, fence: Fence = FENCE) -> Home:
    home = home or a_home()
    await runtime.ensure_volume(home, fence)
    await runtime.mark_volume(home, marker_of(home, "root"), fence)
    return home


def volumes_of(engine: ContainerEngine, home: Home) -> set[str]:
    return set(engine.docker("volume", "ls", "--quiet", "--filter", f"name={home.workspace_id}").split())


def containers_of(engine: ContainerEngine, home: Home) -> set[str]:
    return set(engine.docker("ps", "--all", "--filter", f"name={home.workspace_id}", "--format", "{{.Names}}").split())


async def test_a_home_is_made_marked_and_removed(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    home = a_home()
    for _ in range(2):
        await runtime.ensure_volume(home, FENCE)
        assert (await seen(runtime, home)).volumes == {ObservedVolume(1, None)}
    for _ in range(2):
        await runtime.mark_volume(home, marker_of(home, "root"), FENCE)
        assert (await seen(runtime, home)).volumes == {ObservedVolume(1, marker_of(home, "root"))}
    assert volumes_of(engine, home) == {home_name(home), record_name(home, 2)}
    assert containers_of(engine, home) == {holder_name(home, 2)}
    for _ in range(2):
        await runtime.ensure_no_volume(home, FENCE, archived_revision=0)
        assert await seen(runtime, home) == NOTHING_SEEN
    assert volumes_of(engine, home) == set()
    assert containers_of(engine, home) == set()


async def test_no_prune_removes_a_home(engine: ContainerEngine, runtime: DockerRuntime, installation: str) -> None:
    """Of a running or a stopped workspace."""
    home, awake = await ready(runtime), await ready(runtime)
    await runtime.ensure_running(Container(awake, 1, program("sleep", "600"), LIMITS), FENCE, unheard)
    await runtime.execute(awake.workspace_id, ["sh", "-c", "echo precious > file"], b"")
    holders = {holder_name(home, 2), holder_name(awake, 3), identity_holder_name(installation)}
    for _ in range(2):  # the second time with holders that were created again
        engine.prune()
        for one in (home, awake):
            assert (await seen(runtime, one)).volumes == {ObservedVolume(1, marker_of(one, "root"))}
        await until(lambda: holders <= set(engine.docker("ps", "--all", "--format", "{{.Names}}").split()))
    assert containers_of(engine, home) == {holder_name(home, 2)}
    assert (await runtime.execute(awake.workspace_id, ["cat", "file"], b"")).stdout == b"precious\n"
    with pytest.raises(AssertionError, match=r"volume is in use|volume is being used"):
        engine.docker("volume", "rm", "--force", home_name(home))


async def test_a_holder_that_was_pruned_is_created_again(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    home = await ready(runtime)
    engine.docker("rm", holder_name(home, 2))
    assert (await seen(runtime, home)).volumes == {ObservedVolume(1, marker_of(home, "root"))}
    await until(lambda: containers_of(engine, home) == {holder_name(home, 2)})


async def test_a_home_that_was_removed_by_hand_is_absent_and_not_replaced(
    engine: ContainerEngine, runtime: DockerRuntime
) -> None:
    home = await ready(runtime)
    engine.docker("rm", holder_name(home, 2))
    engine.docker("volume", "rm", home_name(home))
    assert await seen(runtime, home) == NOTHING_SEEN
    with pytest.raises(Failed) as refusal:
        await runtime.ensure_volume(home, FENCE)
    assert refusal.value.code is Code.VOLUME_CREATE_FAILED
    engine.docker("volume", "create", home_name(home))  # as an engine does when a container refers to it
    assert await seen(runtime, home) == NOTHING_SEEN


async def test_a_holder_that_comes_too_late_leaves_no_empty_volume(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    """Another controller removes the home after this one has listed it. The engine then creates an empty volume."""
    home, other = await ready(runtime), await ready(runtime)
    engine.docker("rm", holder_name(home, 2))
    found = await runtime._homes.list()
    assert found.of(home).lacks_holder
    engine.docker("volume", "rm", home_name(home), record_name(home, 2))
    similar = f"{home_name(home)}2"
    engine.docker("volume", "create", similar)  # of a user
    assert (await runtime._homes.hold(found.of(home), found)).of(home).birth == ""
    assert volumes_of(engine, home) == {similar}
    assert containers_of(engine, home) == set()
    assert (await seen(runtime, other)).volumes == {ObservedVolume(1, marker_of(other, "root"))}


async def test_the_removal_of_a_missing_volume_removes_no_other(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    """On Podman a part of a name is enough to name a volume."""
    home = a_home()
    for similar in ([f"{home_name(home)}2"], [f"{home_name(home)}2", record_name(home, 1)]):
        for name in similar:
            engine.docker("volume", "create", name)
        await runtime._engine.remove_volume(home_name(home))
        assert volumes_of(engine, home) == set(similar)
    engine.docker("volume", "rm", *similar)


async def test_a_volume_of_another_program_is_not_used(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    home = a_home()
    engine.docker("volume", "create", home_name(home))
    with pytest.raises(Failed, match="is not Torpor's") as refusal:
        await runtime.ensure_volume(home, FENCE)
    assert refusal.value.code is Code.VOLUME_CREATE_FAILED
    assert volumes_of(engine, home) == {home_name(home)}
    assert await seen(runtime, home) == NOTHING_SEEN


@pytest.mark.parametrize("_round", range(10))
async def test_many_controllers_change_a_record_and_one_wins_each_time(
    engine: ContainerEngine, make_runtime: MakeRuntime, runtime: DockerRuntime, _round: int
) -> None:
    home = a_home()
    controllers = [runtime, *(make_runtime() for _ in range(3))]
    await asyncio.gather(*(one.start() for one in controllers))
    await asyncio.gather(*(one.ensure_volume(home, FENCE) for one in controllers))
    assert (await seen(runtime, home)).volumes == {ObservedVolume(1, None)}
    births = {engine.labels_of(name)["torpor.birth"] for name in volumes_of(engine, home)}
    assert len(births) == 1
    outcomes = await asyncio.gather(
        *(one.admit(home.workspace_id, Fence("op", epoch)) for epoch, one in enumerate(controllers, 2)), return_exceptions=True
    )
    refused = [one for one in outcomes if isinstance(one, Failed)]
    assert all(one.code is Code.STALE_EPOCH for one in refused)
    assert outcomes[-1] is None, "no other has a newer epoch"
    (record,) = volumes_of(engine, home) - {home_name(home)}
    assert engine.labels_of(record)["torpor.epoch"] == "5"
    for late in controllers[:-1]:
        with pytest.raises(Failed) as refusal:
            await late.mark_volume(home, marker_of(home), Fence("op", 4))
        assert refusal.value.code is Code.STALE_EPOCH


async def test_a_controller_that_restarts_knows_the_epoch(make_runtime: MakeRuntime, runtime: DockerRuntime) -> None:
    home = await ready(runtime, fence=Fence("op", 7))
    another = make_runtime()
    await another.start()
    with pytest.raises(Failed) as refusal:
        await another.ensure_no_volume(home, Fence("op", 6), archived_revision=None)
    assert refusal.value.context["seen"] == 7
    assert await another.world() == await runtime.world()


async def test_another_data_directory_says_nothing(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    home = await ready(runtime)
    identity = (await runtime.world()).removeprefix("docker:")
    name = f"{engine.labels_of(home_name(home))['torpor.installation']}-identity"
    labels = engine.labels_of(name)
    assert labels["torpor.identity"] == identity
    engine.docker("rm", f"{name}-holder")
    engine.docker("volume", "rm", name)
    for effect in (runtime.observe(), runtime.world(), runtime.ensure_volume(a_home(), FENCE)):
        with pytest.raises(Unavailable, match="another engine"):
            await effect
    given = [word for label, value in labels.items() for word in ("--label", f"{label}={value}")]
    engine.docker("volume", "create", *given, name)
    assert (await seen(runtime, home)).volumes == {ObservedVolume(1, marker_of(home, "root"))}


async def test_homes_without_the_identity_volume_are_not_adopted(
    engine: ContainerEngine, make_runtime: MakeRuntime, runtime: DockerRuntime
) -> None:
    home = await ready(runtime)
    name = f"{engine.labels_of(home_name(home))['torpor.installation']}-identity"
    engine.docker("rm", f"{name}-holder")
    engine.docker("volume", "rm", name)
    another = make_runtime()
    await another.start()
    with pytest.raises(Unavailable, match="is missing"):
        await another.world()


async def test_an_interrupted_removal_goes_on(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    home = await ready(runtime)
    labels = {**engine.labels_of(record_name(home, 2)), "torpor.state": "going", "torpor.nonce": "another"}
    given = [word for label, value in labels.items() for word in ("--label", f"{label}={value}")]
    engine.docker("volume", "create", *given, record_name(home, 3))
    assert (await seen(runtime, home)).volumes == {ObservedVolume(1, None)}
    with pytest.raises(Failed):
        await runtime.ensure_volume(home, FENCE)
    engine.docker("rm", "--force", *containers_of(engine, home))
    engine.docker("volume", "rm", home_name(home))
    assert (await seen(runtime, home)).volumes == {ObservedVolume(1, None)}, "it has to be removed to the end"
    await runtime.ensure_no_half_made(home, FENCE)
    assert await seen(runtime, home) == NOTHING_SEEN
    assert volumes_of(engine, home) == set()


async def test_the_files_of_a_new_home_belong_to_its_user(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    home = await ready(runtime)
    folder = engine.volumes / home_name(home) / "_data"
    found = {path.name: (path.stat().st_uid, oct(path.stat().st_mode & 0o777)) for path in folder.iterdir()}
    assert found == {"workspace": (1000, "0o700"), ".torpor": (0, "0o755")}
    assert {path.name: path.stat().st_uid for path in (folder / ".torpor").iterdir()} == {
        "birth": 0,
        "marker.json": 0,
        "cache": 1000,
    }
    assert '"manifest_root": "root"' in (folder / ".torpor" / "marker.json").read_text()


async def test_an_engine_that_does_not_answer_is_unavailable(make_runtime: MakeRuntime, engine: ContainerEngine) -> None:
    runtime = make_runtime()
    hidden = engine.folder / "hidden.sock"
    engine.socket.rename(hidden)
    try:
        await runtime.start()
        begun = time.monotonic()
        with pytest.raises(Unavailable, match="cannot be reached"):
            await runtime.world()
        assert time.monotonic() - begun < 5
    finally:
        hidden.rename(engine.socket)
    assert (await runtime.world()).startswith("docker:")


async def test_containers_of_other_programs_are_ignored(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    home = await ready(runtime)
    engine.docker("create", "--name", container_name(home.workspace_id), "torpor-empty:1", "never")
    assert (await seen(runtime, home)).container is None
