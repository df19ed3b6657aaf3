"""The Kubernetes runtime and an API server without nodes: homes, rights and pods as they are created."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.contracts.runtime_contract import FENCE, HomeContract, ProgramWorld, a_home, marker_of, unheard
from tests.runtimes.docker.test_jobs import python_job
from tests.runtimes.kubernetes.cluster_steps import pod_of, ready, secrets_of, world_of
from tests.runtimes.kubernetes.conftest import NAMESPACE, InstalledCluster, MakeRuntime, installed_api_server
from tests.runtimes.kubernetes.test_kubernetes_contract import OnKubernetes
from tests.support.waiting import until
from torpor.domain.errors import Code, Failed, TorporError, Unavailable
from torpor.domain.records import ObservedVolume
from torpor.ports import Fence, Home
from torpor.runtimes.kubernetes.runtime import KubernetesRuntime
from torpor.runtimes.object_labels import container_name, home_name

pytestmark = [pytest.mark.anyio, pytest.mark.api_server]

SEEN_S = 60.0
HEARD_S = 3.0
ASK_S = 0.3
"""Between two runs of kubectl."""
CONTROLLERS, ROUNDS = 4, 10


@pytest.fixture(scope="module")
def installed() -> Iterator[InstalledCluster]:
    with installed_api_server() as made:
        yield made


class TestHomes(HomeContract):
    @pytest.fixture
    async def world(self, installed: InstalledCluster, make_runtime: MakeRuntime) -> ProgramWorld:
        runtime = make_runtime()
        await runtime.start()
        return OnKubernetes(installed, runtime)


async def test_of_controllers_that_create_and_mark_a_home_at_once_all_agree(make_runtime: MakeRuntime) -> None:
    controllers = [make_runtime() for _ in range(CONTROLLERS)]
    await asyncio.gather(*(one.start() for one in controllers))
    for _ in range(ROUNDS):
        home = a_home()
        await asyncio.gather(*(one.ensure_volume(home, FENCE) for one in controllers))
        await asyncio.gather(*(one.mark_volume(home, marker_of(home), FENCE) for one in controllers))
        for one in controllers:
            assert (await one.observe()).of(home.workspace_id).volumes == {ObservedVolume(1, marker_of(home))}


async def test_a_list_that_needs_several_answers_is_whole(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(page=2)
    await runtime.start()
    homes = [await ready(runtime) for _ in range(5)]
    assert (await runtime.observe()).seen.keys() == {home.workspace_id for home in homes}


async def test_a_controller_that_was_replaced_cannot_remove_a_home(
    installed: InstalledCluster, make_runtime: MakeRuntime, runtime: KubernetesRuntime
) -> None:
    home = await ready(runtime)
    newer = make_runtime()
    await newer.start()
    await newer.admit(home.workspace_id, Fence("op-2", 2))
    with pytest.raises(Failed) as refusal:
        await runtime.ensure_no_volume(home, FENCE, archived_revision=None)
    assert refusal.value.code is Code.STALE_EPOCH
    assert "deletionTimestamp" not in installed.get("pvc", home_name(home))["metadata"]


async def test_a_claim_deleted_by_hand_is_kept_and_reported(installed: InstalledCluster, runtime: KubernetesRuntime) -> None:
    home = await ready(runtime)
    installed.kubectl("delete", "pvc", home_name(home), "--wait=false")
    (volume,) = (await runtime.observe()).of(home.workspace_id).volumes
    assert volume.is_illegible
    assert "deleted" in volume.fault
    assert installed.exists("pvc", home_name(home))
    await runtime.ensure_no_volume(home, FENCE, archived_revision=None)
    assert not installed.exists("pvc", home_name(home))


async def test_the_api_server_restarts_and_nothing_has_changed(installed: InstalledCluster, runtime: KubernetesRuntime) -> None:
    home = await ready(runtime)
    before, server = await runtime.observe(), installed.cluster.control.components["kube-apiserver"]
    server.stop()
    try:
        with pytest.raises(Unavailable) as out:
            await runtime.observe()
        assert "check its address" in out.value.message
    finally:
        server.start()
        await asyncio.to_thread(installed.cluster.control.wait)

    async def same_as_before() -> bool:
        with contextlib.suppress(Unavailable):  # it is ready before it knows all roles
            return await runtime.observe() == before
        return False

    await until(same_as_before, within_s=SEEN_S)
    await runtime.ensure_no_volume(home, FENCE, archived_revision=None)


# ── pods ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def begun(installed: InstalledCluster, runtime: KubernetesRuntime, home: Home) -> AsyncIterator[dict[str, Any]]:
    """The pod of a start, which waits for ever: there is no node."""
    starting = asyncio.ensure_future(runtime.ensure_running(world_of(installed, runtime).serving(home), FENCE, unheard))
    try:
        yield await until(lambda: asyncio.to_thread(pod_of, installed, home), within_s=SEEN_S, every_s=ASK_S)
    finally:
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError, Failed):
            await starting


async def test_a_restricted_namespace_accepts_pods_of_workspaces(
    installed: InstalledCluster, runtime: KubernetesRuntime
) -> None:
    home = await ready(runtime)
    async with begun(installed, runtime, home) as pod:
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["enableServiceLinks"] is False
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert len(secrets_of(installed, home)) == 1
        seen = (await runtime.observe()).of(home.workspace_id)
        assert seen.volumes == {ObservedVolume(1, marker_of(home))}
        assert seen.container is not None
        assert not seen.container.ready
    # A pod without a node is deleted at once.
    assert (pod_of(installed, home), secrets_of(installed, home)) == (None, [])


async def test_a_restricted_namespace_accepts_pods_of_jobs(installed: InstalledCluster, runtime: KubernetesRuntime) -> None:
    home = await ready(runtime)
    working = asyncio.ensure_future(runtime.run_at_home(home, python_job("say(result={})"), FENCE, unheard))
    selector = f"torpor.kind=job,torpor.workspace={home.workspace_id}"

    async def pods() -> list[dict[str, Any]]:
        found = await asyncio.to_thread(installed.get, "pods", "--selector", selector)
        return list(found["items"])

    async def is_removed() -> bool:
        return not await pods()

    jobs = await until(pods, within_s=SEEN_S, every_s=ASK_S)
    assert jobs[0]["spec"]["restartPolicy"] == "Never"
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    await until(is_removed, within_s=SEEN_S, every_s=ASK_S)


async def test_a_start_that_waits_too_long_fails_and_leaves_nothing(
    installed: InstalledCluster, make_runtime: MakeRuntime
) -> None:
    runtime = make_runtime(start_s=1.0)
    await runtime.start()
    home = await ready(runtime)
    with pytest.raises(Failed) as failure:
        await runtime.ensure_running(world_of(installed, runtime).serving(home), FENCE, unheard)
    assert "did not start within 1 s" in failure.value.message
    assert (pod_of(installed, home), secrets_of(installed, home)) == (None, [])


# ── hints ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_pod_that_is_deleted_is_reported_at_once_also_after_a_restart_of_the_api_server(
    installed: InstalledCluster, make_runtime: MakeRuntime
) -> None:
    reported: list[str] = []
    runtime = make_runtime(reported.append)
    await runtime.start()
    server = installed.cluster.control.components["kube-apiserver"]
    for is_restarted in (False, True):
        if is_restarted:
            server.stop()
            server.start()
            await asyncio.to_thread(installed.cluster.control.wait)

        async def is_heard() -> bool:
            """The deletion of a new pod. The first one may come before the watch."""
            home = await ready(runtime)
            async with begun(installed, runtime, home):
                installed.kubectl("delete", "pod", container_name(home.workspace_id), "--wait=false")
                with contextlib.suppress(TimeoutError):
                    await until(lambda: home.workspace_id in reported, within_s=HEARD_S)
            return home.workspace_id in reported

        await until(is_heard, within_s=SEEN_S)


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_namespace_that_does_not_exist_is_named(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(namespace="nowhere")
    await runtime.start()
    with pytest.raises(TorporError) as failure:
        await runtime.observe()
    assert "nowhere" in failure.value.message


async def test_expired_credentials_are_reported_with_what_to_do(installed: InstalledCluster, make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(kubeconfig=installed.with_token("expired"))
    await runtime.start()
    with pytest.raises(Unavailable) as failure:
        await runtime.observe()
    assert "renew the kubeconfig" in failure.value.message


async def test_a_service_account_without_the_role_is_told_which_right_it_lacks(
    installed: InstalledCluster, runtime: KubernetesRuntime
) -> None:
    installed.revoke_role()
    try:
        with pytest.raises(Unavailable) as failure:
            await runtime.observe()
    finally:
        installed.bind_role()
    assert "role.yaml" in failure.value.message
    assert NAMESPACE in failure.value.message
