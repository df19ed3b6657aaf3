"""A controller that is killed between any two calls to the engine loses nothing, doubles nothing and leaves nothing behind."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from tests.contracts.runtime_contract import a_home, marker_of, unheard
from tests.runtimes.docker.conftest import MakeRuntime
from tests.runtimes.docker.test_containers import SLEEPING, running_program
from tests.runtimes.docker.test_jobs import COUNT, RUNS, python_job
from tests.support.container_engine import ContainerEngine
from tests.support.engine_relay import engine_relay
from tests.support.waiting import until
from torpor.domain.errors import TorporError
from torpor.domain.records import NOTHING_SEEN, Observation, ObservedContainer, ObservedVolume
from torpor.ports import Fence, Home
from torpor.runtimes.docker.runtime import DockerRuntime

pytestmark = [pytest.mark.anyio, pytest.mark.both_engines, pytest.mark.deep_on_podman]

Verb = Callable[[DockerRuntime, Home, Fence], Awaitable[object]]
HALF_MADE = "half-made"


async def ensure_volume(runtime: DockerRuntime, home: Home, fence: Fence) -> None:
    await runtime.ensure_volume(home, fence)


async def mark_volume(runtime: DockerRuntime, home: Home, fence: Fence) -> None:
    await runtime.mark_volume(home, marker_of(home), fence)


async def ensure_running(runtime: DockerRuntime, home: Home, fence: Fence) -> None:
    await runtime.ensure_running(running_program(home, *SLEEPING), fence, unheard)


async def ensure_no_container(runtime: DockerRuntime, home: Home, fence: Fence) -> None:
    await runtime.ensure_no_container(home.workspace_id, fence)


async def ensure_no_volume(runtime: DockerRuntime, home: Home, fence: Fence) -> None:
    await runtime.ensure_no_volume(home, fence, archived_revision=1)


async def purge(runtime: DockerRuntime, home: Home, fence: Fence) -> None:
    await runtime.ensure_no_volume(home, fence, archived_revision=None)


async def ensure_no_half_made(runtime: DockerRuntime, home: Home, fence: Fence) -> None:
    await runtime.ensure_no_half_made(home, fence)


async def admit(runtime: DockerRuntime, home: Home, fence: Fence) -> None:
    await runtime.admit(home.workspace_id, fence)


async def run_at_home(runtime: DockerRuntime, home: Home, fence: Fence) -> None:
    job = python_job(COUNT + RUNS)
    # An interrupted run may have happened; a finished one is not repeated, unless its result was lost.
    assert await runtime.run_at_home(home, job, fence, unheard) in ({"runs": 1}, {"runs": 2})


async def restore(runtime: DockerRuntime, home: Home, fence: Fence) -> None:
    job = python_job("open(home + '/whole', 'w').close(); say(result={'files': os.listdir(home)})", writes=True)
    assert await runtime.run_at_home(home, job, fence, unheard) == {"files": ["whole"]}


async def restart(runtime: DockerRuntime, home: Home, fence: Fence) -> None:
    """After the program of an earlier revision has ended."""
    await runtime.ensure_running(running_program(home, *SLEEPING, revision=2), fence, unheard)


async def ensure_ended(runtime: DockerRuntime, home: Home, fence: Fence) -> None:
    await runtime.ensure_running(running_program(home, "true"), fence, unheard)

    async def has_ended() -> bool:
        container = (await runtime.observe()).of(home.workspace_id).container
        return container is not None and container.ended is not None

    await until(has_ended)


@dataclass(frozen=True)
class Case:
    verb: Verb
    before: tuple[Verb, ...]
    after: Callable[[Home], Observation]


def present(home: Home, *, container: bool = False, is_ready: bool = True, revision: int = 1) -> Observation:
    volume = ObservedVolume(home.generation, marker_of(home) if is_ready else None)
    return Observation(frozenset({volume}), ObservedContainer(home.generation, revision, ready=False) if container else None)


async def seen(runtime: DockerRuntime, home: Home) -> Observation:
    """Without the location of the container."""
    found = (await runtime.observe()).of(home.workspace_id)
    return replace(found, container=replace(found.container, location=None)) if found.container is not None else found


def restarted(home: Home) -> Observation:
    return present(home, container=True, revision=2)


CASES = {
    "ensure_volume": Case(ensure_volume, (), lambda home: present(home, is_ready=False)),
    "mark_volume": Case(mark_volume, (ensure_volume,), present),
    "admit": Case(admit, (ensure_volume, mark_volume), present),
    "run_at_home": Case(run_at_home, (ensure_volume, mark_volume), present),
    "restore": Case(restore, (ensure_volume,), lambda home: present(home, is_ready=False)),
    "ensure_running": Case(ensure_running, (ensure_volume, mark_volume), lambda home: present(home, container=True)),
    "restart": Case(
        restart, (ensure_volume, mark_volume, ensure_ended), lambda home: present(home, container=True, revision=2)
    ),
    "ensure_no_container": Case(ensure_no_container, (ensure_volume, mark_volume, ensure_running), present),
    "ensure_no_volume": Case(ensure_no_volume, (ensure_volume, mark_volume), lambda _home: NOTHING_SEEN),
    "purge": Case(purge, (ensure_volume, mark_volume, ensure_running), lambda _home: NOTHING_SEEN),
    "ensure_no_half_made": Case(ensure_no_half_made, (ensure_volume,), lambda _home: NOTHING_SEEN),
}


def names_of(engine: ContainerEngine, home: Home) -> list[int]:
    """How many containers and volumes there are of this workspace."""
    match = f"name={home.workspace_id}"
    return [
        len(engine.docker("ps", "--all", "--quiet", "--filter", match).split()),
        len(engine.docker("volume", "ls", "--quiet", "--filter", match).split()),
    ]


@pytest.mark.parametrize("answers_last", [True, False], ids=["after the answer", "before the answer"])
@pytest.mark.parametrize("name", CASES)
async def test_an_interrupted_verb_is_completed_by_the_next_controller(
    engine: ContainerEngine, make_runtime: MakeRuntime, name: str, answers_last: bool
) -> None:
    case = CASES[name]
    steady = make_runtime()
    await steady.start()

    async def prepared() -> Home:
        home = a_home()
        for step in case.before:
            await step(steady, home, Fence("op", 1))
        return home

    await case.verb(steady, await prepared(), Fence("op", 2))  # the engine has all that every workspace needs
    async with engine_relay(engine.url) as relay:
        counted = make_runtime(engine=relay.url)
        await counted.start()
        reference = await prepared()
        begun = len(relay.requests)
        await case.verb(counted, reference, Fence("op", 2))
        calls = len(relay.requests) - begun
        assert await seen(steady, reference) == case.after(reference)
        expected = names_of(engine, reference)
    assert calls > 1
    is_complete, point = False, 0
    while not is_complete:
        point += 1
        assert point <= 2 * calls
        home = await prepared()
        async with engine_relay(engine.url) as relay:
            killed = make_runtime(engine=relay.url)
            await killed.start()
            relay.cut_off_after(point, answers_last=answers_last)
            try:
                await case.verb(killed, home, Fence("op", 2))
                is_complete = True
            except TorporError:
                pass
            found = await seen(steady, home)
            where = f"killed at call {point}, {relay.requests[-1]}"
            assert not any(volume.is_illegible for volume in found.volumes), where
            await killed.close()
        await case.verb(steady, home, Fence("op", 3))
        assert await seen(steady, home) == case.after(home), where
        assert names_of(engine, home) == expected, where
