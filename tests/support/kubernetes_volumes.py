"""Provision volumes for a Kubernetes cluster of tests: every PersistentVolume is a folder of this machine.

    python -m tests.support.kubernetes_volumes KUBECONFIG FOLDER

It acts like the provisioner of a real cluster: it waits until the scheduler has chosen a node, creates the volume, expands it
when the claim requests more, and removes volume and files when the claim is gone. A volume of the class `local` can be used
only on its node, one of the class `shared` on every node, like a disk on the network.
"""

import contextlib
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
from lightkube import ApiError, Client, KubeConfig
from lightkube.models.core_v1 import (
    LocalVolumeSource,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ObjectReference,
    PersistentVolumeSpec,
    VolumeNodeAffinity,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from lightkube.resources.storage_v1 import StorageClass

PROVISIONER = "torpor.test/folders"
LOCAL, SHARED = "local", "shared"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
NOT_THERE, EXISTS = 404, 409
EVERY_S = 2.0


def storage_classes() -> list[dict[str, Any]]:
    """`local` is the default of the cluster."""
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": name,
                "annotations": {"storageclass.kubernetes.io/is-default-class": str(name == LOCAL).lower()},
            },
            "provisioner": PROVISIONER,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": True,
        }
        for name in (LOCAL, SHARED)
    ]


class Provisioner:
    def __init__(self, client: Client, folder: Path) -> None:
        self._client = client
        self._folder = folder

    def provision(self, claim: PersistentVolumeClaim) -> None:
        """Create the volume of a claim that waits for one."""
        assert claim.metadata
        assert claim.spec
        node = (claim.metadata.annotations or {}).get(SELECTED_NODE)
        if claim.spec.volumeName or not claim.spec.storageClassName or not node:
            return
        storage = self._client.get(StorageClass, claim.spec.storageClassName)
        if storage.provisioner != PROVISIONER:
            return
        assert claim.spec.resources
        name = f"pvc-{claim.metadata.uid}"
        path = self._folder / name
        path.mkdir(exist_ok=True)
        path.chmod(0o777)  # as the root of a new disk would be with an fsGroup, and without one, too
        label = ("kubernetes.io/hostname", node) if claim.spec.storageClassName == LOCAL else ("kubernetes.io/os", "linux")
        term = NodeSelectorTerm(matchExpressions=[NodeSelectorRequirement(label[0], "In", [label[1]])])
        volume = PersistentVolume(
            metadata=ObjectMeta(name=name, annotations={PROVISIONED_BY: PROVISIONER}),
            spec=PersistentVolumeSpec(
                accessModes=claim.spec.accessModes,
                capacity=claim.spec.resources.requests,
                claimRef=ObjectReference(
                    apiVersion="v1",
                    kind="PersistentVolumeClaim",
                    name=claim.metadata.name,
                    namespace=claim.metadata.namespace,
                    uid=claim.metadata.uid,
                ),
                local=LocalVolumeSource(str(path)),
                nodeAffinity=VolumeNodeAffinity(required=NodeSelector([term])),
                persistentVolumeReclaimPolicy=storage.reclaimPolicy,
                storageClassName=claim.spec.storageClassName,
                volumeMode=claim.spec.volumeMode,
            ),
        )
        self._client.create(volume)

    def expand(self, claim: PersistentVolumeClaim) -> None:
        """Give a bound claim the size that it requests; the API server allows only larger ones."""
        assert claim.metadata
        assert claim.metadata.name
        assert claim.spec
        assert claim.spec.resources
        storage = (claim.spec.resources.requests or {}).get("storage")
        has = (claim.status and claim.status.capacity) or {}
        if not claim.spec.volumeName or not has or has.get("storage") == storage:
            return
        volume = self._client.get(PersistentVolume, claim.spec.volumeName)
        assert volume.metadata
        if (volume.metadata.annotations or {}).get(PROVISIONED_BY) != PROVISIONER:
            return
        size = {"capacity": {"storage": storage}}
        self._client.patch(PersistentVolume, claim.spec.volumeName, {"spec": size})
        status = PersistentVolumeClaim.Status
        self._client.patch(status, claim.metadata.name, {"status": size}, namespace=claim.metadata.namespace)

    def reclaim(self, volume: PersistentVolume) -> None:
        """Remove a volume whose claim is gone."""
        assert volume.metadata
        assert volume.metadata.name
        assert volume.spec
        if (volume.metadata.annotations or {}).get(PROVISIONED_BY) != PROVISIONER:
            return
        is_released = volume.status is not None and volume.status.phase == "Released"
        if is_released and volume.spec.persistentVolumeReclaimPolicy == "Delete":
            self._client.delete(PersistentVolume, volume.metadata.name)
            shutil.rmtree(self._folder / volume.metadata.name, ignore_errors=True)

    def pass_over_all(self) -> None:
        for claim in self._client.list(PersistentVolumeClaim, namespace="*"):
            self._attempt(self.provision, claim)
            self._attempt(self.expand, claim)
        for volume in self._client.list(PersistentVolume):
            self._attempt(self.reclaim, volume)

    def _attempt(self, handle: Callable[[Any], None], found: Any) -> None:
        try:
            handle(found)
        except ApiError as error:
            # It has changed since the list.
            if error.status.code not in (NOT_THERE, EXISTS):
                raise


def notice(events: Callable[[], Iterator[object]], changed: threading.Event) -> None:
    """An event is a hint that there is something to do; a lost one delays it until the next pass."""
    while True:
        with contextlib.suppress(httpx2.HTTPError):
            for _ in events():
                changed.set()
        changed.wait(EVERY_S)


def main(kubeconfig: str, folder: str) -> None:
    client = Client(KubeConfig.from_file(kubeconfig), trust_env=False)
    provisioner = Provisioner(client, Path(folder))
    changed = threading.Event()
    watches: tuple[Callable[[], Iterator[object]], ...] = (
        lambda: client.watch(PersistentVolumeClaim, namespace="*"),
        lambda: client.watch(PersistentVolume),
    )
    for events in watches:
        threading.Thread(target=notice, args=(events, changed), daemon=True).start()
    while True:
        changed.clear()
        try:
            provisioner.pass_over_all()
        except httpx2.HTTPError as error:
            print(f"cannot provision now: {error!r}", flush=True)
        changed.wait(EVERY_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
