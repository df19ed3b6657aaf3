"""Who may control this database?

One controller at a time holds a session advisory lock on a connection of its own; when that connection is lost, so is the lock.
"""

import asyncio

import asyncpg

from torpor.store.database import translated, translated_at_the_start
from torpor.store.queries import FOR_CONTROLLER


class Leadership:
    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._connection = connection
        self.lost = asyncio.Event()
        connection.add_termination_listener(lambda _connection: self.lost.set())

    @classmethod
    async def take(cls, url: str, *, lock_id: int) -> "Leadership | None":
        """The leadership, or None while somebody else has it."""
        with translated_at_the_start():
            connection = await asyncpg.connect(url, server_settings={"application_name": "torpor_leader"})
            try:
                if await connection.fetchval("SELECT pg_try_advisory_lock($1)", lock_id):
                    return cls(connection)
            except BaseException:
                await connection.close()
                raise
            await connection.close()
            return None

    async def take_epoch(self, holder: str) -> int:
        """A number higher than every controller's before us; asked on the lock's own connection, so only a leader gets one."""
        with translated():
            epoch: int = await self._connection.fetchval(FOR_CONTROLLER["take_epoch"], holder)
        return epoch

    async def give_up(self) -> None:
        if not self._connection.is_closed():
            await self._connection.close()
