"""Read and write which runtime has the homes of this database, and the move of all homes to another one."""

import contextlib
import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torpor.domain.errors import Refused
from torpor.domain.records import Workspace
from torpor.domain.runtime_switch import HomeRuntime, RuntimeSwitch
from torpor.domain.states import Wish
from torpor.store.database import Database
from torpor.store.queries import CONTROLLER_STORE, HOME_RUNTIME
from torpor.store.rows import to_workspace, to_workspace_or_none
from torpor.store.user_store import AuditEntry, write_audit

PAGE = 500
FIRST_ID = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True)
class WorkspaceCounts:
    workspaces: int
    """Without deleted ones."""
    running: int


async def read_home_runtime(connection: Any) -> HomeRuntime:
    """`connection`: any connection or database."""
    row = await connection.fetchrow(HOME_RUNTIME["home_runtime"])
    switch = RuntimeSwitch(row["switch_to"], row["switch_began_at"]) if row["switch_to"] is not None else None
    return HomeRuntime(row["world"], switch)


async def record_runtime(connection: Any, world: str) -> None:
    await connection.execute(HOME_RUNTIME["record_runtime"], world)


async def count_homes_left(connection: Any) -> int:
    """The workspaces that may have a home or a container at the runtime."""
    count: int = (await connection.fetchrow(HOME_RUNTIME["count_homes_left"]))[0]
    return count


class SwitchStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self) -> HomeRuntime:
        return await read_home_runtime(self._database)

    async def homes_left(self) -> int:
        return await count_homes_left(self._database)

    async def counts(self) -> WorkspaceCounts:
        return WorkspaceCounts(**await self._database.fetchrow(HOME_RUNTIME["count_workspaces"]))

    async def stuck(self, *, limit: int) -> tuple[int, Sequence[Workspace]]:
        """How many workspaces are not archived because of an error that asks for a user, and the first of them."""
        rows = await self._database.fetch(HOME_RUNTIME["stuck_homes"], limit)
        return (rows[0]["total"] if rows else 0), [to_workspace(row) for row in rows]

    async def all_workspaces(self) -> AsyncIterator[Workspace]:
        """Without deleted ones."""
        last = FIRST_ID
        while rows := await self._database.fetch(HOME_RUNTIME["page_of_workspaces"], last, PAGE):
            for row in rows:
                if (one := to_workspace_or_none(row)) is not None:
                    yield one
            last = rows[-1]["id"]

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncIterator["SwitchTransaction"]:
        """One transaction. No request for a state is written at the same time."""
        async with self._database.transaction() as connection:
            await connection.execute(HOME_RUNTIME["hold_switch"])
            yield SwitchTransaction(connection)


class SwitchTransaction:
    """The statements inside one transaction that begins or ends a move."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def read(self) -> HomeRuntime:
        return await read_home_runtime(self._connection)

    async def homes_left(self) -> int:
        return await count_homes_left(self._connection)

    async def begin(self, target: str) -> Sequence[str]:
        """Returns the ids of the workspaces that are archived now."""
        await self._connection.execute(HOME_RUNTIME["begin_switch"], target)
        return [row["id"] for row in await self._connection.fetch(HOME_RUNTIME["archive_all"])]

    async def end(self, *, cannot_run: Collection[str] = ()) -> dict[str, Wish]:
        """Request again what was requested before, except for those that cannot run; returns the new states by id."""
        await self._connection.execute(HOME_RUNTIME["end_switch"])
        rows = await self._connection.fetch(HOME_RUNTIME["resume_all"], [uuid.UUID(one) for one in cannot_run])
        return {row["id"]: Wish(row["desired_state"]) for row in rows}

    async def require_only(self, world: str) -> None:
        """Refused while a controller of another world is alive. None joins before this transaction ends."""
        await self._connection.execute(CONTROLLER_STORE["hold_registry"])
        other = await self._connection.fetchrow(HOME_RUNTIME["controller_elsewhere"], world)
        if other is not None:
            raise Refused(
                "already_controlled",
                f"a controller of another runtime still runs ({other['node_id']}, on {other['world']}). Stop it first",
            )

    async def record(self, world: str) -> None:
        await record_runtime(self._connection, world)

    async def audit(self, entry: AuditEntry) -> None:
        await write_audit(self._connection, entry)
