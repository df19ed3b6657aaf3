"""The rights of Torpor's role: together they are enough, and each of them is needed."""

import pytest
import structlog

from tests.contracts.runtime_contract import FENCE, unheard
from tests.runtimes.docker.test_jobs import COUNT, RUNS, python_job
from tests.runtimes.kubernetes.cluster_steps import ready, running, world_of
from tests.runtimes.kubernetes.conftest import InstalledCluster, MakeRuntime, Right, rights
from tests.support.kubernetes_cluster import ADDRESS
from tests.support.waiting import until
from torpor.domain.errors import TorporError
from torpor.domain.networks import BLOCKED
from torpor.ports import Fence
from torpor.runtimes.kubernetes.network_policies import NetworkRules
from torpor.runtimes.kubernetes.pods import new_nonce
from torpor.runtimes.kubernetes.runtime import KubernetesRuntime

pytestmark = pytest.mark.anyio

NEWER = Fence("op-2", 2)
NO_CLASS = "no-such-class"


async def life(installed: InstalledCluster, make_runtime: MakeRuntime) -> str:
    """A workspace from its first day to its last, with a change of controllers and a start that waits; its last error."""
    network = NetworkRules(BLOCKED, (), ({"ipBlock": {"cidr": f"{ADDRESS}/32"}},))
    first = make_runtime(network=network)
    await first.start()
    await first.observe()
    home = await ready(first)
    assert await first.run_at_home(home, python_job(COUNT + RUNS), FENCE, unheard) == {"runs": 1}
    await begin(installed, first)
    second = make_runtime(network=network)
    await second.start()
    await second.observe()
    await running(installed, second, home)
    await second.ensure_no_container(home.workspace_id, FENCE)
    await second.ensure_no_volume(home, FENCE, archived_revision=None)
    waits = make_runtime(storage_class=NO_CLASS, start_s=3.0)
    await waits.start()
    with pytest.raises(TorporError) as failure:
        await running(installed, waits)
    return failure.value.message


async def begin(installed: InstalledCluster, runtime: KubernetesRuntime) -> None:
    """A controller is killed before it gives orders to a pod, and the next one continues with it."""
    home = await ready(runtime)
    container = world_of(installed, runtime).serving(home)
    listed, nonce = (await runtime._homes.list()).of(home), new_nonce()
    assert listed.claim is not None
    await runtime._pods.create(home, listed.claim, runtime._pods.wanted(container, listed, 1, nonce), nonce)
    await runtime.ensure_running(container, NEWER, unheard)


async def test_the_role_is_enough(installed: InstalledCluster, make_runtime: MakeRuntime) -> None:
    said = await life(installed, make_runtime)
    assert NO_CLASS in said
    assert "lacks a right" not in said


ONLY_LOGGED = "watch"
"""Without it, a pod that ends is noticed later."""


@pytest.mark.parametrize("lost", [one for one in rights() if one.verb != ONLY_LOGGED], ids=str)
async def test_with_one_right_less_an_error_names_it(
    installed: InstalledCluster, make_runtime: MakeRuntime, lost: Right
) -> None:
    said = ""
    with installed.without(lost):
        try:
            said = await life(installed, make_runtime)
        except TorporError as error:
            said = error.message
    assert f'cannot {lost.verb} resource "{lost.resource}"' in said
    assert "role.yaml" in said, "what to do"


@pytest.mark.parametrize("lost", [one for one in rights() if one.verb == ONLY_LOGGED], ids=str)
async def test_without_the_right_to_watch_the_log_names_it(
    installed: InstalledCluster, make_runtime: MakeRuntime, lost: Right
) -> None:
    with installed.without(lost), structlog.testing.capture_logs() as lines:
        await make_runtime().start()
        await until(lambda: any(line["event"] == "engine_events_lost" for line in lines))
    (why,) = {line["why"] for line in lines if line["event"] == "engine_events_lost"}
    assert f'cannot {lost.verb} resource "{lost.resource}"' in why
    assert "role.yaml" in why, "what to do"
