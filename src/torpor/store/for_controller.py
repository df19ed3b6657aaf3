"""What does a controller read and write?"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg
import structlog

from torpor.domain.records import Change, Workspace
from torpor.store.database import Database
from torpor.store.queries import FOR_CONTROLLER
from torpor.store.rows import from_change, to_workspace

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Loaded:
    now: datetime
    """The database's clock: the only one the rules know."""
    workspaces: Sequence[Workspace]


class ControllerStore:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, tuple[str, Workspace]] = {}
        """The rows as they were read last, each with its mark: most do not change from one look to the next."""

    async def take_epoch(self, holder: str) -> int:
        row = await self._database.fetchrow(FOR_CONTROLLER["take_epoch"], holder)
        epoch: int = row["epoch"]
        return epoch

    async def holds(self, epoch: int) -> bool:
        """Whether no later controller has taken over."""
        row = await self._database.fetchrow(FOR_CONTROLLER["present_epoch"])
        return row is not None and row["epoch"] == epoch

    async def load(self, *, only: Collection[str] | None = None, also: Collection[str] = ()) -> Loaded:
        """What needs a look: the unsettled (and `also` these), or `only` these."""
        if only is not None:
            return await self._fetch(only)
        row = await self._database.fetchrow(FOR_CONTROLLER["unsettled"], list(also))
        marks = dict(zip(row["ids"], row["marks"], strict=True))
        self._known = {one: known for one, known in self._known.items() if one in marks}
        changed = [one for one, mark in marks.items() if one not in self._known or self._known[one][0] != mark]
        if changed:
            await self._fetch(changed)
        return Loaded(row["read_at"], [known[1] for known in self._known.values()])

    async def _fetch(self, workspace_ids: Collection[str]) -> Loaded:
        rows = await self._database.fetch(FOR_CONTROLLER["load_these"], list(workspace_ids))
        if not rows:
            return Loaded(await self.clock(), ())
        found = {str(row["id"]): (row["mark"], one) for row in rows if (one := _readable(row)) is not None}
        self._known |= found
        return Loaded(max(row["read_at"] for row in rows), [one for _, one in found.values()])

    async def clock(self) -> datetime:
        row = await self._database.fetchrow(FOR_CONTROLLER["clock"])
        at: datetime = row[0]
        return at

    async def latch(self, provider: str, *, expected: int, missing: int) -> bool:
        """Write down that too much is missing there; whether an operator has said go."""
        row = await self._database.fetchrow(FOR_CONTROLLER["latch"], provider, expected, missing)
        is_released: bool = row["is_released"]
        return is_released

    async def unlatch(self, provider: str) -> None:
        await self._database.execute(FOR_CONTROLLER["unlatch"], provider)

    async def persist(self, changes: Sequence[Change], *, epoch: int) -> frozenset[str]:
        """Write the batch in one statement; the ids of the rows that were still as they had been read.

        A change that the database will not have is left out and told of; it costs the others nothing.
        """
        if not changes:
            return frozenset()
        try:
            rows = await self._database.fetch(FOR_CONTROLLER["persist"], [from_change(change) for change in changes], epoch)
        except asyncpg.PostgresError as error:
            if len(changes) == 1:
                log.exception("change_refused_by_database", workspace=changes[0].after.id, why=str(error))
                return frozenset()
            middle = len(changes) // 2
            halves = (changes[:middle], changes[middle:])
            return frozenset().union(*[await self.persist(half, epoch=epoch) for half in halves])
        return frozenset(str(row["id"]) for row in rows)


def _readable(row: Mapping[str, Any]) -> Workspace | None:
    """One row that this code does not understand must not hide the others."""
    try:
        return to_workspace(row)
    except (KeyError, TypeError, ValueError):
        log.exception("row_not_understood", workspace=str(row["id"]))
        return None
