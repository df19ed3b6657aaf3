"""Elect the leader among the controllers.

The leader holds a session advisory lock on a separate connection. When that connection is lost, so is the lock.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import asyncpg

from torpor.domain.errors import Deposed, Unavailable
from torpor.loops import keep_cancellation
from torpor.store.database import translate_errors, translate_startup_errors
from torpor.store.queries import CONTROLLER_STORE

CHANGES = "workspace_changes"


# How long a duty of the previous leader may take to end its transaction.
BLOCKED_AFTER_S = 2.0
# How often the lock's connection is checked, and how long the reply may take: a connection through a broken network is never
# reported as closed.
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
        """The leadership, or None while another controller has it.

        A leader that is stopped but connected keeps the lock; its connection is ended once its heartbeats stop.
        """
        with translate_startup_errors(), keep_cancellation():
            connection = await asyncpg.connect(
                url, timeout=10, command_timeout=10, server_settings={"application_name": "torpor_leader"}
            )
            try:
                for _ in range(2):
                    if await connection.fetchval("SELECT pg_try_advisory_lock($1)", lock_id):
                        return cls(url, connection)
                    if not await connection.fetch(CONTROLLER_STORE["end_silent_leader"], lock_id, silent_after_s):
                        break
                    await asyncio.sleep(0.1)
            except BaseException:
                connection.terminate()
                raise
            await _close(connection)
            return None

    async def begin_term(self, node_id: str, life: int) -> int:
        """A number higher than that of every earlier leader. It runs on the lock's connection, so only a leader gets one."""
        with translate_errors(), keep_cancellation():
            beginning = asyncio.ensure_future(self._connection.fetchval(CONTROLLER_STORE["begin_term"], node_id, life))
            try:
                done, _ = await asyncio.wait((beginning,), timeout=BLOCKED_AFTER_S)
                if not done:
                    await self._end_who_keeps_the_term()
                term: int = await beginning
            finally:
                beginning.cancel()
        return term

    async def end_term(self, term: int) -> None:
        """Step down. If that cannot be written, the term ends when the life expires."""
        try:
            with translate_errors(), keep_cancellation():
                await self._connection.execute(CONTROLLER_STORE["end_term"], term, timeout=CLOSES_WITHIN_S)
        except Unavailable:
            with contextlib.suppress(Unavailable):
                await self._end_lost_term(term)

    async def _end_lost_term(self, term: int) -> None:
        """On another connection: the server may keep the lock for hours for a connection that is dead only on our side."""
        with translate_errors(), keep_cancellation():
            async with asyncio.timeout(ENDS_WITHIN_S):
                other = await asyncpg.connect(self._url)
                try:
                    await other.execute(CONTROLLER_STORE["end_lost_term"], term)
                finally:
                    await _close(other)

    async def _end_who_keeps_the_term(self) -> None:
        other = await asyncpg.connect(self._url, timeout=10, command_timeout=10)
        try:
            await other.execute(CONTROLLER_STORE["end_who_keeps_the_term"], self._connection.get_server_pid())
        finally:
            await _close(other)

    async def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever a transaction changed a workspace."""
        with translate_errors(), keep_cancellation():
            await self._connection.add_listener(CHANGES, lambda *_: callback())

    async def wait_until_lost(self) -> None:
        """Raises Unavailable when the connection is closed or does not respond."""
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
    """Close the connection, and release its lock. A connection that does not respond is terminated."""
    try:
        with keep_cancellation():
            async with asyncio.timeout(CLOSES_WITHIN_S):
                await connection.close()
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        pass
    finally:
        connection.terminate()


async def require_term(connection: Any, term: int) -> None:
    """Keep this term current until the transaction ends; Deposed when another controller leads."""
    if not await connection.fetchval(CONTROLLER_STORE["leads"], term):
        raise Deposed(f"term {term} has ended: another controller is the leader")
