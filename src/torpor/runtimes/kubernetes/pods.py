"""Create pods, wait until their agents answer, and stop them."""

import asyncio
import contextlib
import json
import secrets
from collections.abc import Mapping
from typing import Any

from torpor.domain.errors import Code, Failed, Unavailable
from torpor.domain.records import ContainerLocation, ProgramExit
from torpor.inside import program_end
from torpor.inside.control_frames import OUTPUT
from torpor.inside.first_orders import Greeting
from torpor.inside.proof import container_key, key_id
from torpor.ports import Container, Home, Progress
from torpor.runtimes import agent_client
from torpor.runtimes.kubernetes import manifests
from torpor.runtimes.kubernetes.cluster_client import CONFLICT, NOT_FOUND, PODS, SECRETS, ClusterClient, ClusterRefusal
from torpor.runtimes.kubernetes.homes import ClusterHomes
from torpor.runtimes.kubernetes.listing import ClaimedHome, ListedClaim
from torpor.runtimes.kubernetes.options import KubernetesOptions
from torpor.runtimes.kubernetes.pod_state import ListedPod, TroubleKind, event_words, listed_pod
from torpor.runtimes.object_labels import EPOCH, KEY, NONCE, TEMPLATE
from torpor.runtimes.program_exit import program_exit
from torpor.runtimes.running_container import AGENT_PORT, ASK_S, RunningContainer
from torpor.runtimes.timeouts import finish_despite_cancel

LOOK_S, QUICK_S, SLOW_LOOK_S = 0.03, 3.0, 0.3
"""How often a new pod is looked at: at first, for how long, and then."""
ANSWER_S = 2.0
BROKEN_S = 30.0
"""How long a pod may be in a trouble that usually does not end by itself."""
TICK_S = 5.0
KEPT_LOG_LINES = 1000
KEPT_LOG_BYTES = 16 << 10
LAST_LINES = 20
# Of the agent's environment, what is not of the image.
NOT_OF_THE_IMAGE = frozenset({"LD_PRELOAD", "OPENSSL_CONF", "HOSTNAME", "HOME"})


class ClusterPods:
    def __init__(self, client: ClusterClient, homes: ClusterHomes, options: KubernetesOptions, installation_key: bytes) -> None:
        self._client = client
        self._homes = homes
        self._options = options
        self._installation_key = installation_key
        self.key_id = key_id(installation_key)
        self._ends: dict[str, ProgramExit] = {}
        self._waits: dict[str, str] = {}
        """What the pods that are being started wait for, by their uid."""

    def running(self, pod: ListedPod) -> RunningContainer | None:
        """The pod if its agent can be asked; None otherwise, and for one with the key of another installation key."""
        facts = pod.facts
        if not pod.is_live or pod.end is not None or not pod.address or facts.get(KEY) != self.key_id or NONCE not in facts:
            return None
        location = ContainerLocation(pod.address, AGENT_PORT, facts[NONCE], self.key_id)
        return RunningContainer(pod.uid, pod.workspace_id, location, facts.get(TEMPLATE, ""), self._installation_key)

    # ── start ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def wanted(self, container: Container, opened: ClaimedHome, epoch: int, nonce: str) -> dict[str, Any]:
        """The pod of a workspace."""
        assert opened.claim is not None
        assert opened.record is not None
        assert opened.record.marker is not None
        return manifests.workspace_pod(
            self._options,
            container,
            opened.claim,
            opened.record.marker,
            nonce=nonce,
            key_id=self.key_id,
            epoch=epoch,
        )

    async def create(self, home: Home, claim: ListedClaim, wanted: Mapping[str, Any], nonce: str) -> ListedPod:
        """A new pod, and the Secret with its key. There must be no pod of its name. A caller that is cancelled leaves none."""
        creating = asyncio.ensure_future(self._create(home, claim, wanted, nonce))
        try:
            return await finish_despite_cancel(creating)
        except asyncio.CancelledError:
            if not creating.cancelled() and creating.exception() is None:
                made = creating.result()
                await finish_despite_cancel(self.discard(made, made.epoch))
            raise

    async def _create(self, home: Home, claim: ListedClaim, wanted: Mapping[str, Any], nonce: str) -> ListedPod:
        name = wanted["metadata"]["name"]
        greeting = Greeting(container_key(self._installation_key, nonce).hex(), AGENT_PORT).line()
        secret = manifests.secret_name(name, nonce)
        try:
            await self._client.create(SECRETS, manifests.key_secret(self._options, home, secret, claim.uid, greeting))
            return listed_pod(await self._client.create(PODS, wanted))
        except ClusterRefusal as refusal:
            await self._client.delete(SECRETS, secret)
            if refusal.status == CONFLICT:
                message = f"another pod has the name {name}: {refusal.message}"
            else:
                message = f"the cluster refused the pod {name}: {refusal.message}"
            raise Failed(Code.CONTAINER_START_FAILED, message) from refusal
        except (Failed, Unavailable):
            with contextlib.suppress(Failed, Unavailable):
                await self._client.delete(SECRETS, secret)
            raise

    async def until_agent(self, pod: ListedPod, progress: Progress) -> tuple[RunningContainer, ListedPod]:
        """Wait until its agent answers, which has no orders yet. Failed if it never will."""
        loop = asyncio.get_running_loop()
        began = ticked = loop.time()
        broken_at: float | None = None
        try:
            while True:
                found = await self._client.get(PODS, pod.name)
                now = listed_pod(found) if found is not None else None
                if now is None or now.uid != pod.uid or now.is_terminating:
                    message = f"the pod {pod.name} was deleted by another program during its start"
                    raise Failed(Code.CONTAINER_START_FAILED, message)
                if (running := self.running(now)) is not None and await self._answers(running):
                    await self._client.delete(SECRETS, manifests.secret_name(pod.name, running.location.nonce))
                    return running, now
                waited_s = loop.time() - began
                broken_at = (broken_at or loop.time()) if _is_broken(now) else None
                is_over = waited_s > self._options.start_s or (broken_at is not None and loop.time() - broken_at > BROKEN_S)
                await self._raise_trouble(now, is_over=is_over)
                if loop.time() - ticked > TICK_S:  # waiting for a node or an image is progress, too
                    ticked = loop.time()
                    progress(int(waited_s), None)
                    await self._note_events(now)
                await asyncio.sleep(LOOK_S if waited_s < QUICK_S else SLOW_LOOK_S)
        finally:
            self._waits.pop(pod.uid, None)

    async def _raise_trouble(self, pod: ListedPod, *, is_over: bool) -> None:
        trouble = pod.trouble
        if trouble is not None and (is_over or trouble.kind is TroubleKind.FINAL):
            await self._note_events(pod)
            raise Failed(trouble.code, self.waiting(pod))
        if not pod.is_live or pod.end is not None:
            said = (await self._client.log(pod.name, LAST_LINES)).decode(errors="replace").strip()
            why = pod.disruption or said or (pod.end.message if pod.end is not None else "") or "it wrote nothing"
            raise Failed(Code.CONTAINER_START_FAILED, f"the pod {pod.name} ended before its agent started: {why}")
        if is_over:
            await self._note_events(pod)
            why = self.waiting(pod) or f"its phase is {pod.phase}"
            message = f"the pod {pod.name} did not start within {self._options.start_s:g} s: {why}"
            raise Failed(Code.CONTAINER_START_FAILED, message)

    async def _note_events(self, pod: ListedPod) -> None:
        """Events say more than the pod's status about volumes, and about what happens before its containers are created."""
        if not pod.waits_for_events:
            return
        about = [{"uid": pod.uid}] if pod.node else [{"name": claim} for claim in pod.claims]
        try:
            said = [event_words(await self._client.events_of(**one)) for one in about]
        except (Unavailable, ClusterRefusal) as refusal:
            said = [f"The events, which may say why, cannot be read: {refusal.message}"]
        self._waits[pod.uid] = "; ".join(filter(None, said))

    def waiting(self, pod: ListedPod) -> str:
        """What a pod waits for, for users; empty: nothing unusual."""
        noted = self._waits.get(pod.uid, "") if pod.waits_for_events else ""
        return " ".join(filter(None, (pod.waiting, noted)))

    async def _answers(self, running: RunningContainer) -> bool:
        with contextlib.suppress(OSError):
            await agent_client.ask(running.control, {"do": "state"}, ANSWER_S)
            return True
        return False

    async def image_environment(self, running: RunningContainer) -> dict[str, str]:
        """The variables of the container's image. Only its agent knows them."""
        try:
            _, payload = await agent_client.ask(running.control, {"do": "environment"}, ASK_S)
            found = json.loads(payload)
        except (OSError, ValueError) as error:
            raise Failed(Code.CONTAINER_START_FAILED, f"the agent does not answer: {error}") from error
        return {
            str(name): str(value)
            for name, value in found.items()
            if name not in NOT_OF_THE_IMAGE and not str(name).startswith("KUBERNETES_")
        }

    # ── stop ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def stop(self, pod: ListedPod) -> bytes:
        """End its processes in order, delete it, and wait until its node confirms that. Its last output."""
        self._ends.pop(pod.uid, None)
        said = await self._ask_to_stop(pod) if pod.is_live and not pod.is_terminating else None
        if said is None:
            said = await self.last_log(pod)
        await self._homes.remove_pods([pod])
        return said[-KEPT_LOG_BYTES:]

    async def _ask_to_stop(self, pod: ListedPod) -> bytes | None:
        """Its last output, after its program has ended; None if its agent does not answer."""
        if (running := self.running(pod)) is None:
            return None
        within_s = self._options.grace_s + manifests.STRAGGLERS_S
        with contextlib.suppress(OSError):
            kind, payload = await agent_client.ask(running.control, {"do": "stop"}, within_s)
            if kind == OUTPUT:
                return payload
        return None

    async def last_log(self, pod: ListedPod) -> bytes:
        if not pod.has_started:
            return b""
        return (await self._output(pod, KEPT_LOG_LINES))[-KEPT_LOG_BYTES:]

    async def _output(self, pod: ListedPod, lines: int) -> bytes:
        """The last lines of its program."""
        return program_end.split(await self._client.log(pod.name, lines + 1))[0]

    async def adopt(self, pod: ListedPod, epoch: int) -> ListedPod | None:
        """Continue with a pod of an earlier controller, which cannot discard it then. None: it was changed meanwhile."""
        change = {"metadata": {"resourceVersion": pod.version, "uid": pod.uid, "annotations": {EPOCH: str(epoch)}}}
        try:
            return listed_pod(await self._client.patch(PODS, pod.name, change))
        except ClusterRefusal as refusal:
            if refusal.status in (CONFLICT, NOT_FOUND):
                return None
            raise

    async def discard(self, pod: ListedPod, epoch: int | None) -> None:
        """Delete a pod of this controller and its key, unless another one has continued with it. It runs no program."""
        with contextlib.suppress(ClusterRefusal, Unavailable, Failed):
            now = await self._current(pod)
            if now is not None and _is_own(now, epoch):
                await self._client.delete(PODS, now.name, uid=now.uid, version=now.version)
            if now is None or _is_own(now, epoch):
                await self._homes.remove_key(pod)

    async def end(self, pod: ListedPod, epoch: int | None) -> None:
        """The same, and wait until its processes have ended."""
        now = await self._current(pod)
        if now is not None and _is_own(now, epoch):
            await self._homes.remove_pods([now])

    async def _current(self, pod: ListedPod) -> ListedPod | None:
        found = await self._client.get(PODS, pod.name)
        now = listed_pod(found) if found is not None else None
        return now if now is not None and now.uid == pod.uid else None

    # ── observation ───────────────────────────────────────────────────────────────────────────────────────────────────

    def knows_end(self, pod: ListedPod) -> bool:
        return pod.uid in self._ends

    async def end_of(self, pod: ListedPod) -> ProgramExit:
        """How an ended pod ended. The cluster is asked once for its last lines."""
        if pod.uid not in self._ends:
            said = await self._client.log(pod.name, LAST_LINES + 1)
            exit_code = pod.end.exit_code if pod.end is not None else -1
            is_out_of_memory = pod.end is not None and pod.end.is_out_of_memory
            self._ends[pod.uid] = program_exit(exit_code, said, is_out_of_memory=is_out_of_memory)
        return self._ends[pod.uid]

    def forget_all_but(self, uids: set[str]) -> None:
        self._ends = {uid: end for uid, end in self._ends.items() if uid in uids}

    async def log(self, pod: ListedPod, tail: int) -> bytes:
        if (running := self.running(pod)) is not None:
            with contextlib.suppress(OSError):
                return await running.log(tail)
        return await self._output(pod, tail)


def _is_broken(pod: ListedPod) -> bool:
    return pod.trouble is not None and pod.trouble.kind is TroubleKind.BROKEN


def _is_own(pod: ListedPod, epoch: int | None) -> bool:
    """Whether no newer controller has continued with it."""
    return epoch is None or pod.epoch <= epoch


def new_nonce() -> str:
    return secrets.token_hex(16)
