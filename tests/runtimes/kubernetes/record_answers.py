"""Record what a real cluster answers, for the tests of its translation (as root, after `make kubernetes`).

.venv/bin/python -m tests.runtimes.kubernetes.record_answers

The files are in `recorded/`, one for each case. Run it again for another version of Kubernetes.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2

from tests.contracts.runtime_contract import FENCE, unheard
from tests.runtimes.kubernetes.cluster_steps import files_of, ready, running, world_of
from tests.runtimes.kubernetes.conftest import INSTALLATION_KEY, KIT_IMAGE, NAMESPACE, InstalledCluster, installed_cluster
from tests.support.kept_logs import LogsInMemory
from tests.support.kubernetes_cluster import IMAGE
from tests.support.waiting import until
from torpor.domain.errors import Failed
from torpor.ports import Container, Home
from torpor.runtimes.kubernetes.cluster_client import translated
from torpor.runtimes.kubernetes.options import KubernetesOptions, PodOptions
from torpor.runtimes.kubernetes.pod_state import listed_pod
from torpor.runtimes.kubernetes.runtime import KubernetesRuntime
from torpor.runtimes.object_labels import container_name, home_name

RECORDED = Path(__file__).parent / "recorded"
INSTALLATION = "recorded"
SEEN_S = 120.0
METADATA = ("name", "uid", "resourceVersion", "labels", "annotations", "finalizers", "creationTimestamp", "deletionTimestamp")
OF_EVENTS = ("type", "reason", "message", "lastTimestamp", "eventTime", "involvedObject")


class Recorder:
    """Brings a workspace into a state, and keeps what the cluster then says about it."""

    def __init__(self, installed: InstalledCluster) -> None:
        self.installed = installed

    @contextlib.asynccontextmanager
    async def runtime(self, **changes: Any) -> AsyncIterator[KubernetesRuntime]:
        options = KubernetesOptions(
            INSTALLATION,
            IMAGE,
            KIT_IMAGE,
            grace_s=2.0,
            user=1000,
            volume_size="64Mi",
            access_mode="ReadWriteOnce",
            kubeconfig=self.installed.kubeconfig,
            namespace=NAMESPACE,
        )
        made = KubernetesRuntime(replace(options, **changes), installation_key=INSTALLATION_KEY, kept_logs=LogsInMemory())
        await made.start()
        try:
            yield made
        finally:
            await made.close()

    async def while_starting(
        self,
        name: str,
        runtime: KubernetesRuntime,
        reason: str,
        *,
        home: Home | None = None,
        image: str = "",
        in_event: bool = False,
    ) -> None:
        """Keep the pod as it is when its status, or an event, has this word."""
        home = home or await ready(runtime)
        container = world_of(self.installed, runtime).serving(home)
        wanted = replace(container, program=replace(container.program, image=image or None))
        starting = asyncio.ensure_future(runtime.ensure_running(wanted, FENCE, unheard))

        def has_reason() -> bool:
            pods = self._items("pods", container_name(home.workspace_id))
            about = self._events(home) if in_event else [pod["status"] for pod in pods]
            return bool(pods) and reason in json.dumps(about)

        await until(has_reason, within_s=SEEN_S)
        self.keep(name, home)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError, Failed):
            await starting

    def keep(self, name: str, home: Home) -> None:
        kept = {
            "pods": self._items("pods", container_name(home.workspace_id)),
            "claims": self._items("pvc", home_name(home)),
            "events": self._events(home),
        }
        self._write(name, kept)

    def _events(self, home: Home) -> list[dict[str, Any]]:
        names = (container_name(home.workspace_id), home_name(home))
        found = self.installed.get("events")["items"]
        return [chosen(one, OF_EVENTS) for one in found if one["involvedObject"]["name"] in names]

    def _items(self, kind: str, name: str) -> list[dict[str, Any]]:
        text = self.installed.kubectl("get", kind, name, "--ignore-not-found", "--output", "json")
        return [read_part(json.loads(text))] if text.strip() else []

    def _write(self, name: str, kept: object) -> None:
        RECORDED.mkdir(exist_ok=True)
        (RECORDED / f"{name}.json").write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        print(f"recorded {name}", flush=True)

    async def answer(self, name: str, method: str, path: str, body: object = None, **more: Any) -> None:
        """Keep the cluster's answer to a call with the rights of Torpor."""
        async with self.runtime(**more) as runtime:
            http = runtime._client._connected()
            content = None if body is None else json.dumps(body).encode()
            kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
            answer: httpx2.Response = await http.request(method, path, content=content, headers={"Content-Type": kind})
        assert answer.is_error, (name, answer.text)
        translated(answer.status_code, answer.text, method, path, "recorded")
        self._write(name, {"method": method, "path": path, "status": answer.status_code, "body": answer.json()})


def read_part(found: dict[str, Any]) -> dict[str, Any]:
    """What Torpor may read, and no more: a whole pod has hundreds of lines."""
    spec = {name: value for name, value in found["spec"].items() if name != "containers" and name != "initContainers"}
    return {"metadata": chosen(found["metadata"], METADATA), "spec": spec, "status": found["status"]}


def chosen(found: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: found[name] for name in names if name in found}


async def record_pods(recorder: Recorder) -> None:
    installed = recorder.installed
    nowhere, never = PodOptions(spec={"nodeSelector": {"no": "such-node"}}), PodOptions(image_pull_policy="Never")
    async with recorder.runtime() as runtime:
        home = await running(installed, runtime)
        recorder.keep("running", home)
        await world_of(installed, runtime).end_program(home.workspace_id, 3, "done")
        await until(lambda: ended(recorder, home), within_s=SEEN_S)
        recorder.keep("ended", home)
        await recorder.while_starting("registry-out", runtime, "ErrImagePull", image="torpor.invalid/no/such:1")
        await recorder.while_starting("bad-image-name", runtime, "InvalidImageName", image="NO//such")
        home = await running(installed, runtime)
        await runtime.ensure_no_container(home.workspace_id, FENCE)
        volume = files_of(installed, home).parent
        volume.rename(volume.with_name(f"{volume.name}-elsewhere"))
        volume.mkdir()
        volume.chmod(0o777)
        with contextlib.suppress(Failed):
            await recorder.while_starting("wrong-volume", runtime, "terminated", home=home)
        home = await running(installed, runtime)
        installed.cluster.nodes[0].components["kubelet"].stop()
        installed.kubectl("delete", "pod", container_name(home.workspace_id), "--wait=false")
        recorder.keep("deleted-on-a-lost-node", home)
        installed.cluster.nodes[0].components["kubelet"].start()
        installed.kubectl("delete", "pvc", home_name(home), "--wait=false")
        recorder.keep("claim-deleted-by-hand", home)
    async with recorder.runtime(pods=nowhere) as runtime:
        await recorder.while_starting("no-node", runtime, "Unschedulable")
    async with recorder.runtime(pods=never) as runtime:
        await recorder.while_starting("never-pulled", runtime, "ErrImageNeverPull", image="torpor.invalid/no/such:1")
    async with recorder.runtime(storage_class="no-such-class") as runtime:
        await recorder.while_starting("no-storage-class", runtime, "no-such-class", in_event=True)


def ended(recorder: Recorder, home: Home) -> bool:
    pods = recorder._items("pods", container_name(home.workspace_id))
    return bool(pods) and listed_pod(pods[0]).counts_as_ended


async def record_answers(recorder: Recorder) -> None:
    installed = recorder.installed
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    plain = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}}
    spec = {"containers": [{"name": "one", "image": IMAGE}]}
    await recorder.answer("answer-expired", "GET", pods, kubeconfig=installed.with_token("expired"))
    await recorder.answer("answer-no-right-to-read", "GET", "/api/v1/namespaces/kube-system/pods")
    await recorder.answer("answer-no-right-to-create", "POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps", plain)
    await recorder.answer("answer-pod-security", "POST", pods, {**plain, "spec": {**spec, "hostNetwork": True}})
    await recorder.answer("answer-invalid", "POST", pods, {**plain, "spec": {"containers": []}})
    await recorder.answer("answer-absent", "GET", f"{pods}/no-such-pod")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    installed.kubectl("apply", "--filename", "-", stdin=json.dumps(quota))
    await until(lambda: "hard" in installed.get("resourcequota", "few").get("status", {}), within_s=SEEN_S)
    async with recorder.runtime() as runtime:
        home = await ready(runtime)
        wanted = world_of(installed, runtime).serving(home)
        await recorder.answer("answer-quota", "POST", pods, await pod_of(runtime, wanted))
        claim = installed.get("pvc", home_name(home))
        old = {"metadata": {"resourceVersion": "1", "annotations": {"torpor.epoch": "9"}}}
        path = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/{claim['metadata']['name']}"
        await recorder.answer("answer-conflict", "PATCH", path, old)
    installed.kubectl("delete", "resourcequota", "few")


async def pod_of(runtime: KubernetesRuntime, container: Container) -> Any:
    listed = (await runtime._homes.list()).of(container.home)
    return runtime._pods.wanted(container, listed, FENCE.epoch, "nonce")


async def record() -> None:
    with installed_cluster() as installed, installed.cluster.network():
        recorder = Recorder(installed)
        await record_answers(recorder)
        await record_pods(recorder)


if __name__ == "__main__":
    asyncio.run(record())
