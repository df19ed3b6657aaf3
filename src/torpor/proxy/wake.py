"""Wake a workspace once for any number of requests, and wait until it is ready."""

import asyncio
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torpor.accounts import Caller
from torpor.domain.errors import Refused
from torpor.domain.records import Workspace
from torpor.domain.states import Phase
from torpor.proxy.readiness import Readiness, readiness
from torpor.proxy.route_cache import Routes
from torpor.service.use import UseService
from torpor.service.wishes import Wishes

# After a refusal the database is not asked again before this time, however many requests come.
REFUSED_FOR_S = 1.0
# An event may be lost or not be published, so waiting requests poll as well.
LOOK_EVERY_S = 1.0
# A workspace may be running before its address is known here, and no event tells when it is.
REACH_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class WorkspaceReadiness:
    """The present status of a workspace."""

    workspace: Workspace | None
    standing: Readiness


class WakeService:
    def __init__(
        self,
        wishes: Wishes,
        using: UseService,
        routes: Routes,
        *,
        is_reachable: Callable[[Workspace], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wishes = wishes
        self._using = using
        self._routes = routes
        self._is_reachable = is_reachable
        self._now = now
        self._wakes: dict[str, asyncio.Task[Refused | None]] = {}
        self._stays: dict[str, asyncio.Task[Workspace]] = {}
        self._refused: dict[str, tuple[float, Refused]] = {}

    def standing(self, workspace: Workspace | None) -> Readiness:
        return readiness(workspace, is_reachable=workspace is not None and self._is_reachable(workspace))

    async def wake(self, caller: Caller, workspace: Workspace) -> Refused | None:
        """Request RUNNING; returns the refusal, if any. Concurrent calls share one request."""
        refused = self._refused.get(workspace.id)
        if refused is not None and self._now() - refused[0] < REFUSED_FOR_S:
            return refused[1]
        wake = self._wakes.get(workspace.id)
        if wake is None:
            wake = self._wakes[workspace.id] = asyncio.create_task(self._wake(caller, workspace), name=f"wake {workspace.name}")
            wake.add_done_callback(functools.partial(_forget, self._wakes, workspace.id))
        # The first caller may disconnect before the others.
        return await asyncio.shield(wake)

    def ask_anew(self) -> None:
        """A workspace was stopped: forget the refusals."""
        self._refused.clear()

    async def stay(self, workspace: Workspace) -> Workspace:
        """A request came just as the workspace was about to be stopped (`UseService.stay`). Returns the present row."""
        stay = self._stays.get(workspace.id)
        if stay is None:
            stay = self._stays[workspace.id] = asyncio.create_task(self._stay(workspace), name=f"stay {workspace.name}")
            stay.add_done_callback(functools.partial(_forget, self._stays, workspace.id))
        return await asyncio.shield(stay)

    async def until(self, name: str, is_enough: Callable[[WorkspaceReadiness], bool], *, within_s: float) -> WorkspaceReadiness:
        """The status as soon as `is_enough` accepts it, or when the time is up."""
        end = self._now() + within_s
        while True:
            workspace = await self._routes.find(name, at_most_s_old=LOOK_EVERY_S)
            stand = WorkspaceReadiness(workspace, self.standing(workspace))
            left_s = end - self._now()
            if is_enough(stand) or left_s <= 0 or workspace is None:
                return stand
            if self._routes.known(name) is not None:
                is_about_to_answer = workspace.phase is Phase.RUNNING and stand.standing is Readiness.WAKING
                look_s = REACH_EVERY_S if is_about_to_answer else LOOK_EVERY_S
                await self._routes.changed(workspace.id, within_s=min(left_s, look_s))

    async def _wake(self, caller: Caller, workspace: Workspace) -> Refused | None:
        try:
            await self._wishes.wake(caller, workspace.id)
        except Refused as refused:
            self._refused = {one: kept for one, kept in self._refused.items() if self._now() - kept[0] < REFUSED_FOR_S}
            self._refused[workspace.id] = (self._now(), refused)
            return refused
        # Its event arrives later; until then the cached row would cause further wakes.
        self._routes.forget(workspace.id, workspace.name)
        return None

    async def _stay(self, workspace: Workspace) -> Workspace:
        now = await self._using.stay(workspace)
        self._routes.forget(workspace.id, workspace.name)
        return now


def _forget(tasks: dict[str, Any], workspace_id: str, _done: object) -> None:
    del tasks[workspace_id]
