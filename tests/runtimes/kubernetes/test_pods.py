"""Pods of workspaces on a real cluster: what happens to them, and what never happens to a home."""

import asyncio
import json
from dataclasses import replace

import pytest

from tests.contracts.runtime_contract import FENCE, unheard, until_ready
from tests.runtimes.kubernetes.cluster_steps import START_S, files_of, pod_of, ready, running, secrets_of, uid_of, world_of
from tests.runtimes.kubernetes.conftest import NAMESPACE, InstalledCluster, MakeRuntime
from tests.support.waiting import until
from torpor.domain.errors import Code, Failed, Unavailable
from torpor.domain.records import ObservedVolume
from torpor.ports import Fence, Home
from torpor.runtimes.kubernetes.options import PodOptions
from torpor.runtimes.kubernetes.pods import new_nonce
from torpor.runtimes.kubernetes.runtime import KubernetesRuntime
from torpor.runtimes.object_labels import container_name, home_name

pytestmark = pytest.mark.anyio

NEWER = Fence("op-2", 2)


async def write(runtime: KubernetesRuntime, home: Home, words: str) -> None:
    done = await runtime.execute(home.workspace_id, ["sh", "-c", words], b"")
    assert done.exit_code == 0, done.stderr


async def read(runtime: KubernetesRuntime, home: Home, file: str) -> bytes:
    return (await runtime.execute(home.workspace_id, ["cat", file], b"")).stdout


async def is_absent(runtime: KubernetesRuntime, home: Home) -> bool:
    return (await runtime.observe(frozenset({home.workspace_id}))).of(home.workspace_id).container is None


async def test_a_program_that_answers_is_reported_at_once(installed: InstalledCluster, make_runtime: MakeRuntime) -> None:
    reported: list[str] = []
    runtime = make_runtime(reported.append)
    await runtime.start()
    home = await ready(runtime)
    await runtime.ensure_running(world_of(installed, runtime).serving(home), FENCE, unheard)
    await until(lambda: reported, within_s=START_S)
    assert reported == [home.workspace_id]
    seen = (await runtime.observe()).of(home.workspace_id).container
    assert seen is not None
    assert seen.ready


# ── never two writers ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_pod_that_a_replaced_controller_creates_late_runs_nothing(
    installed: InstalledCluster, make_runtime: MakeRuntime, runtime: KubernetesRuntime
) -> None:
    home = await ready(runtime)
    late = make_runtime()
    await late.start()
    listed = (await late._homes.list()).of(home)
    container = world_of(installed, late).running(home, ("sh", "-c", "echo ran > ran; sleep 600"))
    await runtime.ensure_no_container(home.workspace_id, NEWER)  # the next controller relies on this
    nonce = new_nonce()
    assert listed.claim is not None
    pod = await late._pods.create(home, listed.claim, late._pods.wanted(container, listed, FENCE.epoch, nonce), nonce)
    with pytest.raises(Failed) as refusal:
        await late._give_orders(pod, container, listed, FENCE, unheard)
    assert refusal.value.code is Code.STALE_EPOCH
    await until(lambda: pod_of(installed, home) is None, within_s=START_S)
    assert list(files_of(installed, home).iterdir()) == []


async def test_a_pod_without_orders_is_continued_and_its_first_controller_cannot_delete_it(
    installed: InstalledCluster, make_runtime: MakeRuntime, runtime: KubernetesRuntime
) -> None:
    home = await ready(runtime)
    container = world_of(installed, runtime).serving(home)
    async with runtime._exclusive(home.workspace_id, FENCE) as found:
        listed = found.of(home)
        nonce = new_nonce()
        assert listed.claim is not None
        pod = await runtime._pods.create(home, listed.claim, runtime._pods.wanted(container, listed, 1, nonce), nonce)
    another = make_runtime()
    await another.start()
    await another.ensure_running(container, NEWER, unheard)
    await until_ready(world_of(installed, another), home, START_S)
    await runtime._pods.discard(pod, FENCE.epoch)
    current = pod_of(installed, home)
    assert current is not None
    assert current["metadata"]["uid"] == pod.uid
    assert "deletionTimestamp" not in current["metadata"]


async def test_while_a_node_is_lost_no_second_pod_starts_and_the_reason_is_known(
    installed: InstalledCluster, runtime: KubernetesRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.runtimes.kubernetes.homes.END_S", 3.0)
    home = await running(installed, runtime)
    await write(runtime, home, "echo kept > file")
    first, node = uid_of(installed, home), installed.cluster.nodes[0]
    kubelet = node.components["kubelet"]
    kubelet.stop()
    try:
        installed.kubectl("delete", "pod", container_name(home.workspace_id), "--wait=false")
        for verb in (
            runtime.ensure_running(world_of(installed, runtime).serving(home, 2), FENCE, unheard),
            runtime.ensure_no_container(home.workspace_id, FENCE),
        ):
            with pytest.raises(Unavailable) as waits:
                await verb
            assert node.name in waits.value.message
        assert uid_of(installed, home) == first
        seen = (await runtime.observe()).of(home.workspace_id).container
        assert seen is not None
        assert node.name in seen.waiting
        assert seen.ended is None
    finally:
        kubelet.start()
    await until(lambda: pod_of(installed, home) is None, within_s=START_S)
    await running(installed, runtime, home, 3)
    assert await read(runtime, home, "file") == b"kept\n"


# ── never a lost home ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["deleted", "evicted"])
async def test_a_pod_that_was_removed_is_absent_and_starts_again_on_the_same_home(
    installed: InstalledCluster, runtime: KubernetesRuntime, how: str
) -> None:
    home = await running(installed, runtime)
    await write(runtime, home, "mkdir -m 700 .ssh && echo key > .ssh/id && chmod 600 .ssh/id")
    name, first = container_name(home.workspace_id), uid_of(installed, home)
    if how == "deleted":
        installed.kubectl("delete", "pod", name, "--wait=false")
    else:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
        installed.kubectl("create", "--raw", path, "--filename", "-", stdin=json.dumps(eviction))
    await until(lambda: is_absent(runtime, home), within_s=START_S)
    await running(installed, runtime, home, 2)
    assert uid_of(installed, home) != first
    assert await read(runtime, home, ".ssh/id") == b"key\n"
    modes = await runtime.execute(home.workspace_id, ["stat", "-c", "%a", ".", ".ssh", ".ssh/id"], b"")
    assert modes.stdout.split() == [b"700", b"700", b"600"], "the group of the volume changes no modes"


async def test_a_claim_deleted_by_hand_keeps_its_files_until_the_workspace_is_purged(
    installed: InstalledCluster, runtime: KubernetesRuntime
) -> None:
    home = await running(installed, runtime)
    await write(runtime, home, "echo kept > file")
    files = files_of(installed, home)
    installed.kubectl("delete", "pvc", home_name(home), "--wait=false")
    (volume,) = (await runtime.observe()).of(home.workspace_id).volumes
    assert volume == ObservedVolume(1, None, is_illegible=True)
    assert files.parent.name in volume.fault, "the PersistentVolume"
    await runtime.ensure_no_container(home.workspace_id, FENCE)
    await runtime.ensure_no_half_made(home, FENCE)
    with pytest.raises(Failed) as refusal:
        await runtime.ensure_running(world_of(installed, runtime).serving(home, 2), FENCE, unheard)
    assert refusal.value.code is Code.VOLUME_NOT_READY
    assert (files / "file").read_text() == "kept\n"
    await runtime.ensure_no_volume(home, FENCE, archived_revision=None)
    assert not installed.exists("pvc", home_name(home))


async def test_an_empty_volume_in_place_of_the_home_starts_no_program(
    installed: InstalledCluster, runtime: KubernetesRuntime
) -> None:
    home = await running(installed, runtime)
    await runtime.ensure_no_container(home.workspace_id, FENCE)
    volume = files_of(installed, home).parent
    volume.rename(volume.with_name(f"{volume.name}-elsewhere"))
    volume.mkdir()
    volume.chmod(0o777)
    with pytest.raises(Failed) as refusal:
        await runtime.ensure_running(world_of(installed, runtime).serving(home, 2), FENCE, unheard)
    assert refusal.value.code is Code.VOLUME_NOT_READY
    assert "not this home" in refusal.value.message
    assert list(volume.iterdir()) == []


async def test_workspaces_run_on_while_the_api_server_restarts(installed: InstalledCluster, runtime: KubernetesRuntime) -> None:
    home = await running(installed, runtime)
    first, server = uid_of(installed, home), installed.cluster.control.components["kube-apiserver"]
    server.stop()
    try:
        with pytest.raises(Unavailable) as out:
            await runtime.observe()
        assert "does not answer" in out.value.message
        await write(runtime, home, "echo without > file")
    finally:
        server.start()
        await asyncio.to_thread(installed.cluster.control.wait)

    async def is_ready_again() -> bool:
        try:
            seen = (await runtime.observe()).of(home.workspace_id).container
        except Unavailable:
            return False
        return seen is not None and seen.ready

    await until(is_ready_again, within_s=START_S)
    assert uid_of(installed, home) == first
    assert await read(runtime, home, "file") == b"without\n"


# ── the key ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_key_of_a_pod_is_nowhere_when_its_program_runs(
    installed: InstalledCluster, runtime: KubernetesRuntime
) -> None:
    home = await running(installed, runtime)
    assert secrets_of(installed, home) == []
    found = await runtime.execute(home.workspace_id, ["sh", "-c", "ls -A /run/torpor /run/torpor-key; env"], b"")
    assert b"key" not in found.stdout
    assert b"KUBERNETES" not in found.stdout


# ── reasons ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def waiting(runtime: KubernetesRuntime, home: Home) -> str:
    seen = (await runtime.observe(frozenset({home.workspace_id}))).of(home.workspace_id).container
    return seen.waiting if seen is not None else ""


async def test_a_pod_that_fits_on_no_node_says_so_and_waits(installed: InstalledCluster, make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(pods=PodOptions(spec={"nodeSelector": {"no": "such-node"}}))
    await runtime.start()
    home = await ready(runtime)
    heard: list[int] = []
    start = runtime.ensure_running(world_of(installed, runtime).serving(home), FENCE, lambda done, _total: heard.append(done))
    starting = asyncio.ensure_future(start)
    await until(lambda: waiting(runtime, home), within_s=START_S)
    assert "no node can run it now" in await waiting(runtime, home)
    await until(lambda: len(heard) > 1, within_s=START_S)
    assert heard == sorted(set(heard)), "waiting is progress"
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: pod_of(installed, home) is None, within_s=START_S)


async def test_a_start_that_waits_too_long_fails_with_the_reason(
    installed: InstalledCluster, make_runtime: MakeRuntime
) -> None:
    runtime = make_runtime(pods=PodOptions(spec={"nodeSelector": {"no": "such-node"}}), start_s=3.0)
    await runtime.start()
    home = await ready(runtime)
    with pytest.raises(Failed) as failure:
        await runtime.ensure_running(world_of(installed, runtime).serving(home), FENCE, unheard)
    assert failure.value.code is Code.CONTAINER_START_FAILED
    assert "no node can run it now" in failure.value.message
    await until(lambda: pod_of(installed, home) is None, within_s=START_S)


async def test_a_missing_image_fails_at_once_with_its_name(installed: InstalledCluster, make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(pods=PodOptions(image_pull_policy="Never"))
    await runtime.start()
    home = await ready(runtime)
    container = world_of(installed, runtime).serving(home)
    missing = replace(container, program=replace(container.program, image="torpor.invalid/no/such:1"))
    with pytest.raises(Failed) as failure:
        await asyncio.wait_for(runtime.ensure_running(missing, FENCE, unheard), START_S)
    assert failure.value.code is Code.IMAGE_PULL_FAILED
    assert "torpor.invalid/no/such:1" in failure.value.message
    await until(lambda: pod_of(installed, home) is None, within_s=START_S)


async def test_a_registry_that_does_not_answer_is_what_a_pod_waits_for(
    installed: InstalledCluster, runtime: KubernetesRuntime
) -> None:
    home = await ready(runtime)
    container = world_of(installed, runtime).serving(home)
    missing = replace(container, program=replace(container.program, image="torpor.invalid/no/such:1"))
    starting = asyncio.ensure_future(runtime.ensure_running(missing, FENCE, unheard))
    await until(lambda: waiting(runtime, home), within_s=START_S)
    assert "torpor.invalid/no/such:1" in await waiting(runtime, home)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


async def test_a_quota_is_named_and_nothing_is_left_behind(installed: InstalledCluster, runtime: KubernetesRuntime) -> None:
    home = await ready(runtime)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    installed.kubectl("apply", "--filename", "-", stdin=json.dumps(quota))
    try:
        await until(lambda: installed.get("resourcequota", "few")["status"].get("hard"), within_s=START_S)
        with pytest.raises(Failed) as failure:
            await runtime.ensure_running(world_of(installed, runtime).serving(home), FENCE, unheard)
    finally:
        installed.kubectl("delete", "resourcequota", "few")
    assert failure.value.code is Code.CONTAINER_START_FAILED
    assert "exceeded quota" in failure.value.message
    assert (pod_of(installed, home), secrets_of(installed, home)) == (None, [])


async def test_a_missing_storage_class_is_named(installed: InstalledCluster, make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(storage_class="no-such-class", start_s=3.0)
    await runtime.start()
    home = await ready(runtime)
    with pytest.raises(Failed) as failure:
        await runtime.ensure_running(world_of(installed, runtime).serving(home), FENCE, unheard)
    assert "no-such-class" in failure.value.message
    await runtime.ensure_no_volume(home, FENCE, archived_revision=None)


# ── credentials ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_credentials_that_are_not_accepted_are_reported(installed: InstalledCluster, make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(kubeconfig=installed.with_token("expired"))
    await runtime.start()
    with pytest.raises(Unavailable) as failure:
        await runtime.observe()
    assert "expired or were revoked" in failure.value.message


# ── volumes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_volume_grows_to_the_size_of_the_settings(
    installed: InstalledCluster, make_runtime: MakeRuntime, runtime: KubernetesRuntime
) -> None:
    home = await running(installed, runtime)
    await runtime.ensure_no_container(home.workspace_id, FENCE)
    larger = make_runtime(volume_size="96Mi")
    await larger.start()
    await running(installed, larger, home, 2)
    claim = installed.get("pvc", home_name(home))
    assert claim["spec"]["resources"]["requests"]["storage"] == "96Mi"
