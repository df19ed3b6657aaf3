"""A controller that is held before any call of a removal, while another opens the home: an opened home survives."""

import asyncio
from collections.abc import Callable

import pytest

from tests.contracts.runtime_contract import a_home, unheard
from tests.runtimes.docker.conftest import MakeRuntime
from tests.runtimes.docker.test_containers import SLEEPING, running_program
from tests.runtimes.docker.test_interrupted_verbs import ensure_volume, mark_volume, names_of, present, seen
from tests.runtimes.docker.test_jobs import files_of
from tests.support.container_engine import ContainerEngine
from tests.support.engine_relay import EngineRelay, engine_relay
from tests.support.waiting import until
from torpor.domain.errors import Code, Failed
from torpor.domain.records import NOTHING_SEEN
from torpor.ports import Fence, Home
from torpor.runtimes.docker.runtime import DockerRuntime

pytestmark = [pytest.mark.anyio, pytest.mark.both_engines, pytest.mark.deep_on_podman]


async def archived(engine: ContainerEngine, runtime: DockerRuntime) -> Home:
    """A home that was not opened yet, with a file."""
    home = a_home()
    for step in (ensure_volume, mark_volume):
        await step(runtime, home, Fence("op", 1))
    file = files_of(engine, home) / "file"
    file.write_text("precious")
    file.chmod(0o644)
    return home


async def open_again(runtime: DockerRuntime, home: Home) -> bool:
    """Whether the next controller starts the workspace; a home that is being removed is not started."""
    try:
        await runtime.ensure_running(running_program(home, *SLEEPING), Fence("op", 2), unheard)
    except Failed as failed:
        if failed.code is not Code.VOLUME_NOT_READY:
            raise
        return False
    return True


def at_call(number: int, relay: EngineRelay) -> Callable[[str], bool]:
    begun = len(relay.requests)
    return lambda _line: len(relay.requests) - begun == number - 1


async def test_a_home_that_another_controller_opened_survives_a_late_removal(
    engine: ContainerEngine, make_runtime: MakeRuntime
) -> None:
    steady = make_runtime()
    await steady.start()
    outcomes: list[bool] = []
    is_complete = False
    while not is_complete:
        home = await archived(engine, steady)
        async with engine_relay(engine.url) as relay:
            held = make_runtime(engine=relay.url)
            await held.start()
            relay.hold(at_call(len(outcomes) + 1, relay))
            removal = asyncio.ensure_future(held.ensure_no_volume(home, Fence("op", 1), archived_revision=0))
            await until(lambda: relay.held or removal.done())  # noqa: B023 - of this round
            is_complete = not relay.held
            is_opened = not is_complete and await open_again(steady, home)
            relay.release()
            (late,) = await asyncio.gather(removal, return_exceptions=True)
            await held.close()
        where = f"held before call {len(outcomes) + 1}, {relay.held}: {late!r}"
        if is_opened:
            assert isinstance(late, Failed), where
            assert await seen(steady, home) == present(home, container=True), where
            assert (await steady.execute(home.workspace_id, ["cat", "file"], b"")).stdout == b"precious", where
            await steady.ensure_no_container(home.workspace_id, Fence("op", 2))
        await steady.ensure_no_volume(home, Fence("op", 3), archived_revision=1)
        assert await seen(steady, home) == NOTHING_SEEN, where
        assert names_of(engine, home) == [0, 0], where
        outcomes.append(is_opened)
    opened = outcomes.index(False)
    assert opened > 1, "the home can be opened before it is marked as going"
    assert len(outcomes) - opened > 2, "and not after that"
    assert not any(outcomes[opened:])
