"""Run workspaces as pods of a Kubernetes cluster: the implementation of `torpor.ports.Runtime`."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any

from torpor.domain.disk import Disk
from torpor.domain.errors import Code, Failed, Refused, Unavailable
from torpor.domain.records import FileCount, Marker, Observation, ObservedContainer, ObservedVolume, ProgramExit, Survey
from torpor.kit import layout
from torpor.loops import stop
from torpor.ports import Container, Fence, Home, HomeJob, JobProgress, KeptLogs, Progress
from torpor.runtimes import agent_client, record_changes
from torpor.runtimes.agent_runtime import AgentRuntime
from torpor.runtimes.change_hints import ChangeHints
from torpor.runtimes.fencing import WorkspaceLocks
from torpor.runtimes.home_record import ABSENT, HomeRecord
from torpor.runtimes.kubernetes import manifests, pod_watch
from torpor.runtimes.kubernetes.cluster_client import CONFLICT, NETWORK_POLICIES, ClusterClient, ClusterRefusal
from torpor.runtimes.kubernetes.homes import ClusterHomes
from torpor.runtimes.kubernetes.jobs import ClusterJobs
from torpor.runtimes.kubernetes.listing import ClaimedHome, ClusterListing
from torpor.runtimes.kubernetes.network_policies import network_policies
from torpor.runtimes.kubernetes.options import KubernetesOptions
from torpor.runtimes.kubernetes.pod_state import ListedPod
from torpor.runtimes.kubernetes.pods import ClusterPods, new_nonce
from torpor.runtimes.object_labels import ORDER
from torpor.runtimes.program_orders import HOME, INSIDE, orders
from torpor.runtimes.running_container import RunningContainer
from torpor.runtimes.timeouts import finish_despite_cancel


class KubernetesRuntime(AgentRuntime):
    """Call `start` first and `close` last. Any number of processes can use one namespace."""

    name = "kubernetes"

    def __init__(
        self,
        options: KubernetesOptions,
        *,
        installation_key: bytes,
        kept_logs: KeptLogs,
        on_change: Callable[[str], None] = lambda _workspace_id: None,
    ) -> None:
        """`on_change` is called with the workspace of each pod that becomes ready, ends or is deleted. It is only a hint."""
        super().__init__(options.probe_s, kept_logs)
        self._options = options
        self._on_change = on_change
        self._client = ClusterClient(options)
        self._hints = ChangeHints(partial(pod_watch.changes, self._client, options.installation), on_change)
        self._homes = ClusterHomes(self._client, options)
        self._pods = ClusterPods(self._client, self._homes, options, installation_key)
        self._jobs = ClusterJobs(self._client, self._homes, self._pods, options, installation_key)
        self._epochs: dict[str, int] = {}
        self._locks = WorkspaceLocks()
        self._is_isolated = False
        self._tasks: set[asyncio.Task[None]] = set()
        """All work in the background."""

    async def start(self) -> None:
        """Refused if the configuration of the cluster cannot be used."""
        self._client.connect()
        with contextlib.suppress(Unavailable):  # every observation raises it, until the cluster is available
            await self._homes.open_identity()
            try:
                await self._isolate()
            except Failed as failed:
                raise Refused("no_isolation", failed.message) from failed
        self._in_background(self._hints.run())

    async def _isolate(self) -> None:
        """The NetworkPolicies of this installation are there, once for each process."""
        if self._options.network is None or self._is_isolated:
            return
        for policy in network_policies(self._options.installation, self._options.network):
            name = policy["metadata"]["name"]
            try:
                try:
                    await self._client.create(NETWORK_POLICIES, policy)
                except ClusterRefusal as refusal:
                    if refusal.status != CONFLICT:
                        raise
                    await self._client.patch(NETWORK_POLICIES, name, {"spec": policy["spec"]})
            except (ClusterRefusal, Failed) as refusal:
                message = f"the NetworkPolicy {name}, which confines workspaces, cannot be written: {refusal.message}"
                advice = "give Torpor this right, or set isolation=none and confine workspaces in another way"
                raise Failed(Code.CONTAINER_START_FAILED, f"{message}; {advice}") from refusal
        self._is_isolated = True

    async def close(self) -> None:
        await stop(*self._tasks)
        await self._client.close()

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ── observation ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def world(self) -> str:
        self._client.connect()
        return f"{self.name}:{await self._homes.open_identity()}"

    async def observe(self, only: frozenset[str] | None = None) -> Survey:
        with _refusals():
            found = await self._homes.list(only)
        volumes: dict[str, set[ObservedVolume]] = {}
        for home, listed in found.homes.items():
            if (seen := listed.seen()) is not None:
                volumes.setdefault(home.workspace_id, set()).add(seen)
        present = {workspace_id: pod for workspace_id, pod in found.pods.items() if pod.is_live or pod.counts_as_ended}
        observed = await asyncio.gather(*(self._observe_pod(pod, found) for pod in present.values()))
        containers = dict(zip(present, observed, strict=True))
        if only is None:
            self._pods.forget_all_but({pod.uid for pod in found.pods.values()})
        self._running.observed({name: self._pods.running(pod) for name, pod in found.pods.items()}, only)
        return Survey(
            {
                workspace_id: Observation(frozenset(volumes.get(workspace_id, ())), containers.get(workspace_id))
                for workspace_id in volumes.keys() | containers.keys()
            }
        )

    async def _observe_pod(self, pod: ListedPod, found: ClusterListing) -> ObservedContainer:
        assert pod.home is not None
        record = found.of(pod.home).record
        revision = (record.revision if record is not None else None) or 0
        running = self._pods.running(pod)
        ended = await self._end_of(pod) if pod.counts_as_ended else None
        # A pod that is being deleted will not run for long, even if its node does not answer. Of other pods the agent is asked:
        # the node reports a start up to a second later.
        can_be_ready = running is not None and not pod.is_terminating
        ready = can_be_ready and running is not None and await running.is_ready(self._options.probe_s)
        location = running.location if running is not None else None
        waiting = self._pods.waiting(pod) if not ready else ""
        return ObservedContainer(pod.home.generation, revision, ready, ended, location=location, waiting=waiting)

    async def _end_of(self, pod: ListedPod) -> ProgramExit:
        """Its log is kept when the end is first seen: it may stay for long, and the API does not ask the cluster."""
        is_new = not self._pods.knows_end(pod)
        ended = await self._pods.end_of(pod)
        if is_new and (said := await self._pods.last_log(pod)):
            await self._kept_logs.keep(pod.workspace_id, said)
        return ended

    async def disk(self) -> Disk | None:
        """The disks are the cluster's."""
        return None

    # ── volumes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ensure_volume(self, home: Home, fence: Fence) -> None:
        nonce, birth = new_nonce(), new_nonce()

        def decide(listed: ClaimedHome, found: ClusterListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.made(listed, fence.epoch, nonce, birth)

        async with self._exclusive(home.workspace_id, fence) as found:
            await self._homes.change(home, decide, found)

    async def admit(self, workspace_id: str, fence: Fence) -> None:
        async with self._exclusive(workspace_id, fence):
            pass

    async def mark_volume(self, home: Home, marker: Marker, fence: Fence) -> None:
        """The next pod writes the marker into the volume: it cannot be mounted anywhere else."""
        nonce = new_nonce()

        def decide(listed: ClaimedHome, found: ClusterListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.marked(listed, marker, fence.epoch, nonce)

        async with self._exclusive(home.workspace_id, fence) as found:
            await self._homes.change(home, decide, found)

    async def ensure_no_volume(self, home: Home, fence: Fence, *, archived_revision: int | None) -> None:
        nonce = new_nonce()

        def decide(listed: ClaimedHome, found: ClusterListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.going(
                listed, fence.epoch, nonce, archived_revision=archived_revision, is_running=found.runs_on(home)
            )

        async with self._exclusive(home.workspace_id, fence) as found:
            await self._homes.remove(home, decide, found)

    async def ensure_no_half_made(self, home: Home, fence: Fence) -> None:
        nonce = new_nonce()

        def decide(listed: ClaimedHome, found: ClusterListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.discarded(listed, fence.epoch, nonce)

        async with self._exclusive(home.workspace_id, fence) as found:
            if found.of(home).is_half_made:
                await self._homes.remove(home, decide, found)

    async def run_at_home(self, home: Home, job: HomeJob, fence: Fence, progress: JobProgress) -> Mapping[str, object]:
        async with self._exclusive(home.workspace_id, fence) as found:
            listed = found.of(home)
            record_changes.permit_job(listed, writes=job.writes)
            await self._isolate()

            async def check(pod: ListedPod) -> None:
                await self._check(listed, fence, pod)

            begun = await self._jobs.begin(listed, job, fence, check, progress)
        with _refusals():
            return await self._jobs.finish(begun, fence.epoch, progress)

    async def home_bytes(self, home: Home) -> int | None:
        try:
            with _refusals():
                return await self._home_bytes(home)
        except (Failed, Refused) as failure:
            raise Unavailable(f"the home of workspace {home.workspace_id} cannot be measured: {failure.message}") from failure

    async def _home_bytes(self, home: Home) -> int | None:
        async with self._locks.of(home.workspace_id):
            listed = (await self._homes.list(frozenset({home.workspace_id}))).of(home)
            if listed.birth == ABSENT:
                return None
            running = self._pods.running(listed.pod) if listed.pod is not None else None
            # The volume may not be mountable a second time, so a running workspace is measured from inside.
            begun = await self._jobs.create_measuring(listed) if running is None else None
        if running is not None:
            command = (*layout.python_argv(), f"{INSIDE}/measure_home.py", HOME)
            done = await agent_client.execute(running.control, command, b"")
            try:
                return int(json.loads(done.stdout)["result"]["bytes"])
            except (ValueError, LookupError, TypeError) as error:
                raise Failed(Code.INTERNAL, f"the measurement failed: {done.stderr.decode(errors='replace')}") from error
        assert begun is not None
        # Without the lock: a pod may wait for its node for long, and a start ends it.
        await self._jobs.order_measuring(listed, begun, _unheard)
        return int(str((await self._jobs.finish(begun, None, _unheard))["bytes"]))

    # ── containers ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ensure_running(self, container: Container, fence: Fence, progress: Progress) -> None:
        home, nonce = container.home, new_nonce()
        if container.program.packages:
            message = f"the template {container.program.template!r} installs packages, which the Kubernetes runtime cannot do"
            raise Failed(Code.PROGRAM_INSTALL_FAILED, f"{message}; use a template with an image that contains them")

        def decide(listed: ClaimedHome, found: ClusterListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.opened(listed, container.revision, fence.epoch, nonce)

        async with self._exclusive(home.workspace_id, fence) as found:
            record_changes.ready(found.of(home))  # refuses before anything is created
            await self._isolate()
            found = await self._homes.change(home, decide, found)
            opened, current = found.of(home), found.pods.get(home.workspace_id)
            wanted = self._pods.wanted(container, opened, fence.epoch, nonce)
            pod: ListedPod | None = None
            if current is not None:
                # A pod that is being deleted is waited for, also if its agent does not answer any more.
                running = self._pods.running(current) if not current.is_terminating else None
                has_orders = running is not None and await _has_orders(running, current)
                if running is not None and has_orders and current.home == home:
                    self._running.add(running)
                    return
                if not has_orders and _can_go_on(current, wanted):
                    pod = await self._pods.adopt(current, fence.epoch)
                if pod is None:
                    await self._stop(current)
            await self._homes.remove_pods([job for listed in found.homes_of(home.workspace_id) for job in listed.jobs])
            assert opened.claim is not None
            await self._homes.grow(opened.claim)
            if pod is None:
                pod = await self._pods.create(home, opened.claim, wanted, nonce)
            await self._give_orders(pod, container, opened, fence, progress)

    async def _give_orders(
        self, pod: ListedPod, container: Container, opened: ClaimedHome, fence: Fence, progress: Progress
    ) -> None:
        try:
            running, now = await self._pods.until_agent(pod, progress)
            if opened.claim is not None and not opened.claim.is_made:
                await self._homes.note_made(opened.home, opened.birth)
            if await running.was_ordered():  # by another controller, whose pod this one continues with
                self._running.add(running)
                return
            environment = await self._pods.image_environment(running)
            await self._check(opened, fence, now)
            assert opened.record is not None
            await running.order(
                orders(
                    container,
                    opened.record,
                    environment,
                    marker_file=manifests.MARKER_PATH,
                    grace_s=self._options.grace_s,
                )
            )
        except (Failed, asyncio.CancelledError):
            await finish_despite_cancel(self._pods.discard(pod, fence.epoch))
            raise
        self._running.add(running)
        self._in_background(self._report_ready(running))

    async def _report_ready(self, running: RunningContainer) -> None:
        """Call `on_change` when the program's port answers, so that callers need not poll."""
        if await running.becomes_ready(self._options.probe_s, self._options.ready_s):
            self._on_change(running.workspace_id)

    async def _check(self, opened: ClaimedHome, fence: Fence, own: ListedPod) -> None:
        """Before the orders: this pod and this record are still the current ones, and no other pod uses the home."""
        workspace_id = opened.home.workspace_id
        found = await self._homes.list(frozenset({workspace_id}))
        self._admit(found, workspace_id, fence)
        now = found.of(opened.home)
        pods = [pod for listed in found.homes_of(workspace_id) for pod in listed.jobs if ORDER in pod.facts]
        others = [*pods, *([found.pods[workspace_id]] if workspace_id in found.pods else [])]
        if now.record != opened.record or now.birth != opened.birth:
            raise Failed(Code.CONTAINER_START_FAILED, "the home was changed by another controller during the start")
        if own.uid not in {pod.uid for pod in others} and ORDER in own.facts:
            raise Failed(Code.CONTAINER_START_FAILED, f"the pod {own.name} was deleted during its start")
        for other in others:
            if other.uid != own.uid and other.is_live:
                raise Failed(Code.CONTAINER_START_FAILED, f"another pod uses the home: {other.name}")

    async def ensure_no_container(self, workspace_id: str, fence: Fence) -> None:
        async with self._exclusive(workspace_id, fence) as found:
            if (current := found.pods.get(workspace_id)) is not None:
                await self._stop(current)

    async def _stop(self, current: ListedPod) -> None:
        """Stop and delete it, and keep the end of its log."""
        self._running.remove(current.workspace_id)
        said = await self._pods.stop(current)
        if said:
            await self._kept_logs.keep(current.workspace_id, said)

    async def _container_log(self, workspace_id: str, tail: int) -> bytes | None:
        current = (await self._homes.list(frozenset({workspace_id}))).pods.get(workspace_id)
        return await self._pods.log(current, tail) if current is not None else None

    async def stop_all(self) -> None:
        """Torpor ends; the pods keep running."""

    # ── locks and fences ──────────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def _exclusive(self, workspace_id: str, fence: Fence) -> AsyncIterator[ClusterListing]:
        """Run one verb at a time for each workspace, and refuse a controller with an old epoch, now and from now on."""
        async with self._locks.of(workspace_id):
            with _refusals():
                found = await self._homes.list(frozenset({workspace_id}))
                self._admit(found, workspace_id, fence)
                for home in [one.home for one in found.homes_of(workspace_id) if one.epoch < fence.epoch]:
                    found = await self._note_epoch(home, fence)
                yield found

    def _admit(self, found: ClusterListing, workspace_id: str, fence: Fence) -> None:
        found.admit(workspace_id, fence, self._epochs.get(workspace_id, 0))
        if found.homes_of(workspace_id):  # without a home no epoch is needed, and the dictionary would grow with every id
            self._epochs[workspace_id] = fence.epoch
        else:
            self._epochs.pop(workspace_id, None)

    async def _note_epoch(self, home: Home, fence: Fence) -> ClusterListing:
        nonce = new_nonce()

        def decide(listed: ClaimedHome, found: ClusterListing) -> HomeRecord | None:
            self._admit(found, home.workspace_id, fence)
            return record_changes.admitted(listed, fence.epoch, nonce)

        return await self._homes.change(home, decide)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """A refusal that no verb expects."""
    try:
        yield
    except ClusterRefusal as refusal:
        raise Failed(Code.K8S_API_ERROR, f"the cluster refused a call: {refusal.message}", status=refusal.status) from refusal


async def _has_orders(running: RunningContainer, pod: ListedPod) -> bool:
    """Its agent is asked also before its node has reported the start, a second later: its program may already run."""
    try:
        return await running.was_ordered()
    except Unavailable:
        if pod.has_started:
            raise
        return False


def _can_go_on(current: ListedPod, wanted: Mapping[str, Any]) -> bool:
    """A pod of another controller without orders, which is the one that is wanted now."""
    is_same = current.facts.get(manifests.SPEC) == wanted["metadata"]["annotations"][manifests.SPEC]
    return is_same and current.is_live and current.end is None and not current.is_terminating


def _unheard(_done: int, _total: int | None, _files: FileCount | None = None) -> None:
    """Nothing waits for this progress."""
