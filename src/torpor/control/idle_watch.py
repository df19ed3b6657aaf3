"""Stop and archive workspaces that are not in use. A duty of the leader.

The rows show whose TTL has passed, the bus shows which of them are in use, `domain/idle.py` decides, and the service layer
checks everything again in the transaction that writes the wish. `domain/sleep_warning.py` decides which users are warned
before.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import structlog

from torpor import metrics
from torpor.domain.errors import Deposed, Unavailable
from torpor.domain.idle import GoToSleep, IdleFacts, UseReport, decide, has_outlived_ttl
from torpor.domain.records import Workspace
from torpor.domain.sleep_warning import is_news, sleeps_at
from torpor.domain.states import Phase, Wish
from torpor.loops import TURN_S, report_progress
from torpor.service.activity import BusOut, ReadUse, Touch
from torpor.service.use import UseService
from torpor.store.service_store import DueWorkspace, SleepWarning

log = structlog.get_logger()

PAGE = 500
# The name of each automatic step in the metrics.
TRANSITION: Mapping[Wish, str] = {Wish.STANDBY: "standby", Wish.ARCHIVED: "archive"}
# Part of a lease. After an outage of the bus this process may reconnect first. Another process may have just begun an attempt
# that fails after a third of a lease; it waits for a sixth and tries again (`torpor.service.activity`). The rest is for that
# message to arrive.
CONFIRM_AFTER_PART = 2 / 3
# A row that cannot be written is skipped; after this many in a row the cause is not the row.
MOST_FAILURES = 3
# Part of the interval: a turn comes early for a warning, and while one exists, so that it is withdrawn soon after use.
SHORTEST_PAUSE_PART = 0.1
SHORTEST_PAUSE_S = 1.0


class IdleWatch:
    """Implements `control.duties.Duty`."""

    name = "ttl"

    def __init__(self, using: UseService, ask: ReadUse, *, interval_s: float, lease_s: float) -> None:
        self.interval_s = interval_s
        self.turn_s = TURN_S + lease_s * CONFIRM_AFTER_PART
        self.wake = asyncio.Event()
        self._using = using
        self._ask = ask
        self._lease_s = lease_s
        self._failures = 0
        self._has_warned = False
        """A workspace has a warning, from this turn or before, and is not stopped yet."""

    def rest(self) -> None:
        """There is no state of the leader."""

    async def do(self, term: int) -> float:
        """Return a short pause while a warning exists or the next one is near."""
        self._failures, self._has_warned = 0, False
        # First what needs no bus: one that is out ends the turn.
        async for page in self._pages(Wish.ARCHIVED):
            for due in page:
                if isinstance(decide(IdleFacts(due.workspace, (), None, self._lease_s, due.now)), GoToSleep):
                    await self._let_sleep(due.workspace, Wish.ARCHIVED, term)
        # Asked though no workspace may be due: from the first question on, the bus knows how far back its memory reaches.
        await self._ask(())
        idle = [workspace async for page in self._pages(Wish.STANDBY) for workspace in await self._idle_among(page, term)]
        if idle:
            await asyncio.sleep(self._lease_s * CONFIRM_AFTER_PART)
        for workspace in idle:
            await self._let_sleep(workspace, Wish.STANDBY, term)
        shortest_s = max(self.interval_s * SHORTEST_PAUSE_PART, SHORTEST_PAUSE_S)
        next_due_s = shortest_s if self._has_warned else await self._using.next_due_in_s()
        return self.interval_s if next_due_s is None else min(self.interval_s, max(shortest_s, next_due_s))

    async def _pages(self, to: Wish) -> AsyncIterator[Sequence[DueWorkspace]]:
        page = await self._using.due(to, after=None, limit=PAGE)
        while page.last is not None:
            report_progress()
            yield page.due
            page = await self._using.due(to, after=page.last, limit=PAGE)

    async def _idle_among(self, page: Sequence[DueWorkspace], term: int) -> Sequence[Workspace]:
        """Return the workspaces that are not in use. Write when the others were used, and when each is going to be stopped."""
        says = await self._ask([due.workspace.id for due in page])
        await self._using.used(_used_ago_s(page, says), term=term)
        self._shorten_timers(page, says)
        known = [IdleFacts(due.workspace, due.leases, says[due.workspace.id], self._lease_s, due.now) for due in page]
        await self._warn(known, term)
        return [facts.workspace for facts in known if isinstance(decide(facts), GoToSleep)]

    async def _warn(self, known: Sequence[IdleFacts], term: int) -> None:
        found = [(facts, sleeps_at(facts)) for facts in known]
        news = [SleepWarning(facts.workspace, at) for facts, at in found if is_news(facts.workspace.sleeps_at, at)]
        try:
            await self._using.warn(news, term=term)
        except (Deposed, Unavailable):
            raise
        except Exception:
            # A workspace is stopped also if its users could not be warned.
            log.exception("not_warned", workspaces=[one.workspace.name for one in news])
            return
        for one in news:
            at = one.sleeps_at.isoformat() if one.sleeps_at else None
            log.info("sleeping_soon" if at else "not_sleeping_soon", workspace=one.workspace.name, at=at)
        self._has_warned = self._has_warned or any(at is not None and at > facts.now for facts, at in found)

    def _shorten_timers(self, page: Sequence[DueWorkspace], says: Mapping[str, UseReport]) -> None:
        """A lowered TTL counts from now on, also for timers that were started with the old TTL."""
        for due in page:
            left_s = says[due.workspace.id].idle_timer_s
            if left_s is not None and has_outlived_ttl(due.workspace, left_s):
                self._using.touch(due.workspace.id, due.workspace.standby_ttl_s)

    async def _let_sleep(self, workspace: Workspace, to: Wish, term: int) -> None:
        report_progress()
        try:
            slept = await self._using.let_sleep(workspace.id, term=term, to=to, ask=self._ask, lease_s=self._lease_s)
        except (Deposed, BusOut):
            raise
        except Exception:
            # One failure must not keep the other workspaces awake.
            log.exception("not_put_to_sleep", workspace=workspace.name, to=to)
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                raise
            return
        self._failures = 0
        if slept:
            metrics.ttl_expirations_total.labels(transition=TRANSITION[to]).inc()
            log.info("put_to_sleep", workspace=workspace.name, to=to)


def _used_ago_s(page: Sequence[DueWorkspace], says: Mapping[str, UseReport]) -> dict[str, float]:
    """A workspace with a live connection or busy processes is in use now; otherwise the idle timer started at the last use."""
    ago_s: dict[str, float] = {}
    for due in page:
        workspace, said = due.workspace, says[due.workspace.id]
        if said.connections or said.busy:
            ago_s[workspace.id] = 0
        elif said.idle_timer_s is not None:
            ago_s[workspace.id] = max(0, workspace.standby_ttl_s - said.idle_timer_s)
    return ago_s


def touch_on_running(touch: Touch) -> Callable[[Workspace], None]:
    """Return a callback for phase changes that starts the idle timer of a workspace that begins to run."""

    def on_phase(workspace: Workspace) -> None:
        if workspace.phase is Phase.RUNNING:
            touch(workspace.id, workspace.standby_ttl_s)

    return on_phase
