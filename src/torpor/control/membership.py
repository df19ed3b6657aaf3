"""Keep this controller a member, and compute the shards that it owns.

A membership (a *life*) is one row with an expiry, renewed by heartbeats. A controller whose heartbeat is too late is no longer
a member. It knows that from its own monotonic clock, also without the database, and joins again as a new life. A controller
whose runtime does not answer ends its life if the runtime answers another member, which then takes over.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from torpor.control.runtime_sight import RuntimeSight
from torpor.domain.errors import Deposed, Refused, TorporError, Unavailable
from torpor.domain.shards import shards_of
from torpor.domain.unconfined import CONFINED, ControllerConfinement
from torpor.loops import Loop
from torpor.store.controller_members import Member
from torpor.store.controller_store import ControllerStore

log = structlog.get_logger()

FIRST_TRIES_S = 0.2
# How long a canceled statement takes to return its connection if the database hangs.
CONNECTION_S = 15.0
# How long the runtime must have answered another member before one that it does not answer ends its life. At the end of an
# outage, it does not answer all members at the same moment.
OTHERS_ANSWERED_S = 5.0
# Refusals that end when another controller stops or expires.
ENDS_BY_ITSELF = frozenset({"already_controlled", "name_in_use"})


def _since_boot_s() -> float:
    """A clock that continues while the machine is suspended, if there is one: other controllers do not wait for this one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    node_id: str
    world: str
    """The identity of its runtime: controllers of different worlds do not share a database."""
    is_exclusive: bool
    """Only one process can use this world, so the previous one has ended."""
    confinement: ControllerConfinement = CONFINED
    accepted_world: str | None = None
    """The operator accepts this world although the homes of the database are at another one."""


@dataclass(frozen=True, slots=True)
class HeartbeatOptions:
    interval_s: float
    expiry_s: float


class Membership:
    """One membership (life), from its join to its end."""

    def __init__(
        self,
        store: ControllerStore,
        identity: NodeIdentity,
        heartbeat: HeartbeatOptions,
        *,
        on_change: Callable[[], None] = lambda: None,
        sight: Callable[[], RuntimeSight] = lambda: RuntimeSight.ANSWERS,
        monotonic: Callable[[], float] = _since_boot_s,
    ) -> None:
        self.life = 0
        self.members: Sequence[Member] = ()
        self.shards: frozenset[int] = frozenset()
        self._store = store
        self._identity = identity
        self._heartbeat = heartbeat
        self._on_change = on_change
        self._sight = sight
        self._monotonic = monotonic
        self._lives_until = 0.0
        self._others_answered_since: float | None = None
        """Since when each heartbeat has found another member that the runtime answers."""

    def lives(self) -> bool:
        """Whether no other controller can have taken over yet."""
        return self._monotonic() < self._lives_until

    async def join(self, *, within_s: float = 0.0) -> None:
        """Become a member; raise Refused if another controller prevents it permanently, or for longer than `within_s`."""
        until = self._monotonic() + within_s
        while True:
            began = self._monotonic()
            try:
                self.life = await self._store.join(
                    self._identity.node_id,
                    self._identity.world,
                    expiry_s=self._heartbeat.expiry_s,
                    exclusive=self._identity.is_exclusive,
                    confinement=self._identity.confinement,
                    accepted=self._identity.accepted_world,
                )
            except Refused as refused:
                if refused.code not in ENDS_BY_ITSELF or self._monotonic() >= until:
                    raise
                await asyncio.sleep(FIRST_TRIES_S)
            else:
                self._lives_until = began + self._heartbeat.expiry_s
                await self._update_members()
                log.info("joined", node=self._identity.node_id, life=self.life, members=[one.node_id for one in self.members])
                return

    async def keep(self) -> None:
        """Send heartbeats until canceled; raise Deposed if one was too late."""
        interval_s, expiry_s = self._heartbeat.interval_s, self._heartbeat.expiry_s
        loop = Loop(
            "membership",
            self._send_heartbeat,
            interval_s=interval_s,
            first_after_s=interval_s,
            turn_s=expiry_s + CONNECTION_S,
            ends_on=(Deposed,),
        )
        await loop.run()

    async def _send_heartbeat(self) -> None:
        began = self._monotonic()
        try:
            async with asyncio.timeout(max(0.1, self._lives_until - began)):
                await self._renew(began)
        except (Unavailable, TimeoutError) as out:
            log.warning("heartbeat_missed", life=self.life, why=str(out) or "no answer in time")
        except Exception:
            self._require_life()
            raise
        self._require_life()

    async def _renew(self, began: float) -> None:
        sight = self._sight()
        is_answered = sight is RuntimeSight.ANSWERS
        if not await self._store.live_on(self.life, expiry_s=self._heartbeat.expiry_s, sees_runtime=is_answered):
            raise Deposed(f"life {self.life} has expired, because its heartbeat was too late")
        self._lives_until = began + self._heartbeat.expiry_s
        await self._update_members()
        others = [one for one in self.members if one.sees_runtime and one.epoch != self.life]
        if not others:
            self._others_answered_since = None
            return
        if self._others_answered_since is None:
            self._others_answered_since = began
        if sight is RuntimeSight.SILENT and began - self._others_answered_since >= OTHERS_ANSWERED_S:
            raise Deposed(f"the runtime does not answer this controller; {others[0].node_id}, which it answers, takes over")

    def _require_life(self) -> None:
        if not self.lives():
            raise Deposed(f"life {self.life} has expired, because no heartbeat succeeded for {self._heartbeat.expiry_s:g} s")

    async def leave(self) -> None:
        """End the membership now, so that the other controllers need not wait for its expiry."""
        self._lives_until = 0.0
        with contextlib.suppress(TorporError, TimeoutError):
            async with asyncio.timeout(2):
                await self._store.leave(self.life)

    async def _update_members(self) -> None:
        self.members = await self._store.members()
        shards = shards_of(self._identity.node_id, [one.node_id for one in self.members])
        if shards != self.shards:
            before, self.shards = self.shards, shards
            log.info("shards", life=self.life, now=len(shards), gained=len(shards - before), lost=len(before - shards))
            self._on_change()
