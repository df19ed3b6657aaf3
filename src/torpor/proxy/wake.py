"""How do any number of requests cause one wake, and wait for its end?"""

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

# However many knock, and are refused: the database is not asked again before this has passed.
REFUSED_FOR_S = 1.0
# An event may be lost, or nobody may be there to publish it: whoever waits looks by themselves.
LOOK_EVERY_S = 1.0
# It runs, and where it can be reached is not known here yet: of that no event tells.
REACH_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class WorkspaceReadiness:
    """How a workspace stands just now."""

    workspace: Workspace | None
    standing: Readiness


class WakeService:
    def __init__(
        self,
        wishes: Wishes,
        using: UseService,
        routes: Routes,
        *,
        is_reachable: Callable[[str], bool],
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
        return readiness(workspace, is_reachable=workspace is not None and self._is_reachable(workspace.id))

    async def wake(self, caller: Caller, workspace: Workspace) -> Refused | None:
        """It is wished to run from now on; or why not. Who comes meanwhile waits for the same answer."""
        refused = self._refused.get(workspace.id)
        if refused is not None and self._now() - refused[0] < REFUSED_FOR_S:
            return refused[1]
        wake = self._wakes.get(workspace.id)
        if wake is None:
            wake = self._wakes[workspace.id] = asyncio.create_task(self._wake(caller, workspace), name=f"wake {workspace.name}")
            wake.add_done_callback(functools.partial(_forget, self._wakes, workspace.id))
        # Whoever knocked first may be gone before the others.
        return await asyncio.shield(wake)

    def ask_anew(self) -> None:
        """Somebody has made room: whoever was refused need not be again."""
        self._refused.clear()

    async def stay(self, workspace: Workspace) -> Workspace:
        """Somebody came just as it was put to sleep (`using.stay`). As it is now."""
        stay = self._stays.get(workspace.id)
        if stay is None:
            stay = self._stays[workspace.id] = asyncio.create_task(self._stay(workspace), name=f"stay {workspace.name}")
            stay.add_done_callback(functools.partial(_forget, self._stays, workspace.id))
        return await asyncio.shield(stay)

    async def until(self, name: str, is_enough: Callable[[WorkspaceReadiness], bool], *, within_s: float) -> WorkspaceReadiness:
        """How it stands as soon as that is enough, or when the time is up."""
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
        # Its event is on the way; until then it would be woken again and again.
        self._routes.forget(workspace.id, workspace.name)
        return None

    async def _stay(self, workspace: Workspace) -> Workspace:
        now = await self._using.stay(workspace)
        self._routes.forget(workspace.id, workspace.name)
        return now


def _forget(tasks: dict[str, Any], workspace_id: str, _done: object) -> None:
    del tasks[workspace_id]
