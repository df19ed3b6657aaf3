"""Read and write what a controller needs: its life, its workspaces and their homes."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import asyncpg
import structlog

from torpor.cooperative import cooperative_iteration
from torpor.domain.archive_formats import SUPPORTED_FORMATS
from torpor.domain.errors import Refused
from torpor.domain.records import Change, Workspace
from torpor.domain.runtime_switch import JoinPermit, admit_runtime
from torpor.domain.shards import shard_of
from torpor.domain.states import Phase
from torpor.domain.unconfined import CONFINED, ControllerConfinement, admit_controller
from torpor.domain.workspace_secrets import SealedSecret
from torpor.ports import Home
from torpor.store.controller_members import Member, from_confinement, members
from torpor.store.database import Database
from torpor.store.home_runtime import count_homes_left, read_home_runtime, record_runtime
from torpor.store.leader_lock import require_term
from torpor.store.queries import CONTROLLER_STORE
from torpor.store.rows import from_change, to_workspace_or_none

log = structlog.get_logger()

MOST_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    now: datetime
    """The database's clock, which is the only one that the rules use."""
    workspaces: Sequence[Workspace]
    elsewhere: frozenset[str] = frozenset()
    """Of the requested workspaces, those that another controller holds."""
    whole: frozenset[int] = frozenset()
    """The shards of which all unsettled workspaces were read."""
    latch_is_released: bool | None = None
    """None: the provider has no latch."""


@dataclass(frozen=True, slots=True)
class ShardOwnership:
    """One life of a controller, and its shards."""

    life: int
    shards: frozenset[int]


class ControllerStore:
    def __init__(self, database: Database, *, provider: str) -> None:
        self._database = database
        self._provider = provider

    async def sealed_secrets(self, workspace_id: str) -> Sequence[SealedSecret]:
        """The secrets of a workspace, encrypted, by name."""
        rows = await self._database.fetch(CONTROLLER_STORE["sealed_secrets"], uuid.UUID(workspace_id))
        return [SealedSecret(**row) for row in rows]

    # ── lives ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def join(
        self,
        node_id: str,
        world: str,
        *,
        expiry_s: float,
        exclusive: bool = False,
        confinement: ControllerConfinement = CONFINED,
        accepted: str | None = None,
        archive_formats: Sequence[int] = SUPPORTED_FORMATS,
    ) -> int:
        """Begin a life and return its epoch.

        Refused `another_runtime` or `homes_not_moved` if the homes are elsewhere (`domain/runtime_switch.py`),
        `already_controlled` while a controller of another world lives, `unconfined` when there are several users and this
        controller cannot confine their workspaces.
        """
        async with self._database.transaction() as connection:
            await connection.execute(CONTROLLER_STORE["hold_registry"])
            if exclusive:
                await connection.execute(CONTROLLER_STORE["end_lives_in"], world)
            other = await connection.fetchrow(CONTROLLER_STORE["in_our_way"], world, node_id)
            if other is not None and other["world"] != world:
                raise Refused(
                    "already_controlled",
                    f"another Torpor controls this database ({other['node_id']}, on {other['world']}). Stop it first",
                )
            if other is not None:
                raise Refused(
                    "name_in_use",
                    f"another controller is already named {node_id!r}. Set TORPOR_COORDINATOR_NODE_ID to a unique name",
                )
            known, homes_left = await read_home_runtime(connection), await count_homes_left(connection)
            if admit_runtime(known, world, homes_left=homes_left, accepted=accepted) is JoinPermit.FIRST:
                await record_runtime(connection, world)
            admit_controller(await connection.fetchval(CONTROLLER_STORE["count_users"]), confinement)
            epoch: int = await connection.fetchval(
                CONTROLLER_STORE["join_controllers"],
                node_id,
                world,
                expiry_s,
                list(archive_formats),
                *from_confinement(confinement),
            )
            return epoch

    async def live_on(self, life: int, *, expiry_s: float, sees_runtime: bool) -> bool:
        """Write a heartbeat; False when it came too late."""
        return await self._database.fetchrow(CONTROLLER_STORE["live_on"], life, expiry_s, sees_runtime) is not None

    async def members(self) -> Sequence[Member]:
        return await members(self._database)

    async def leave(self, life: int) -> None:
        await self._database.execute(CONTROLLER_STORE["leave_controllers"], life)

    async def lives(self, life: int) -> bool:
        row = await self._database.fetchrow(CONTROLLER_STORE["lives"], life)
        return bool(row[0])

    async def bury(self, *, term: int) -> None:
        """Remove lives that ended long ago."""
        async with self._database.transaction() as connection:
            await require_term(connection, term)
            await connection.execute(CONTROLLER_STORE["bury"])

    async def count_phases(self) -> Mapping[Phase, int]:
        rows = await self._database.fetch(CONTROLLER_STORE["count_phases"])
        return {Phase(row["phase"]): row["count"] for row in rows}

    # ── disk ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def homes_to_measure(
        self, *, while_running_s: float, besides: Collection[Home], limit: int
    ) -> Sequence[tuple[Home, datetime]]:
        """Each with the time of this query: changes after it are not part of the measurement."""
        others = [uuid.UUID(home.workspace_id) for home in besides]
        rows = await self._database.fetch(CONTROLLER_STORE["homes_to_measure"], while_running_s, others, limit)
        return [(Home(row["id"], row["generation"]), row["now"]) for row in rows]

    async def write_home_size(self, home: Home, size_bytes: int, began_at: datetime, *, term: int) -> None:
        async with self._database.transaction() as connection:
            await require_term(connection, term)
            key = uuid.UUID(home.workspace_id)
            await connection.execute(CONTROLLER_STORE["write_home_size"], key, home.generation, size_bytes, began_at)

    async def all_home_bytes(self) -> int:
        row = await self._database.fetchrow(CONTROLLER_STORE["all_home_bytes"])
        total: int = row[0]
        return total

    # ── workspaces ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def load_due(self, hold: ShardOwnership, *, whole: Collection[int] = (), also: Collection[str] = ()) -> ShardSnapshot:
        """The workspaces that are due, those in `also`, and the unsettled ones of the shards in `whole`.

        At most `MOST_AT_ONCE` unsettled ones: a reconcile pass must not delay the next heartbeat for too long.
        """
        row = await self._database.fetchrow(
            CONTROLLER_STORE["due"],
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
            CONTROLLER_STORE["load_these"], hold.life, list(hold.shards), [uuid.UUID(one) for one in workspace_ids]
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
        """(workspace, generation) of every home that must exist."""
        return [(row["id"], row["generation"]) for row in await self._database.fetch(CONTROLLER_STORE["expected_homes"])]

    async def clock(self) -> datetime:
        row = await self._database.fetchrow(CONTROLLER_STORE["clock"])
        at: datetime = row[0]
        return at

    async def latch(self, *, expected: int, missing: int) -> bool:
        """Store that too many homes are missing at the provider; return whether an operator has released the latch."""
        row = await self._database.fetchrow(CONTROLLER_STORE["latch"], self._provider, expected, missing)
        is_released: bool = row["is_released"]
        return is_released

    async def unlatch(self) -> None:
        await self._database.execute(CONTROLLER_STORE["unlatch"], self._provider)

    async def persist(self, changes: Sequence[Change], *, life: int) -> frozenset[str]:
        """Write the batch in one statement; return the ids of the rows that had not changed since they were read.

        A change that the database refuses is logged and left out; the others are written.
        """
        if not changes:
            return frozenset()
        try:
            rows = await self._database.fetch(CONTROLLER_STORE["persist"], [from_change(change) for change in changes], life)
        except asyncpg.PostgresError as error:
            if len(changes) == 1:
                log.exception("change_refused_by_database", workspace=changes[0].after.id, why=str(error))
                return frozenset()
            middle = len(changes) // 2
            halves = (changes[:middle], changes[middle:])
            return frozenset().union(*[await self.persist(half, life=life) for half in halves])
        return frozenset(str(row["id"]) for row in rows)


def _covered(whole: Collection[int], watched: Sequence[str]) -> frozenset[int]:
    """Those of the shards `whole` that were read completely, given the unsettled workspaces that were read."""
    if len(watched) < MOST_AT_ONCE:
        return frozenset(whole)
    last = shard_of(watched[-1])
    before = frozenset(shard for shard in whole if shard < last)
    # Otherwise a single shard with more than `MOST_AT_ONCE` would never count as read.
    return before or frozenset((last,))
