"""Who may control this database?

One controller at a time holds a session advisory lock on a connection of its own; when that connection is lost, so is the lock.
"""

import asyncio

import asyncpg

from torpor.domain.errors import Unavailable
from torpor.store.database import UNREACHABLE


class Leadership:
    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._connection = connection
        self.lost = asyncio.Event()
        connection.add_termination_listener(lambda _connection: self.lost.set())

    @classmethod
    async def take(cls, url: str, *, lock_id: int) -> "Leadership | None":
        """The leadership, or None while somebody else has it."""
        try:
            connection = await asyncpg.connect(url, server_settings={"application_name": "torpor_leader"})
        except UNREACHABLE as error:
            raise Unavailable(f"the database cannot be reached: {error}") from error
        if not await connection.fetchval("SELECT pg_try_advisory_lock($1)", lock_id):
            await connection.close()
            return None
        return cls(connection)

    async def give_up(self) -> None:
        if not self._connection.is_closed():
            await self._connection.close()
