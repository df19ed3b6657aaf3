"""How many calls to the engine Torpor makes."""

import pytest

from tests.contracts.runtime_contract import FENCE, unheard
from tests.runtimes.docker.conftest import MakeRuntime
from tests.runtimes.docker.test_containers import SLEEPING, ready, running_program
from tests.support.container_engine import ContainerEngine
from tests.support.engine_relay import engine_relay

pytestmark = [pytest.mark.anyio, pytest.mark.both_engines]


async def test_an_observation_makes_two_calls_however_many_workspaces_there_are(
    engine: ContainerEngine, make_runtime: MakeRuntime
) -> None:
    async with engine_relay(engine.url) as relay:
        runtime = make_runtime(engine=relay.url)
        await runtime.start()
        for wanted in (1, 4, 8):
            # One by one: Podman 4.3 sometimes fails to mount the files of several containers at once.
            homes = [await ready(runtime) for _ in range(wanted)]
            for home in homes:
                await runtime.ensure_running(running_program(home, *SLEEPING), FENCE, unheard)
            for only in (None, frozenset({homes[0].workspace_id})):
                before = len(relay.requests)
                await runtime.observe(only)
                assert len(relay.requests) - before == 2, relay.requests[before:]
        await runtime.close()
