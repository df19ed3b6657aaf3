"""Report containers that end and homes that disappear as soon as the engine says so.

Its events are only hints: an event that is lost, or a stream that breaks, costs the time until the next full resync.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from torpor.domain.errors import Unavailable
from torpor.loops import Loop, report_progress, stop
from torpor.runtimes.docker.docker_client import DockerClient, EngineRefusal
from torpor.runtimes.object_labels import INSTALLATION, KIND, WORKSPACE, ObjectKind, parse_home_name

log = structlog.get_logger()

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
QUIET_S = 30.0
"""An engine may have no events for days; the watchdog hears from the loop this often."""
ENDS = frozenset({"die", "oom", "destroy", "remove"})
"""What happened to an object; `remove` is Podman's word for `destroy`."""


class EngineEvents:
    def __init__(self, client: DockerClient, installation: str, on_change: Callable[[str], None]) -> None:
        self._client = client
        self._installation = installation
        self._on_change = on_change
        self._is_lost = False
        self._pause_s = FIRST_PAUSE_S

    async def run(self) -> None:
        """Until cancelled."""
        await Loop("engine-events", self._listen, interval_s=LONGEST_PAUSE_S).run()

    async def _listen(self) -> float:
        """Listen until the stream ends; return the pause before the next attempt."""
        reading = asyncio.ensure_future(self._read())
        try:
            while not reading.done():
                await asyncio.wait({reading}, timeout=QUIET_S)
                report_progress()
            reading.result()
            why = "the engine ended the stream"
        except (Unavailable, EngineRefusal) as error:
            why = error.message
        finally:
            await stop(reading)
        if not self._is_lost:
            log.warning("engine_events_lost", why=why)
        self._is_lost = True
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s

    async def _read(self) -> None:
        async with contextlib.aclosing(self._client.events(self._has_connected)) as events:
            async for event in events:
                if (workspace_id := changed_workspace(event, self._installation)) is not None:
                    self._on_change(workspace_id)

    def _has_connected(self) -> None:
        if self._is_lost:
            log.info("engine_events_resumed")
        self._is_lost, self._pause_s = False, FIRST_PAUSE_S


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
