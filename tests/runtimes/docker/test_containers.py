"""Containers of workspaces on a real Docker engine."""

import asyncio
import json
from dataclasses import replace

import pytest

from tests.contracts.runtime_contract import FENCE, LIMITS, a_home, marker_of, program, unheard
from tests.runtimes.docker.conftest import MakeRuntime
from tests.support.container_engine import ContainerEngine
from tests.support.waiting import until
from torpor.domain.errors import Code, Failed, Refused
from torpor.domain.records import ObservedContainer
from torpor.inside.proof import ProofFailed
from torpor.inside.proven_connection import connect_with_proof
from torpor.ports import Container, Fence, Home
from torpor.runtimes.docker.object_names import holder_name
from torpor.runtimes.docker.runtime import DockerRuntime
from torpor.runtimes.object_labels import container_name, home_name

pytestmark = [pytest.mark.anyio, pytest.mark.both_engines]

SLEEPING = ("sleep", "600")


def running_program(home: Home, *command: str, revision: int = 1) -> Container:
    return Container(home, revision, program(*command), LIMITS)


async def ready(runtime: DockerRuntime) -> Home:
    home = a_home()
    await runtime.ensure_volume(home, FENCE)
    await runtime.mark_volume(home, marker_of(home), FENCE)
    return home


async def started(runtime: DockerRuntime, *command: str, **environment: str) -> Home:
    home = await ready(runtime)
    container = Container(home, 1, program(*(command or SLEEPING), **environment), LIMITS)
    await runtime.ensure_running(container, FENCE, unheard)
    return home


async def seen(runtime: DockerRuntime, home: Home) -> ObservedContainer | None:
    """Without its location."""
    found = (await runtime.observe()).of(home.workspace_id).container
    return replace(found, location=None) if found is not None else None


def inspected(engine: ContainerEngine, home: Home) -> str:
    return engine.docker("inspect", container_name(home.workspace_id))


async def test_another_controller_reaches_a_container_without_being_told(
    make_runtime: MakeRuntime, runtime: DockerRuntime
) -> None:
    home = await started(runtime)
    another = make_runtime()
    await another.start()
    with pytest.raises(Refused):
        await another.execute(home.workspace_id, ["true"], b"")
    assert await seen(another, home) == ObservedContainer(1, 1, ready=False)
    assert (await another.execute(home.workspace_id, ["echo", "here"], b"")).stdout == b"here\n"
    await another.ensure_running(running_program(home, *SLEEPING), Fence("op", 2), unheard)
    assert await seen(runtime, home) == ObservedContainer(1, 1, ready=False), "the takeover changes no revision"
    await another.ensure_no_container(home.workspace_id, Fence("op", 2))
    assert await seen(runtime, home) is None
    assert runtime.address(home.workspace_id) is None


async def test_containers_keep_running_when_torpor_ends(make_runtime: MakeRuntime, runtime: DockerRuntime) -> None:
    home = await started(runtime)
    await runtime.stop_all()
    await runtime.close()
    another = make_runtime()
    await another.start()
    assert await seen(another, home) == ObservedContainer(1, 1, ready=False)


async def test_a_secret_is_not_in_the_configuration_of_the_container(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    home = await started(runtime, PASSWORD="very secret")
    assert (await runtime.execute(home.workspace_id, ["sh", "-c", "echo $PASSWORD"], b"")).stdout == b"very secret\n"
    assert "very secret" not in inspected(engine, home)
    of_agent = await runtime.execute(home.workspace_id, ["cat", "/proc/1/environ"], b"")
    assert b"very secret" not in of_agent.stdout
    assert of_agent.exit_code != 0, "the agent's memory holds the key, so its files in /proc are closed"


async def test_processes_have_no_capabilities_and_get_none(runtime: DockerRuntime) -> None:
    home = await started(runtime)
    status = (await runtime.execute(home.workspace_id, ["cat", "/proc/self/status"], b"")).stdout.decode()
    facts = dict(line.split(":", 1) for line in status.splitlines())
    assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == 0
    assert facts["NoNewPrivs"].strip() == "1"
    assert facts["Seccomp"].strip() == "2"
    assert facts["Uid"].split() == ["1000"] * 4


async def test_torpors_own_files_cannot_be_changed_inside(runtime: DockerRuntime) -> None:
    home = await started(runtime)
    for path in ("/home/.torpor/marker.json", "/home/other", "/opt/torpor/kit.json"):
        assert (await runtime.execute(home.workspace_id, ["sh", "-c", f"echo x > {path}"], b"")).exit_code != 0


@pytest.mark.docker_only  # Podman gives a free address again only after all others of the network
async def test_an_address_of_an_earlier_container_fails(runtime: DockerRuntime) -> None:
    """The engine gives a free address to the next container."""
    one = await started(runtime)
    stale = runtime.address(one.workspace_id)
    assert stale is not None
    await runtime.ensure_no_container(one.workspace_id, FENCE)
    two = await started(runtime)
    address = runtime.address(two.workspace_id)
    assert address is not None
    assert address.host is not None
    assert address.port is not None
    assert address.host == stale.host, "otherwise this test shows nothing"
    with pytest.raises(ProofFailed):
        await connect_with_proof(address.host, address.port, stale.key)
    (await connect_with_proof(address.host, address.port, address.key)).close()


async def test_a_container_that_was_created_too_late_runs_no_program(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    """A controller that is killed, or paused, between the creation and the orders."""
    home = await ready(runtime)
    late = running_program(home, "sh", "-c", "touch ran; sleep 600")
    await runtime._kit.ensure()
    image = await runtime._images.ensure(runtime._options.image, unheard)
    await runtime._containers.create(late, FENCE.epoch, image)
    assert await seen(runtime, home) == ObservedContainer(1, 0, ready=False)
    with pytest.raises(Refused):
        await runtime.execute(home.workspace_id, ["true"], b"")
    before = json.loads(inspected(engine, home))[0]["Id"]
    await runtime.ensure_running(running_program(home, *SLEEPING, revision=2), FENCE, unheard)
    assert json.loads(inspected(engine, home))[0]["Id"] != before
    assert (await runtime.execute(home.workspace_id, ["test", "-e", "ran"], b"")).exit_code == 1


async def test_a_volume_with_another_marker_is_not_started(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    home = await ready(runtime)
    marker = engine.volumes / home_name(home) / "_data" / ".torpor" / "marker.json"
    facts = json.loads(marker.read_text())
    marker.write_text(json.dumps({**facts, "birth": "another"}))
    with pytest.raises(Failed, match="another home") as refusal:
        await runtime.ensure_running(running_program(home, *SLEEPING), FENCE, unheard)
    assert refusal.value.code is Code.VOLUME_NOT_READY
    assert await seen(runtime, home) is None


async def test_an_engine_that_lost_the_home_starts_nothing(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    home = await ready(runtime)
    engine.docker("rm", holder_name(home, 2))
    engine.docker("volume", "rm", home_name(home))
    with pytest.raises(Failed) as refusal:
        await runtime.ensure_running(running_program(home, *SLEEPING), FENCE, unheard)
    assert refusal.value.code is Code.VOLUME_NOT_READY
    assert home_name(home) not in engine.docker("volume", "ls", "--quiet").split(), "no empty home was created"


async def test_an_image_of_a_registry_that_cannot_be_reached_is_named(
    engine: ContainerEngine, make_runtime: MakeRuntime
) -> None:
    runtime = make_runtime(image="127.0.0.1:1/no/such:image")
    await runtime.start()
    home = await ready(runtime)
    with pytest.raises(Failed, match="no/such:image") as refusal:
        await runtime.ensure_running(running_program(home, *SLEEPING), FENCE, unheard)
    assert refusal.value.code is Code.IMAGE_PULL_INTERRUPTED


async def test_packages_of_a_template_are_refused(runtime: DockerRuntime) -> None:
    home = await ready(runtime)
    container = running_program(home, *SLEEPING)
    container = replace(container, program=replace(container.program, packages=("jupyterlab",)))
    with pytest.raises(Failed, match="image") as refusal:
        await runtime.ensure_running(container, FENCE, unheard)
    assert refusal.value.code is Code.PROGRAM_INSTALL_FAILED


async def test_a_program_that_used_too_much_memory_is_said_to_have(runtime: DockerRuntime) -> None:
    home = await ready(runtime)
    code = "held = []\nwhile True: held.append(bytearray(16 << 20))"
    container = replace(running_program(home, "{python}", "-S", "-c", code), limits=replace(LIMITS, memory_bytes=96 << 20))
    await runtime.ensure_running(container, FENCE, unheard)

    found = (await until(lambda: ended_one(runtime, home))).ended
    assert found is not None
    assert (found.exit_code, found.is_stopped_outside) == (137, False)
    assert "memory" in found.last_lines


@pytest.mark.parametrize("how", [("stop", "--time", "20"), ("kill",), ("kill", "--signal", "TERM")], ids=" ".join)
async def test_a_container_that_an_administrator_stops_did_not_end_by_itself(
    engine: ContainerEngine, runtime: DockerRuntime, how: tuple[str, ...]
) -> None:
    home = await started(runtime, "sh", "-c", "echo up; trap 'echo saved; exit 0' TERM; while :; do sleep 0.1; done")
    await until(lambda: said(runtime, home, b"up"))
    engine.docker(*how, container_name(home.workspace_id))
    ended = (await until(lambda: ended_one(runtime, home))).ended
    assert ended is not None
    assert ended.is_stopped_outside
    assert ("saved" in ended.last_lines) == (how != ("kill",)), "a stop leaves time to save"


async def said(runtime: DockerRuntime, home: Home, word: bytes) -> bool:
    return word in b"".join([line async for line in runtime.logs(home.workspace_id, tail=10)])


async def ended_one(runtime: DockerRuntime, home: Home) -> ObservedContainer | None:
    container = await seen(runtime, home)
    return container if container is not None and container.ended is not None else None


async def test_a_flood_of_output_does_not_stop_the_agent(runtime: DockerRuntime) -> None:
    home = await started(runtime, "sh", "-c", "while :; do echo flood; done")
    async with asyncio.timeout(20):
        assert (await runtime.execute(home.workspace_id, ["echo", "here"], b"")).stdout == b"here\n"
        assert [line async for line in runtime.logs(home.workspace_id, tail=2)] == [b"flood\n"] * 2
        await runtime.ensure_no_container(home.workspace_id, FENCE)
    kept = [line async for line in runtime.logs(home.workspace_id, tail=100_000)]
    assert 0 < sum(map(len, kept)) <= 16 << 10


async def test_a_kit_that_was_only_partly_filled_is_filled_again(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    home = await started(runtime)
    await runtime.ensure_no_container(home.workspace_id, FENCE)
    kit = runtime._kit.name
    engine.docker("rm", f"{kit}-holder")
    engine.docker("volume", "rm", kit)
    engine.docker("volume", "create", kit)  # as an engine does when a container refers to it
    with pytest.raises(Failed, match="not Torpor's"):
        await runtime.ensure_running(running_program(home, *SLEEPING), FENCE, unheard)
    engine.docker("volume", "rm", kit)
    await runtime.ensure_running(running_program(home, *SLEEPING), FENCE, unheard)
    assert (await runtime.execute(home.workspace_id, ["true"], b"")).exit_code == 0
