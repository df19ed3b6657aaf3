"""Decide which workspaces the events of an engine are about: containers that end, and homes that disappear."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from torpor.runtimes.docker.docker_client import DockerClient
from torpor.runtimes.object_labels import INSTALLATION, KIND, WORKSPACE, ObjectKind, parse_home_name

ENDS = frozenset({"die", "oom", "destroy", "remove"})
"""What happened to an object; `remove` is Podman's word for `destroy`."""


async def changes(client: DockerClient, installation: str, has_connected: Callable[[], None]) -> AsyncGenerator[str, None]:
    """The stream of `ChangeHints`."""
    async with contextlib.aclosing(client.events(has_connected)) as events:
        async for event in events:
            if (workspace_id := changed_workspace(event, installation)) is not None:
                yield workspace_id


def changed_workspace(event: Mapping[str, Any], installation: str) -> str | None:
    """The workspace whose container ended or was removed, or whose home was removed; None for any other event."""
    actor = event.get("Actor") or {}
    attributes = actor.get("Attributes") or {}
    if event.get("Action") not in ENDS:
        return None
    if event.get("Type") == "volume":
        # Such an event has no labels; Podman has the name in another place.
        home = parse_home_name(str(actor.get("ID") or attributes.get("name", "")))
        return home.workspace_id if home is not None else None
    is_ours = attributes.get(INSTALLATION) == installation and attributes.get(KIND) == ObjectKind.WORKSPACE
    return str(attributes.get(WORKSPACE, "")) or None if is_ours else None
