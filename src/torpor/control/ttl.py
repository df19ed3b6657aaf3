"""Who is put to sleep because nobody uses it? (A duty of the leader.)

Rows tell whose time is up, the bus tells who is used all the same, `domain.idle` decides, and the service layer asks
everything once more in the transaction that writes the wish.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import structlog

from torpor import metrics
from torpor.activity import Ask, Touch
from torpor.domain.errors import Deposed, Unavailable
from torpor.domain.idle import BusSays, Facts, GoDown, decide
from torpor.domain.records import Workspace
from torpor.domain.states import Phase, Wish
from torpor.store.for_service import Due
from torpor.wishes import Wishes

log = structlog.get_logger()

PAGE = 500
# What each step down is called among the metrics.
TRANSITION: Mapping[Wish, str] = {Wish.STANDBY: "standby", Wish.ARCHIVED: "archive"}
# Of a lease: who was cut off from the bus and is connected has said so again after this long.
CONFIRM_AFTER_PART = 1 / 3


class IdleWatch:
    """Implements `control.duties.Duty`."""

    name = "ttl"

    def __init__(self, wishes: Wishes, ask: Ask, *, interval_s: float, lease_s: float) -> None:
        self.interval_s = interval_s
        self.wake = asyncio.Event()
        self._wishes = wishes
        self._ask = ask
        self._lease_s = lease_s

    async def do(self, term: int) -> None:
        # First what needs no bus: Unavailable ends the turn.
        async for page in self._pages(Wish.ARCHIVED):
            for due in page:
                if isinstance(decide(Facts(due.workspace, (), None, self._lease_s, due.now)), GoDown):
                    await self._let_sleep(due.workspace, Wish.ARCHIVED, term)
        idle = [workspace async for page in self._pages(Wish.STANDBY) for workspace in await self._idle_among(page, term)]
        if idle:
            # The bus may have been out of reach until just now, and then nobody could renew.
            await asyncio.sleep(self._lease_s * CONFIRM_AFTER_PART)
        for workspace in idle:
            await self._let_sleep(workspace, Wish.STANDBY, term)

    async def _pages(self, to: Wish) -> AsyncIterator[Sequence[Due]]:
        page: Sequence[Due] = ()
        while page := await self._wishes.due(to, after=page[-1] if page else None, limit=PAGE):
            yield page

    async def _idle_among(self, page: Sequence[Due], term: int) -> Sequence[Workspace]:
        """Those whom nobody uses; of the others it is written down when they were used."""
        says = await self._ask([due.workspace.id for due in page])
        await self._wishes.used(_used_ago_s(page, says), term=term)
        return [
            due.workspace
            for due in page
            if isinstance(decide(Facts(due.workspace, (), says[due.workspace.id], self._lease_s, due.now)), GoDown)
        ]

    async def _let_sleep(self, workspace: Workspace, to: Wish, term: int) -> None:
        try:
            slept = await self._wishes.let_sleep(workspace.id, term=term, to=to, ask=self._ask, lease_s=self._lease_s)
        except (Deposed, Unavailable):
            raise
        except Exception:
            # It must not keep all the others awake.
            log.exception("not_put_to_sleep", workspace=workspace.name, to=to)
            return
        if slept:
            metrics.ttl_expirations_total.labels(transition=TRANSITION[to]).inc()
            log.info("put_to_sleep", workspace=workspace.name, to=to)


def _used_ago_s(page: Sequence[Due], says: Mapping[str, BusSays]) -> dict[str, float]:
    """Whose connection is live is used now; an idle timer was started its whole length before it runs out."""
    ago_s: dict[str, float] = {}
    for due in page:
        workspace, said = due.workspace, says[due.workspace.id]
        if said.connections:
            ago_s[workspace.id] = 0
        elif said.idle_timer_s is not None:
            ago_s[workspace.id] = max(0, workspace.standby_ttl_s - said.idle_timer_s)
    return ago_s


def touch_on_running(touch: Touch) -> Callable[[Workspace], None]:
    """To be called with a workspace whose phase has just changed: one that runs now is not idle from its first second."""

    def on_phase(workspace: Workspace) -> None:
        if workspace.phase is Phase.RUNNING:
            touch(workspace.id, workspace.standby_ttl_s)

    return on_phase
