"""Does this controller live, and which workspaces are its own?

A life is one row with an expiry, kept up by signs of life. Whoever is too late with one is dead, knows it by its own
monotonic clock even when nobody can be asked, and comes back as another life.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from torpor.domain.errors import Deposed, Refused, TorporError, Unavailable
from torpor.domain.shards import shards_of
from torpor.domain.unconfined import CONFINED, ControllerConfinement
from torpor.loops import Loop
from torpor.store.controller_members import Member
from torpor.store.controller_store import ControllerStore

log = structlog.get_logger()

FIRST_TRIES_S = 0.2
# A statement that is given up returns its connection, which takes this long where the database hangs.
CONNECTION_S = 15.0
# Refusals that pass when another controller stops or expires.
ENDS_BY_ITSELF = frozenset({"already_controlled", "name_in_use"})


def _since_boot_s() -> float:
    """A clock that goes on while the machine sleeps, where there is one: the others do not wait for it to wake."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    node_id: str
    world: str
    """What it sees: controllers of different worlds do not share a database."""
    is_exclusive: bool
    """Only one process can hold this world, so whoever held it before us is dead."""
    confinement: ControllerConfinement = CONFINED


@dataclass(frozen=True, slots=True)
class HeartbeatOptions:
    interval_s: float = 2.0
    expiry_s: float = 10.0


class Membership:
    """One life, from joining to its end."""

    def __init__(
        self,
        store: ControllerStore,
        identity: NodeIdentity,
        heartbeat: HeartbeatOptions,
        *,
        on_change: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = _since_boot_s,
    ) -> None:
        self.life = 0
        self.members: Sequence[Member] = ()
        self.shards: frozenset[int] = frozenset()
        self._store = store
        self._identity = identity
        self._heartbeat = heartbeat
        self._on_change = on_change
        self._monotonic = monotonic
        self._lives_until = 0.0

    def lives(self) -> bool:
        """Whether nobody can have taken over yet."""
        return self._monotonic() < self._lives_until

    async def join(self, *, within_s: float = 0.0) -> None:
        """Begin to live; Refused when what is in the way does not end by itself, or not within this time."""
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
                )
            except Refused as refused:
                if refused.code not in ENDS_BY_ITSELF or self._monotonic() >= until:
                    raise
                await asyncio.sleep(FIRST_TRIES_S)
            else:
                self._lives_until = began + self._heartbeat.expiry_s
                await self._look_round()
                log.info("joined", node=self._identity.node_id, life=self.life, members=[one.node_id for one in self.members])
                return

    async def keep(self) -> None:
        """Show signs of life until cancelled; Deposed when one came too late."""
        interval_s, expiry_s = self._heartbeat.interval_s, self._heartbeat.expiry_s
        loop = Loop(
            "membership",
            self._show_life,
            interval_s=interval_s,
            first_after_s=interval_s,
            turn_s=expiry_s + CONNECTION_S,
            ends_on=(Deposed,),
        )
        await loop.run()

    async def _show_life(self) -> None:
        began = self._monotonic()
        try:
            async with asyncio.timeout(max(0.1, self._lives_until - began)):
                await self._live_on(began)
        except (Unavailable, TimeoutError) as out:
            log.warning("heartbeat_missed", life=self.life, why=str(out) or "no answer in time")
        except Exception:
            self._require_life()
            raise
        self._require_life()

    async def _live_on(self, began: float) -> None:
        if not await self._store.live_on(self.life, expiry_s=self._heartbeat.expiry_s):
            raise Deposed(f"life {self.life} was given up by the others; it came back too late")
        self._lives_until = began + self._heartbeat.expiry_s
        await self._look_round()

    def _require_life(self) -> None:
        if not self.lives():
            raise Deposed(f"life {self.life} could show no sign of life for {self._heartbeat.expiry_s:g} s")

    async def leave(self) -> None:
        """The others need not wait for us to expire."""
        self._lives_until = 0.0
        with contextlib.suppress(TorporError, TimeoutError):
            async with asyncio.timeout(2):
                await self._store.leave(self.life)

    async def _look_round(self) -> None:
        self.members = await self._store.members()
        shards = shards_of(self._identity.node_id, [one.node_id for one in self.members])
        if shards != self.shards:
            before, self.shards = self.shards, shards
            log.info("shards", life=self.life, now=len(shards), gained=len(shards - before), lost=len(before - shards))
            self._on_change()
