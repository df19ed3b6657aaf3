"""Watch the pods of workspaces: which of them end, or are deleted."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

import msgspec

from torpor.domain.errors import Unavailable
from torpor.runtimes.kubernetes.cluster_client import PODS, ClusterClient
from torpor.runtimes.object_labels import INSTALLATION, KIND, WORKSPACE, ObjectKind

SHORTEST_S = 1.0
"""The cluster ends each watch after a while; one that ends sooner than this does not work."""
OVER = ("Succeeded", "Failed")


class _Metadata(msgspec.Struct, rename="camel"):
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Status(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    status: _Status | str = msgspec.field(default_factory=_Status)
    """Text in an error, which has the message of it."""
    message: str = ""


class _Change(msgspec.Struct):
    type: str
    object: _Pod


_CHANGES = msgspec.json.Decoder(_Change)


async def changes(client: ClusterClient, installation: str, has_connected: Callable[[], None]) -> AsyncGenerator[str, None]:
    """The stream of `ChangeHints`."""
    selector = f"{INSTALLATION}={installation},{KIND}={ObjectKind.WORKSPACE}"
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        async with contextlib.aclosing(client.watched(PODS, selector, has_connected)) as lines:
            async for line in lines:
                if (workspace_id := changed_workspace(line)) is not None:
                    yield workspace_id
        if loop.time() - began < SHORTEST_S:
            return


def changed_workspace(line: bytes) -> str | None:
    """The workspace whose pod has ended, was deleted, or is being deleted; None for any other change."""
    try:
        change = _CHANGES.decode(line)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the cluster sent a change that cannot be read: {error}") from error
    pod = change.object
    if change.type == "ERROR":
        raise Unavailable(f"the cluster ended the watch of pods: {pod.message}")
    is_over = isinstance(pod.status, _Status) and pod.status.phase in OVER
    if change.type == "DELETED" or (change.type == "MODIFIED" and (is_over or pod.metadata.deletion_timestamp)):
        return (pod.metadata.labels or {}).get(WORKSPACE) or None
    return None
