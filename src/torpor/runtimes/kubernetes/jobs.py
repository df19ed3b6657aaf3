"""Run jobs at homes as bare pods, and continue with one that an earlier controller started.

A Job of Kubernetes is not used: it may run its pod twice.
"""

import asyncio
import base64
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence

from torpor.domain.errors import Code, Failed
from torpor.domain.records import FileCount
from torpor.kit import layout
from torpor.ports import Fence, HomeJob, JobProgress, Progress
from torpor.runtimes.job_answer import JobAnswer
from torpor.runtimes.job_order import order_of
from torpor.runtimes.kubernetes import manifests
from torpor.runtimes.kubernetes.cluster_client import PODS, ClusterClient
from torpor.runtimes.kubernetes.homes import ClusterHomes
from torpor.runtimes.kubernetes.listing import ClaimedHome
from torpor.runtimes.kubernetes.options import KubernetesOptions
from torpor.runtimes.kubernetes.pod_state import ListedPod, listed_pod
from torpor.runtimes.kubernetes.pods import ClusterPods, new_nonce
from torpor.runtimes.object_labels import ORDER, job_name
from torpor.runtimes.program_orders import INSIDE
from torpor.runtimes.running_container import RunningContainer
from torpor.runtimes.timeouts import finish_despite_cancel

LOOK_S = 0.1
STILL_RUNS_S = 3.0
"""After the end of the log: how long the pod's end is waited for until the log is read again."""
REPORTED_S = 15.0
"""After an agent does not answer any more: how long its node may take to report the end of the job."""

Check = Callable[[ListedPod], Awaitable[None]]
"""Before the orders: raises Failed unless this pod may touch the home."""


class ClusterJobs:
    def __init__(
        self,
        client: ClusterClient,
        homes: ClusterHomes,
        pods: ClusterPods,
        options: KubernetesOptions,
        installation_key: bytes,
    ) -> None:
        self._client = client
        self._homes = homes
        self._pods = pods
        self._options = options
        self._installation_key = installation_key

    # ── start ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def begin(self, listed: ClaimedHome, job: HomeJob, fence: Fence, check: Check, progress: Progress) -> ListedPod:
        """The pod of this job: a new one, or that of an earlier controller. All other jobs of the home are ended."""
        order = order_of(job, self._installation_key)
        argv = (*job.argv, manifests.JOB_HOME)
        adopted: ListedPod | None = None
        others: list[ListedPod] = []
        for other in listed.jobs:
            if adopted is None and not job.writes and can_be_adopted(other, order):
                adopted = await self._pods.adopt(other, fence.epoch)
            if adopted is None or adopted.uid != other.uid:
                others.append(other)
        await self._homes.remove_pods(others)
        if adopted is None:
            name = job_name(listed.home, fence.op_id)
            pod = await self._create(name, listed, order=order, epoch=fence.epoch)
            await self._order_or_discard(listed, pod, argv, job.stdin, check, progress, epoch=fence.epoch)
            return pod
        if not await self._has_ended(adopted):
            try:
                await self._order(listed, adopted, argv, job.stdin, check, progress)
            except Failed as failure:
                if failure.code is Code.STALE_EPOCH or await self._end(adopted, REPORTED_S) is None:
                    raise
        return adopted

    async def _has_ended(self, pod: ListedPod) -> bool:
        """Whether it has ended by itself, after it got its orders."""
        found = await self._client.get(PODS, pod.name)
        return found is not None and listed_pod(found).end is not None

    async def create_measuring(self, listed: ClaimedHome) -> ListedPod:
        return await self._create(job_name(listed.home, f"size-{secrets.token_hex(4)}"), listed)

    async def order_measuring(self, listed: ClaimedHome, pod: ListedPod, progress: Progress) -> None:
        async def nothing(_pod: ListedPod) -> None:
            """It only reads, beside any other."""

        argv = (*layout.python_argv(), f"{INSIDE}/measure_home.py", manifests.JOB_HOME)
        await self._order_or_discard(listed, pod, argv, b"", nothing, progress, epoch=None)

    async def _create(self, name: str, listed: ClaimedHome, *, order: str = "", epoch: int | None = None) -> ListedPod:
        assert listed.claim is not None
        nonce = new_nonce()
        wanted = manifests.job_pod(
            self._options, listed.home, listed.claim, name, nonce=nonce, key_id=self._pods.key_id, epoch=epoch, order=order
        )
        return await self._pods.create(listed.home, listed.claim, wanted, nonce)

    async def _order_or_discard(
        self,
        listed: ClaimedHome,
        pod: ListedPod,
        argv: Sequence[str],
        stdin: bytes,
        check: Check,
        progress: Progress,
        *,
        epoch: int | None,
    ) -> None:
        try:
            await self._order(listed, pod, argv, stdin, check, progress)
        except (Failed, asyncio.CancelledError):
            await finish_despite_cancel(self._pods.discard(pod, epoch))
            raise

    async def _order(
        self, listed: ClaimedHome, pod: ListedPod, argv: Sequence[str], stdin: bytes, check: Check, progress: Progress
    ) -> None:
        try:
            running, pod = await self._pods.until_agent(pod, progress)
        except Failed:
            if (refused := await self._refusal(pod)) is not None:
                raise refused from None
            raise
        await self._homes.note_made(listed.home, listed.birth)
        if await self._has_orders(running):
            return
        await check(pod)
        text = base64.b64encode(stdin).decode()
        await running.order({"do": "orders", "argv": list(argv), "stdin": text})

    async def _has_orders(self, running: RunningContainer) -> bool:
        try:
            return await running.has_orders()
        except OSError as error:
            raise Failed(Code.INTERNAL, f"the agent of the job does not answer: {error}") from error

    async def _refusal(self, pod: ListedPod) -> Failed | None:
        """Why the agent of a job refused the volume."""
        found = await self._client.get(PODS, pod.name)
        end = listed_pod(found).end if found is not None else None
        if end is None or not end.message:
            return None
        answer = JobAnswer(lambda _done, _total, _files=None: None)
        answer.take_line(end.message.encode())
        try:
            answer.outcome(end.exit_code)
        except Failed as failed:
            return failed
        return None

    # ── while it runs ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def finish(self, pod: ListedPod, epoch: int | None, progress: JobProgress) -> Mapping[str, object]:
        """Wait for its result. If the caller is cancelled, the job is ended first."""
        answer = JobAnswer(_rising(progress))
        try:
            ended = await self._follow(pod, answer)
        except asyncio.CancelledError:
            await finish_despite_cancel(self._pods.end(pod, epoch))
            raise
        assert ended.end is not None
        answer.take_line(ended.end.message.encode())
        try:
            return answer.outcome(ended.end.exit_code)
        finally:
            await finish_despite_cancel(self._pods.discard(pod, epoch))

    async def _follow(self, pod: ListedPod, answer: JobAnswer) -> ListedPod:
        """Read its output until it has ended."""
        read = 0
        while True:
            skip = read
            async with contextlib.aclosing(self._client.follow_log(pod.name)) as lines:
                async for line in lines:
                    if skip:  # the connection was lost, and the log begins again
                        skip -= 1
                        continue
                    read += 1
                    _take(answer, line)
            if (ended := await self._end(pod, STILL_RUNS_S)) is not None:
                return ended

    async def _end(self, pod: ListedPod, within_s: float) -> ListedPod | None:
        """The pod after its end; None if it still runs."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while loop.time() < deadline:
            found = await self._client.get(PODS, pod.name)
            now = listed_pod(found) if found is not None else None
            if now is None or now.uid != pod.uid:
                raise Failed(Code.INTERNAL, "the job was ended, because another operation of its workspace began")
            if now.end is not None:
                return now
            if not now.is_live:
                raise Failed(Code.INTERNAL, f"the cluster ended the job: {now.disruption or now.phase}")
            await asyncio.sleep(LOOK_S)
        return None


def can_be_adopted(job: ListedPod, order: str) -> bool:
    """A job that only reads, has these orders, and runs or has ended by itself."""
    return job.facts.get(ORDER) == order and not job.is_terminating and (job.is_live or job.end is not None)


def _take(answer: JobAnswer, line: bytes) -> None:
    """Kubernetes has one stream for output and errors."""
    if line.startswith(b"{"):
        answer.take_line(line)
    else:
        answer.take_errors(line + b"\n")


def _rising(progress: JobProgress) -> JobProgress:
    """Waiting for a node was counted in seconds, and lines may be repeated."""
    most = most_files = -1

    def tell(done: int, total: int | None, files: FileCount | None = None) -> None:
        nonlocal most, most_files
        done_files = -1 if files is None else files.done
        if done > most or done_files > most_files:
            most, most_files = max(most, done), max(most_files, done_files)
            progress(done, total, files)

    return tell
