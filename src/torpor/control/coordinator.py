"""Run the membership, the controller and, if this process leads, the duties of the leader.

Each process has a membership (`membership`), reconciles the workspaces of its shards (`controller`), and tries to become the
leader, which runs the duties that must run once. When a membership ends, all of this ends with it, and a new membership begins.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from torpor import metrics
from torpor.control.controller import Controller
from torpor.control.duties import Duty, run_duty
from torpor.control.membership import HeartbeatOptions, Membership, NodeIdentity
from torpor.control.runtime_sight import RuntimeSight
from torpor.domain.errors import Deposed, TorporError, Unavailable
from torpor.domain.shards import shard_of
from torpor.loops import Loop, first_to_end, run_until_first_ends, start_tasks, stop
from torpor.store.controller_members import Member
from torpor.store.controller_store import ControllerStore
from torpor.store.leader_lock import Leadership

log = structlog.get_logger()

BETWEEN_LIVES_S = 0.5
# Between two requests to a runtime that did not answer: each lists everything.
ASK_AGAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class LeaderLockOptions:
    """The lock of the leader."""

    url: str
    lock_id: int
    retry_s: float


class Coordinator:
    def __init__(
        self,
        store: ControllerStore,
        identity: NodeIdentity,
        heartbeat: HeartbeatOptions,
        lock: LeaderLockOptions,
        *,
        make_controller: Callable[[Membership], Controller],
        duties: Sequence[Duty],
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called after each transaction that changes a workspace, while this process leads."""
        self.node_id = identity.node_id
        self.controller: Controller | None = None
        self.term: int | None = None
        self._store = store
        self._identity = identity
        self._heartbeat = heartbeat
        self._lock = lock
        self._make_controller = make_controller
        self._duties = duties
        self._on_change = on_change
        self._membership: Membership | None = None
        self._joined: Membership | None = None
        self._stepped_aside: Controller | None = None
        """The last controller, if its runtime did not answer when its life ended."""
        self._began = time.monotonic()

    @property
    def is_leader(self) -> bool:
        return self.term is not None

    @property
    def life(self) -> int | None:
        return self._membership.life if self._membership else None

    @property
    def members(self) -> Sequence[Member]:
        return self._membership.members if self._membership else ()

    @property
    def uptime_s(self) -> float:
        """Of this process."""
        return time.monotonic() - self._began

    @property
    def last_look_age_s(self) -> float | None:
        """The age of the last full reconcile pass; None before the first."""
        if self.controller is None or self.controller.tally.last_look_at == float("-inf"):
            return None
        return time.monotonic() - self.controller.tally.last_look_at

    def owns(self, workspace_id: str) -> bool:
        """Whether a workspace is in a shard of this controller."""
        return self._membership is not None and shard_of(workspace_id) in self._membership.shards

    def hint(self, *workspace_ids: str) -> None:
        if self.controller is not None:
            self.controller.hint(*workspace_ids)

    async def join(self, *, within_s: float) -> None:
        """Become a member before anything else starts; raise Refused if a controller of another world stays a member."""
        self._joined = self._new_membership()
        await self._joined.join(within_s=within_s)

    async def leave(self) -> None:
        """End a membership that `run` has not taken over."""
        joined, self._joined = self._joined, None
        if joined is not None:
            await joined.leave()

    async def run(self) -> None:
        """Run one membership after the other until canceled."""
        await Loop("coordinator", self._live_once, interval_s=BETWEEN_LIVES_S).run()

    async def _live_once(self) -> float | None:
        membership, self._joined = self._joined or self._new_membership(), None
        try:
            if not membership.lives():
                if not await self._can_help():
                    return ASK_AGAIN_S
                await membership.join()
            await self._live(membership)
        except TorporError as error:
            log.warning("life_ended", node=self.node_id, why=error.message)
        return None

    async def _can_help(self) -> bool:
        """Whether a new life can do more than the members: the runtime answers, or there is no member."""
        earlier = self._stepped_aside
        return earlier is None or not await self._store.members() or await earlier.runtime_answers()

    def _new_membership(self) -> Membership:
        return Membership(self._store, self._identity, self._heartbeat, on_change=self.hint, sight=self._sight)

    def _sight(self) -> RuntimeSight:
        return self.controller.sight if self.controller is not None else RuntimeSight.UNKNOWN

    async def _live(self, membership: Membership) -> None:
        self._membership = membership
        self.controller = self._make_controller(membership)
        try:
            await run_until_first_ends(membership.keep(), self.controller.run(), self._stand_for_lead(membership))
        finally:
            self._stepped_aside = self.controller if self.controller.sight is RuntimeSight.SILENT else None
            self.controller, self._membership = None, None
            await membership.leave()

    async def _stand_for_lead(self, membership: Membership) -> None:
        await Loop("lead", partial(self._lead_once, membership), interval_s=self._lock.retry_s).run()

    async def _lead_once(self, membership: Membership) -> None:
        try:
            async with self._leadership() as leadership:
                if leadership is not None:
                    await self._lead(leadership, membership)
        except (Unavailable, Deposed) as error:
            log.warning("not_leading", why=error.message)

    @contextlib.asynccontextmanager
    async def _leadership(self) -> AsyncIterator[Leadership | None]:
        leadership = await Leadership.take(self._lock.url, lock_id=self._lock.lock_id, silent_after_s=self._heartbeat.expiry_s)
        try:
            yield leadership
        finally:
            if leadership is not None:
                await leadership.give_up()

    async def _lead(self, leadership: Leadership, membership: Membership) -> None:
        term = await leadership.begin_term(self.node_id, membership.life)
        await leadership.on_change(self._on_change)
        self.term = term
        metrics.is_leader.set(1)
        log.info("leading", node=self.node_id, life=membership.life, term=term)
        tasks = start_tasks(leadership.wait_until_lost(), *(run_duty(duty, term) for duty in self._duties))
        try:
            await first_to_end(tasks)
        finally:
            # Before the duties are stopped, which may take time: a process whose duties end is not the leader.
            self.term = None
            metrics.is_leader.set(0)
            try:
                await stop(*tasks)
            finally:
                for duty in self._duties:
                    duty.rest()
                await leadership.end_term(term)
