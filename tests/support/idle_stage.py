"""A service layer, a bus and an idle watch, without a controller: the test writes the rows as a controller would."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from tests.support.users import person
from tests.support.waiting import until
from torpor.accounts import Caller
from torpor.bus.activity import RedisActivity
from torpor.bus.redis import Bus
from torpor.control.idle_watch import IdleWatch
from torpor.domain.limits import RunningLimits
from torpor.domain.records import Workspace
from torpor.domain.states import Phase, Wish
from torpor.service.activity import TouchQueue, use_reader
from torpor.service.use import UseService
from torpor.service.wishes import Wishes
from torpor.store.database import Database, Role
from torpor.store.service_store import ServiceStore
from torpor.testing.defaults import DEFAULTS

TTL_S = 1
LEASE_S = 0.3
TERM = 7
PATIENCE_S = 20.0


@dataclass
class IdleStage:
    owner: Any
    service: ServiceStore
    wishes: Wishes
    using: UseService
    user: Caller
    database: Database
    activity: RedisActivity
    bus: Bus
    touches: TouchQueue
    watch: IdleWatch
    hints: list[str] = field(default_factory=list)

    async def workspace(self, name: str = "ada", *, phase: Phase = Phase.RUNNING, idle_s: float = 3600) -> Workspace:
        """A workspace in this phase, its requested state, since this time."""
        made = await self.wishes.create(self.user, name=name, desired_state=Wish(phase.value), standby_ttl_s=TTL_S)
        await self.set(
            made,
            f"phase = '{phase}', phase_changed_at = now() - make_interval(secs => {idle_s}),"
            f" wished_at = now() - make_interval(secs => {idle_s}), last_access_at = now() - make_interval(secs => {idle_s})",
        )
        self.hints.clear()
        return await self.look(made)

    async def set(self, workspace: Workspace, change: str) -> None:
        await self.owner.execute(f"UPDATE workspaces SET {change} WHERE id = $1", uuid.UUID(workspace.id))

    async def look(self, workspace: Workspace) -> Workspace:
        return await self.wishes.find(self.user, workspace.id)

    async def wish_of(self, workspace: Workspace) -> Wish:
        return (await self.look(workspace)).desired_state

    async def remembers(self) -> None:
        """Wait until the bus has recorded use for long enough."""

        async def is_believed() -> bool:
            return await self.activity.memory_s() > TTL_S + LEASE_S

        await until(is_believed)

    async def until_asleep(self, workspace: Workspace) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.wish_of(workspace) is Wish.RUNNING:
                await self.watch.do(TERM)


def new_id() -> str:
    return str(uuid.uuid4())


@contextlib.asynccontextmanager
async def idle_stage(
    database_url: str,
    redis_url: str,
    *,
    limits: RunningLimits = RunningLimits(per_user=1000, overall=1000),
    lease_s: float = LEASE_S,
) -> AsyncIterator[IdleStage]:
    database, bus = await Database.open(database_url, Role.SERVICE), await Bus.open(redis_url)
    owner = await asyncpg.connect(database_url)
    try:
        await owner.execute("INSERT INTO system_locks (lock_name, holder_id, epoch) VALUES ('leader', 'me', $1)", TERM)
        service, activity = ServiceStore(database), RedisActivity(bus)
        ada = await person(database, "ada", is_admin=True)
        hints: list[str] = []
        touches = TouchQueue(activity, lease_s=lease_s)
        using = UseService(
            service, new_id=new_id, hint=hints.append, touch=touches.touch, ask=use_reader(activity), lease_s=lease_s
        )
        wishes = Wishes(service, limits=limits, ttls=DEFAULTS.ttls, new_id=new_id, hint=hints.append, using=using)
        watch = IdleWatch(using, use_reader(activity), interval_s=60, lease_s=lease_s)
        yield IdleStage(owner, service, wishes, using, ada, database, activity, bus, touches, watch, hints)
    finally:
        await owner.close()
        await bus.close()
        await database.close()
