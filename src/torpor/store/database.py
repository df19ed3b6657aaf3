"""Connect to PostgreSQL in a role, and translate its errors."""

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from enum import StrEnum
from typing import Any, ParamSpec, TypeVar

import asyncpg
import structlog
from asyncpg.exceptions._base import DataError as InvalidInput

from torpor.domain.errors import Refused, Unavailable
from torpor.loops import keep_cancellation

log = structlog.get_logger()

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Role(StrEnum):
    """The database role of a connection. Its grants are the columns that it can write."""

    SERVICE = "torpor_service"
    CONTROLLER = "torpor_controller"


# A lost or busy database: a later attempt may succeed. Any other error is a bug and must be visible.
UNREACHABLE = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the connection was lost while a reply was being read
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InsufficientResourcesError,  # too many connections, a full disk, no memory
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.QueryCanceledError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.SerializationError,
    asyncpg.ReadOnlySQLTransactionError,
)

# A wrong URL or login, which the operator must change.
WRONG = (
    ValueError,
    asyncpg.InvalidPasswordError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)


STOPPED_AFTER_S = 5
CLOSES_WITHIN_S = 5.0


class Deadlocked(Unavailable):
    """Two transactions waited for each other; this one was rolled back so that the other could continue."""


def retry_deadlock(work: Callable[Given, Coroutine[Any, Any, Answer]]) -> Callable[Given, Coroutine[Any, Any, Answer]]:
    """Repeat work that is one transaction once, if it failed because of a deadlock."""

    @functools.wraps(work)
    async def attempt(*given: Given.args, **named: Given.kwargs) -> Answer:
        try:
            return await work(*given, **named)
        except Deadlocked:
            return await work(*given, **named)

    return attempt


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Translate asyncpg's errors. The URL, which contains a password, is never repeated.

    PostgreSQL's details are left out too: they name processes, tables and rows, and the message reaches the user.
    """
    try:
        yield
    except InvalidInput:
        raise  # a bug in Torpor, although it is an InterfaceError
    except asyncpg.DeadlockDetectedError as error:
        log.warning("deadlock", why=str(error))
        raise Deadlocked("the database is busy with a conflicting change; try again") from error
    except UNREACHABLE as error:
        message = str(error.args[0] if isinstance(error, asyncpg.PostgresError) and error.args else error)
        raise Unavailable(f"the database cannot be reached: {message or type(error).__name__}") from error


@contextlib.contextmanager
def translate_startup_errors() -> Iterator[None]:
    with translate_errors():
        try:
            yield
        except WRONG as error:
            raise Refused(
                "bad_database",
                f"the database refuses the connection: {error}. Check the URL, user and password in TORPOR_DATABASE_URL",
            ) from error


async def _set_up(connection: Any) -> None:
    await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


async def _no_reset(_connection: Any) -> None:
    """No code changes session settings, so no reset is needed, which would cost a round trip each time."""


class Database:
    """A pool of connections in one role."""

    def __init__(self, pool: Any) -> None:
        self.statements = 0
        """Statements sent so far, except those inside transactions; for benchmarks and metrics."""
        self._pool = pool

    @classmethod
    async def open(cls, url: str, role: Role, *, connections: int = 8) -> "Database":
        with translate_startup_errors():
            pool = await asyncpg.create_pool(
                url,
                min_size=1,
                max_size=connections,
                init=_set_up,
                reset=_no_reset,
                server_settings={
                    "role": role.value,
                    "application_name": role.value,
                    # A process that was stopped in the middle of a transaction must not keep its rows locked.
                    "idle_in_transaction_session_timeout": f"{STOPPED_AFTER_S}s",
                },
                command_timeout=60,
            )
        return cls(pool)

    async def close(self) -> None:
        # A connection that was lost meanwhile is not worth waiting for.
        with contextlib.suppress(TimeoutError, *UNREACHABLE):
            async with asyncio.timeout(CLOSES_WITHIN_S):
                await self._pool.close()  # when cancelled, it terminates the connections

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A connection inside a transaction; Unavailable when the database cannot be reached."""
        # On a dead connection a cancelled transaction ends in an InterfaceError.
        with translate_errors(), keep_cancellation():
            async with self._pool.acquire(timeout=10) as connection, connection.transaction():
                yield connection

    async def fetch(self, query: str, *arguments: object) -> list[Any]:
        async with self._connection() as connection:
            rows: list[Any] = await connection.fetch(query, *arguments)
            return rows

    async def fetchrow(self, query: str, *arguments: object) -> Any:
        async with self._connection() as connection:
            return await connection.fetchrow(query, *arguments)

    async def execute(self, query: str, *arguments: object) -> None:
        async with self._connection() as connection:
            await connection.execute(query, *arguments)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        with translate_errors(), keep_cancellation():
            async with self._pool.acquire(timeout=10) as connection:
                self.statements += 1
                yield connection
