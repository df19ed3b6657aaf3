"""What does a controller read and write?"""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import asyncpg
import structlog

from torpor.cooperative import cooperative_iteration
from torpor.domain.errors import Refused
from torpor.domain.records import Change, Workspace
from torpor.domain.shards import shard_of
from torpor.domain.states import Phase
from torpor.domain.unconfined import CONFINED, ControllerConfinement, admit_controller
from torpor.ports import Home
from torpor.store.controller_members import Member, from_confinement, members
from torpor.store.database import Database
from torpor.store.leader_lock import require_term
from torpor.store.queries import FOR_CONTROLLER
from torpor.store.rows import from_change, to_workspace_or_none

log = structlog.get_logger()

MOST_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    now: datetime
    """The database's clock: the only one the rules know."""
    workspaces: Sequence[Workspace]
    elsewhere: frozenset[str] = frozenset()
    """Of those asked for: in somebody else's hands."""
    whole: frozenset[int] = frozenset()
    """The shards of which everything was read that has something to be watched."""
    latch_is_released: bool | None = None
    """None: nothing is held back at the provider, as far as anybody wrote down."""


@dataclass(frozen=True, slots=True)
class ShardOwnership:
    """On whose behalf is asked: one life of a controller, and the shards that are its own."""

    life: int
    shards: frozenset[int]


class ControllerStore:
    def __init__(self, database: Database, *, provider: str) -> None:
        self._database = database
        self._provider = provider

    # ── lives ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def join(
        self,
        node_id: str,
        world: str,
        *,
        expiry_s: float,
        exclusive: bool = False,
        confinement: ControllerConfinement = CONFINED,
    ) -> int:
        """Begin a life and return its epoch.

        Refused `already_controlled` while a controller of another world lives, `unconfined` where there are several users and
        this controller cannot confine their workspaces.
        """
        async with self._database.transaction() as connection:
            await connection.execute(FOR_CONTROLLER["hold_registry"])
            if exclusive:
                await connection.execute(FOR_CONTROLLER["end_lives_in"], world)
            other = await connection.fetchrow(FOR_CONTROLLER["in_our_way"], world, node_id)
            if other is not None and other["world"] != world:
                raise Refused(
                    "already_controlled",
                    f"another Torpor controls this database ({other['node_id']}, on {other['world']}); stop it first",
                )
            if other is not None:
                raise Refused("name_in_use", f"a controller called {node_id} lives already; each needs a name of its own")
            admit_controller(await connection.fetchval(FOR_CONTROLLER["count_users"]), confinement)
            epoch: int = await connection.fetchval(
                FOR_CONTROLLER["join_controllers"], node_id, world, expiry_s, *from_confinement(confinement)
            )
            return epoch

    async def live_on(self, life: int, *, expiry_s: float) -> bool:
        """A sign of life; False when it came too late."""
        return await self._database.fetchrow(FOR_CONTROLLER["live_on"], life, expiry_s) is not None

    async def members(self) -> Sequence[Member]:
        return await members(self._database)

    async def leave(self, life: int) -> None:
        await self._database.execute(FOR_CONTROLLER["leave_controllers"], life)

    async def lives(self, life: int) -> bool:
        row = await self._database.fetchrow(FOR_CONTROLLER["lives"], life)
        return bool(row[0])

    async def bury(self, *, term: int) -> None:
        """Forget lives that ended long ago."""
        async with self._database.transaction() as connection:
            await require_term(connection, term)
            await connection.execute(FOR_CONTROLLER["bury"])

    async def count_phases(self) -> Mapping[Phase, int]:
        rows = await self._database.fetch(FOR_CONTROLLER["count_phases"])
        return {Phase(row["phase"]): row["count"] for row in rows}

    # ── disk ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def homes_to_measure(
        self, *, while_running_s: float, besides: Collection[Home], limit: int
    ) -> Sequence[tuple[Home, datetime]]:
        """With the time of this question: what is written to a home later is not measured."""
        others = [uuid.UUID(home.workspace_id) for home in besides]
        rows = await self._database.fetch(FOR_CONTROLLER["homes_to_measure"], while_running_s, others, limit)
        return [(Home(row["id"], row["generation"]), row["now"]) for row in rows]

    async def write_home_size(self, home: Home, size_bytes: int, began_at: datetime, *, term: int) -> None:
        async with self._database.transaction() as connection:
            await require_term(connection, term)
            key = uuid.UUID(home.workspace_id)
            await connection.execute(FOR_CONTROLLER["write_home_size"], key, home.generation, size_bytes, began_at)

    async def all_home_bytes(self) -> int:
        row = await self._database.fetchrow(FOR_CONTROLLER["all_home_bytes"])
        total: int = row[0]
        return total

    # ── workspaces ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def load_due(self, hold: ShardOwnership, *, whole: Collection[int] = (), also: Collection[str] = ()) -> ShardSnapshot:
        """What it is time for, these workspaces, and everything of these shards that has something to be watched.

        Of that not more than `MOST_AT_ONCE`: a look must not take longer than a life can wait for its next sign.
        """
        row = await self._database.fetchrow(
            FOR_CONTROLLER["due"],
            hold.life,
            list(hold.shards),
            list(whole),
            [uuid.UUID(one) for one in also],
            self._provider,
            MOST_AT_ONCE,
        )
        watched = [str(one) for one in row["watched"]]
        loaded = ShardSnapshot(row["read_at"], ())
        if row["due"] or watched:
            loaded = await self.load_these(hold, {*watched, *(str(one) for one in row["due"])})
        return replace(loaded, whole=_covered(whole, watched), latch_is_released=row["latch_is_released"])

    async def load_these(self, hold: ShardOwnership, workspace_ids: Collection[str]) -> ShardSnapshot:
        rows = await self._database.fetch(
            FOR_CONTROLLER["load_these"], hold.life, list(hold.shards), [uuid.UUID(one) for one in workspace_ids]
        )
        if not rows:
            return ShardSnapshot(await self.clock(), ())
        ours = [
            one
            async for row in cooperative_iteration(rows)
            if row["is_ours"] and (one := to_workspace_or_none(row)) is not None
        ]
        elsewhere = frozenset(str(row["id"]) for row in rows if not row["is_ours"])
        return ShardSnapshot(max(row["read_at"] for row in rows), ours, elsewhere)

    async def expected_homes(self) -> Sequence[tuple[str, int]]:
        """(workspace, generation) of every home that must be there."""
        return [(row["id"], row["generation"]) for row in await self._database.fetch(FOR_CONTROLLER["expected_homes"])]

    async def clock(self) -> datetime:
        row = await self._database.fetchrow(FOR_CONTROLLER["clock"])
        at: datetime = row[0]
        return at

    async def latch(self, *, expected: int, missing: int) -> bool:
        """Write down that too much is missing at the provider; whether an operator has said go."""
        row = await self._database.fetchrow(FOR_CONTROLLER["latch"], self._provider, expected, missing)
        is_released: bool = row["is_released"]
        return is_released

    async def unlatch(self) -> None:
        await self._database.execute(FOR_CONTROLLER["unlatch"], self._provider)

    async def persist(self, changes: Sequence[Change], *, life: int) -> frozenset[str]:
        """Write the batch in one statement; the ids of the rows that were still as they had been read.

        A change that the database will not have is left out and told of; it costs the others nothing.
        """
        if not changes:
            return frozenset()
        try:
            rows = await self._database.fetch(FOR_CONTROLLER["persist"], [from_change(change) for change in changes], life)
        except asyncpg.PostgresError as error:
            if len(changes) == 1:
                log.exception("change_refused_by_database", workspace=changes[0].after.id, why=str(error))
                return frozenset()
            middle = len(changes) // 2
            halves = (changes[:middle], changes[middle:])
            return frozenset().union(*[await self.persist(half, life=life) for half in halves])
        return frozenset(str(row["id"]) for row in rows)


def _covered(whole: Collection[int], watched: Sequence[str]) -> frozenset[int]:
    """Those of these shards that were read to their end, when these are all there was room for."""
    if len(watched) < MOST_AT_ONCE:
        return frozenset(whole)
    last = shard_of(watched[-1])
    before = frozenset(shard for shard in whole if shard < last)
    # One that alone has more than there is room for would never be done with.
    return before or frozenset((last,))
