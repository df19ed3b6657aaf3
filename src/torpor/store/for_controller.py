"""What does a controller read and write?"""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import asyncpg
import structlog

from torpor.domain.errors import Refused
from torpor.domain.records import Change, Workspace
from torpor.domain.states import Phase
from torpor.store.database import Database
from torpor.store.leader import require_term
from torpor.store.members import Member, members
from torpor.store.queries import FOR_CONTROLLER
from torpor.store.rows import from_change, to_workspace

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Loaded:
    now: datetime
    """The database's clock: the only one the rules know."""
    workspaces: Sequence[Workspace]
    elsewhere: frozenset[str] = frozenset()
    """Of those asked for: in somebody else's hands."""
    latch_is_released: bool | None = None
    """None: nothing is held back at the provider, as far as anybody wrote down."""


@dataclass(frozen=True, slots=True)
class Hold:
    """On whose behalf is asked: one life of a controller, and the shards that are its own."""

    life: int
    shards: frozenset[int]


class ControllerStore:
    def __init__(self, database: Database, *, provider: str) -> None:
        self._database = database
        self._provider = provider

    # ── lives ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def join(self, node_id: str, world: str, *, expiry_s: float, exclusive: bool = False) -> int:
        """Begin a life; its epoch. Refused `already_controlled` while somebody lives who sees another world."""
        async with self._database.transaction() as connection:
            await connection.execute(FOR_CONTROLLER["hold_registry"])
            other = await connection.fetchrow(FOR_CONTROLLER["others_of_world"], world)
            if other is not None:
                raise Refused(
                    "already_controlled",
                    f"another Torpor controls this database ({other['node_id']}, on {other['world']}); stop it first",
                )
            if exclusive:
                await connection.execute(FOR_CONTROLLER["end_lives_in"], world)
            epoch: int = await connection.fetchval(FOR_CONTROLLER["join_controllers"], node_id, world, expiry_s)
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

    # ── workspaces ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def load_due(self, hold: Hold, *, whole: Collection[int] = (), also: Collection[str] = ()) -> Loaded:
        """What it is time for, everything of these shards that has something to be watched, and these workspaces."""
        row = await self._database.fetchrow(
            FOR_CONTROLLER["due"],
            hold.life,
            list(hold.shards),
            list(whole),
            [uuid.UUID(one) for one in also],
            self._provider,
        )
        loaded = Loaded(row["read_at"], ())
        if row["ids"]:
            loaded = await self.load_these(hold, [str(one) for one in row["ids"]])
        return replace(loaded, latch_is_released=row["latch_is_released"])

    async def load_these(self, hold: Hold, workspace_ids: Collection[str]) -> Loaded:
        rows = await self._database.fetch(
            FOR_CONTROLLER["load_these"], hold.life, list(hold.shards), [uuid.UUID(one) for one in workspace_ids]
        )
        if not rows:
            return Loaded(await self.clock(), ())
        ours = [one for row in rows if row["is_ours"] and (one := _readable(row)) is not None]
        elsewhere = frozenset(str(row["id"]) for row in rows if not row["is_ours"])
        return Loaded(max(row["read_at"] for row in rows), ours, elsewhere)

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


def _readable(row: Mapping[str, Any]) -> Workspace | None:
    """One row that this code does not understand must not hide the others."""
    try:
        return to_workspace(row)
    except (KeyError, TypeError, ValueError):
        log.exception("row_not_understood", workspace=str(row["id"]))
        return None
