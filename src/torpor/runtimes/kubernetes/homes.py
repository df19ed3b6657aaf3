"""Keep homes as claims of a cluster, each with its record in annotations.

A record is changed with the version of the claim that it was read from: the cluster refuses a change if another controller was
faster, and the decision is made again.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from torpor.domain.errors import Code, Failed, Unavailable
from torpor.ports import Home
from torpor.runtimes.home_record import HomeRecord, RecordState
from torpor.runtimes.kubernetes import manifests
from torpor.runtimes.kubernetes.cluster_client import (
    CLAIMS,
    CONFLICT,
    NOT_FOUND,
    PODS,
    SECRETS,
    ClusterClient,
    ClusterRefusal,
    until_gone,
)
from torpor.runtimes.kubernetes.listing import FINALIZER, MADE, ClaimedHome, ClusterListing, ListedClaim, listed_claim, listing
from torpor.runtimes.kubernetes.options import KubernetesOptions
from torpor.runtimes.kubernetes.pod_state import ListedPod, listed_pod, still_there
from torpor.runtimes.kubernetes.quantity import is_larger
from torpor.runtimes.object_labels import INSTALLATION, NONCE, WORKSPACE, home_name

log = structlog.get_logger()

MOST_NAMES = 50
"""For more workspaces, everything is listed: a selector with many names is slow and long."""
ATTEMPTS = 20
"""How often a record is changed again after the claim was changed meanwhile, also by the cluster itself."""
PAUSE_S = 0.05
END_S = 30.0
"""How long the end of a pod is waited for, in addition to its grace period."""
CLAIM_S = 60.0
PROTECTION = "kubernetes.io/pvc-protection"

Decision = Callable[[ClaimedHome, ClusterListing], HomeRecord | None]


class ClusterHomes:
    def __init__(self, client: ClusterClient, options: KubernetesOptions) -> None:
        self._client = client
        self._options = options
        self.identity = ""

    # ── observation ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def open_identity(self) -> str:
        """The identity of the namespace, which stays the same while this process runs."""
        found = await self._client.namespace_uid()
        if not self.identity:
            self.identity = found
        if found != self.identity:
            message = f"the namespace {self._client.namespace!r} is another one than before ({found}, not {self.identity})"
            raise Unavailable(f"{message}; is this another cluster, or was the namespace deleted?")
        return found

    async def list(self, only: frozenset[str] | None = None) -> ClusterListing:
        """All objects, or those of these workspaces; Unavailable if it is not the known namespace."""
        selector = f"{INSTALLATION}={self._options.installation}"
        if only is not None and len(only) <= MOST_NAMES:
            if not only:
                return ClusterListing()
            selector += f",{WORKSPACE} in ({','.join(sorted(only))})"
        _, found_pods = await asyncio.gather(self.open_identity(), self._client.listed(PODS, selector))
        pods = [listed_pod(pod) for pod in found_pods]
        claims = [one for claim in await self._client.listed(CLAIMS, selector) if (one := listed_claim(claim)) is not None]
        if only is not None:
            pods = [pod for pod in pods if pod.workspace_id in only]
        found = listing(pods, claims)
        if only is None or len(only) <= MOST_NAMES:
            return found
        return ClusterListing({home: one for home, one in found.homes.items() if home.workspace_id in only}, found.pods)

    # ── records ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def change(self, home: Home, decide: Decision, found: ClusterListing | None = None) -> ClusterListing:
        """Write the record that `decide` wants, again if the claim was changed meanwhile. The listing after that."""
        for _ in range(ATTEMPTS):
            found = found or await self.list(frozenset({home.workspace_id}))
            listed = found.of(home)
            record = decide(listed, found)
            if record is None:
                return found
            if (written := await self._write(listed, record)) is not None:
                return found.with_claim(home, written)
            found = None
            await asyncio.sleep(PAUSE_S)
        raise Unavailable(f"the claim {home_name(home)} is changed by several controllers at once")

    async def _write(self, listed: ClaimedHome, record: HomeRecord) -> ListedClaim | None:
        """None if the claim was changed meanwhile."""
        if listed.claim is None:
            if record.state is not RecordState.HALF_MADE:
                return None
            return await self._create(listed.home, record)
        annotations = manifests.record_annotations(record)
        return await self._patch(listed.claim, manifests.changed(listed.claim, annotations=annotations))

    async def _create(self, home: Home, record: HomeRecord) -> ListedClaim | None:
        name = home_name(home)
        try:
            created = await self._client.create(CLAIMS, manifests.claim(self._options, home, record))
        except ClusterRefusal as refusal:
            if refusal.status != CONFLICT:
                raise Failed(
                    Code.VOLUME_CREATE_FAILED, f"the cluster did not create the claim {name}: {refusal.message}"
                ) from refusal
            current = await self._client.get(CLAIMS, name)
            if current is not None and listed_claim(current) is None:
                message = f"the cluster has a claim {name} that is not Torpor's; save its files and delete it"
                raise Failed(Code.VOLUME_CREATE_FAILED, message) from refusal
            return None
        return listed_claim(created)

    async def _patch(self, claim: ListedClaim, change: dict[str, object]) -> ListedClaim | None:
        try:
            return listed_claim(await self._client.patch(CLAIMS, claim.name, change))
        except ClusterRefusal as refusal:
            if refusal.status in (CONFLICT, NOT_FOUND):
                return None
            raise Failed(
                Code.VOLUME_CREATE_FAILED, f"the cluster did not change the claim {claim.name}: {refusal.message}"
            ) from refusal

    async def note_made(self, home: Home, birth: str) -> None:
        """From now on, a volume without the folders of this home is refused."""
        for _ in range(ATTEMPTS):
            claim = (await self.list(frozenset({home.workspace_id}))).of(home).claim
            if claim is None or claim.birth != birth:
                raise Failed(Code.VOLUME_NOT_READY, f"the claim {home_name(home)} was removed meanwhile")
            if claim.is_made or await self._patch(claim, manifests.changed(claim, annotations={MADE: "true"})) is not None:
                return
            await asyncio.sleep(PAUSE_S)
        raise Unavailable(f"the claim {home_name(home)} is changed by several controllers at once")

    async def grow(self, claim: ListedClaim) -> None:
        """Ask for the size of the settings, if it is larger. The cluster decides whether the volume can grow."""
        size = self._options.volume_size
        if not is_larger(size, claim.requested):
            return
        try:
            await self._client.patch(CLAIMS, claim.name, {"spec": {"resources": {"requests": {"storage": size}}}})
        except (ClusterRefusal, Failed) as refusal:  # the workspace starts with the volume as it is
            log.warning("volume_not_grown", claim=claim.name, size=size, why=refusal.message)

    # ── removal ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def remove(self, home: Home, decide: Decision, found: ClusterListing) -> None:
        """Mark the home as going, then remove everything of it. The claim is last, so that an interrupted removal goes on."""
        if home not in found.homes:
            return
        listed = (await self.change(home, decide, found)).of(home)
        await self.remove_pods([pod for pod in (*listed.jobs, listed.pod) if pod is not None])
        if listed.claim is not None:
            await self._remove_claim(home, listed.claim)

    async def _remove_claim(self, home: Home, claim: ListedClaim) -> None:
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + CLAIM_S, 0.02
        while True:
            found = await self._client.get(CLAIMS, claim.name)
            current = listed_claim(found) if found is not None else None
            if current is None or current.uid != claim.uid:
                return
            if not isinstance(current.record, HomeRecord) or current.record.state is not RecordState.GOING:
                raise Failed(Code.VOLUME_NOT_READY, f"the claim {claim.name} was changed during its removal")
            if not current.deleted_at:
                await self._delete_claim(current)
                continue
            if set(current.finalizers) <= {FINALIZER}:
                await self._patch(current, manifests.changed(current, finalizers=None))
                continue
            if loop.time() > deadline:
                holders = ", ".join(sorted(set(current.finalizers) - {FINALIZER}))
                message = f"the claim {claim.name} is still in use: Kubernetes keeps it ({holders})"
                raise Unavailable(f"{message}; see which pods use it: kubectl describe pvc {claim.name}")
            await asyncio.sleep(pause_s)
            pause_s = min(0.5, pause_s * 1.5)

    async def _delete_claim(self, claim: ListedClaim) -> None:
        try:
            await self._client.delete(CLAIMS, claim.name, uid=claim.uid, version=claim.version)
        except ClusterRefusal as refusal:
            if refusal.status != CONFLICT:  # otherwise it was changed meanwhile, and is read again
                raise Failed(
                    Code.INTERNAL, f"the cluster does not delete the claim {claim.name}: {refusal.message}"
                ) from refusal

    async def remove_pods(self, pods: Sequence[ListedPod]) -> None:
        """Delete these pods and wait until their nodes confirm their end, however long that takes: never by force."""
        for pod in pods:
            await self._client.delete(PODS, pod.name, uid=pod.uid)
        for pod in pods:
            left = await until_gone(self._client, PODS, pod.name, pod.uid, self._options.grace_s + END_S)
            if left is not None:
                raise Unavailable(still_there(listed_pod(left)))
            await self.remove_key(pod)

    async def remove_key(self, pod: ListedPod) -> None:
        """Of a pod that is gone. Its Secret is still there if its agent has never answered."""
        if NONCE in pod.facts:
            await self._client.delete(SECRETS, manifests.secret_name(pod.name, pod.facts[NONCE]))
