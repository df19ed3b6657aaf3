"""Who leads?

One of the controllers holds a session advisory lock on a connection of its own; when that connection is lost, so is the lock.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import asyncpg

from torpor.domain.errors import Deposed, Unavailable
from torpor.loops import keep_cancellation
from torpor.store.database import translate_errors, translate_startup_errors
from torpor.store.queries import FOR_CONTROLLER

CHANGES = "workspace_changes"


# So long may a duty of the leader before us take to end its transaction.
BLOCKED_AFTER_S = 2.0
# How often the lock's connection is asked whether it is alive, and how long it may take to answer: a connection through a
# broken network is never reported as closed.
ASK_EVERY_S = 5.0
ANSWERS_WITHIN_S = 10.0
CLOSES_WITHIN_S = 2.0
ENDS_WITHIN_S = 2.5


class Leadership:
    def __init__(self, url: str, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._url = url
        self._connection = connection
        self._lost = asyncio.Event()
        connection.add_termination_listener(lambda _connection: self._lost.set())

    @classmethod
    async def take(cls, url: str, *, lock_id: int, silent_after_s: float) -> "Leadership | None":
        """The leadership, or None while somebody else has it.

        A leader that is stopped but connected keeps the lock: its connection is ended once it shows no sign of life any more.
        """
        with translate_startup_errors(), keep_cancellation():
            connection = await asyncpg.connect(
                url, timeout=10, command_timeout=10, server_settings={"application_name": "torpor_leader"}
            )
            try:
                for _ in range(2):
                    if await connection.fetchval("SELECT pg_try_advisory_lock($1)", lock_id):
                        return cls(url, connection)
                    if not await connection.fetch(FOR_CONTROLLER["end_silent_leader"], lock_id, silent_after_s):
                        break
                    await asyncio.sleep(0.1)
            except BaseException:
                connection.terminate()
                raise
            await _close(connection)
            return None

    async def begin_term(self, node_id: str, life: int) -> int:
        """A number higher than every leader's before us; asked on the lock's own connection, so only a leader gets one."""
        with translate_errors(), keep_cancellation():
            beginning = asyncio.ensure_future(self._connection.fetchval(FOR_CONTROLLER["begin_term"], node_id, life))
            try:
                done, _ = await asyncio.wait((beginning,), timeout=BLOCKED_AFTER_S)
                if not done:
                    await self._end_who_keeps_the_term()
                term: int = await beginning
            finally:
                beginning.cancel()
        return term

    async def end_term(self, term: int) -> None:
        """No process leads until another one does. Where that cannot be written, the life's expiry says it."""
        try:
            with translate_errors(), keep_cancellation():
                await self._connection.execute(FOR_CONTROLLER["end_term"], term, timeout=CLOSES_WITHIN_S)
        except Unavailable:
            with contextlib.suppress(Unavailable):
                await self._end_lost_term(term)

    async def _end_lost_term(self, term: int) -> None:
        """From another connection: the server may hold the lock for one that is dead at our end alone, for hours."""
        with translate_errors(), keep_cancellation():
            async with asyncio.timeout(ENDS_WITHIN_S):
                other = await asyncpg.connect(self._url)
                try:
                    await other.execute(FOR_CONTROLLER["end_lost_term"], term)
                finally:
                    await _close(other)

    async def _end_who_keeps_the_term(self) -> None:
        other = await asyncpg.connect(self._url, timeout=10, command_timeout=10)
        try:
            await other.execute(FOR_CONTROLLER["end_who_keeps_the_term"], self._connection.get_server_pid())
        finally:
            await _close(other)

    async def on_change(self, heard: Callable[[], None]) -> None:
        """Call this whenever a transaction changed a workspace."""
        with translate_errors(), keep_cancellation():
            await self._connection.add_listener(CHANGES, lambda *_: heard())

    async def wait_until_lost(self) -> None:
        """Raises Unavailable when the connection is closed, or does not answer."""
        while not self._lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_EVERY_S):
                    await self._lost.wait()
                    break
            with translate_errors(), keep_cancellation():
                await self._connection.execute("SELECT", timeout=ANSWERS_WITHIN_S)
        raise Unavailable("the connection that holds the lock was lost")

    async def give_up(self) -> None:
        await _close(self._connection)


async def _close(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Close it, and with it the lock it may hold. One that does not answer is cut off."""
    try:
        with keep_cancellation():
            async with asyncio.timeout(CLOSES_WITHIN_S):
                await connection.close()
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        pass
    finally:
        connection.terminate()


async def require_term(connection: Any, term: int) -> None:
    """Inside a transaction: this term stands until it ends; Deposed when somebody else leads by now."""
    if not await connection.fetchval(FOR_CONTROLLER["leads"], term):
        raise Deposed(f"term {term} is over; somebody else leads")
