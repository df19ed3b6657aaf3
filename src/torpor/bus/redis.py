"""Connect to Redis (6.2 or newer) or Valkey, and translate its errors.

All commands go through this module: no other module uses redis-py or its errors.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeAlias

import redis.asyncio
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError

from torpor.domain.errors import Refused, Unavailable
from torpor.loops import keep_cancellation, report_progress, stop

log = structlog.get_logger()

CONNECTIONS = 16
CONNECT_TIMEOUT_S = 2.0
COMMAND_TIMEOUT_S = 5.0  # in total: waiting for a free connection, connecting, sending the command
SILENCE_S = 5.0  # of a listener's connection, after which a PING checks it
CLOSE_TIMEOUT_S = 1.0

Command: TypeAlias = tuple[str | bytes | int, ...]

UNREACHABLE = (redis.RedisError, OSError, TimeoutError)
# A wrong login, which the operator must change.
WRONG = (AuthenticationError, AuthorizationError, NoPermissionError)

BAD_ADDRESS = (
    "the URL of Redis is not valid. Write it as redis://[user[:password]@]host[:port][/number],"
    " the same with rediss:// for TLS, or unix:///path/of/the/socket"
)


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Translate redis-py's errors. The URL, which contains a password, is never repeated."""
    try:
        yield
    except UNREACHABLE as error:
        raise Unavailable(f"the bus cannot be reached: {str(error) or type(error).__name__}") from error


def is_our_fault(error: redis.RedisError) -> bool:
    """Whether the login or the database number is wrong. On a Unix socket redis-py wraps the error once more."""
    return any(isinstance(one, WRONG) or "DB index" in str(one) for one in (error, error.__cause__))


def pool_of(url: str, connections: int) -> Any:
    try:
        pool: Any = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=connections, timeout=COMMAND_TIMEOUT_S)
        pool.connection_kwargs |= {
            # These override the options in the URL.
            "decode_responses": False,
            "protocol": 2,
            "driver_info": None,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_timeout": COMMAND_TIMEOUT_S,
            "health_check_interval": 0,
            # One retry, for a connection that turned out to be broken. A timeout is not retried.
            "retry": Retry(NoBackoff(), 1, (redis.ConnectionError,)),
            "retry_on_timeout": False,
            "retry_on_error": [],
        }
        pool.make_connection()  # raises if the URL has an unknown option
    # Their messages repeat parts of the URL, and in a malformed one the password may be anywhere.
    except (ValueError, TypeError, redis.RedisError):
        raise Refused("bad_redis", BAD_ADDRESS) from None
    return pool


class Subscription:
    """One connection that receives the messages of a pattern, until it breaks."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def next(self) -> tuple[str, bytes]:
        """The next (channel, message); Unavailable when the connection is lost or the server no longer responds."""
        was_pinged = False
        # No iteration catches an exception, so none can lose a cancellation.
        with translate_errors():
            while True:
                with keep_cancellation():
                    received = await self._connection.read_response(timeout=SILENCE_S)
                    if received is None and was_pinged:
                        raise TimeoutError("no response")
                    if received is None:
                        await self._connection.send_command("PING")
                was_pinged = received is None
                report_progress()
                if received and received[0] == b"pmessage":
                    return received[2].decode(errors="replace"), received[3]


class Bus:
    """Connections to one Redis. Each call reconnects if necessary."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._client = redis.asyncio.Redis.from_pool(pool)
        self._background: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @classmethod
    async def open(cls, url: str, *, connections: int = CONNECTIONS) -> "Bus":
        """Refused when the URL or the login is wrong. An unreachable server is only logged: it may come back."""
        bus = cls(pool_of(url, connections))
        try:
            await bus._check_server()
        except Unavailable as out:
            log.warning("bus_unreachable", why=out.message)
        except BaseException:
            await bus.close()
            raise
        return bus

    async def close(self) -> None:
        """Messages that are sent in the background get a moment to finish."""
        self._is_closed = True
        if self._background:
            await asyncio.wait(self._background, timeout=CLOSE_TIMEOUT_S)
        await stop(*self._background)
        # A connection that was lost meanwhile is not worth waiting for.
        with contextlib.suppress(*UNREACHABLE):
            await self._client.aclose()

    async def reachable(self) -> bool:
        try:
            await self.ask(("PING",))
        except Unavailable:
            return False
        return True

    async def ask(self, *commands: Command) -> list[Any]:
        """The reply to each command, in one round trip."""
        with translate_errors(), keep_cancellation():
            async with asyncio.timeout(COMMAND_TIMEOUT_S), self._client.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                answers: list[Any] = await pipeline.execute()
                return answers

    @contextlib.asynccontextmanager
    async def subscribed(self, pattern: str) -> AsyncIterator[Subscription]:
        """A separate connection that receives every message on these channels from the moment it is returned."""
        connection = self._pool.make_connection()
        try:
            with translate_errors(), keep_cancellation():
                async with asyncio.timeout(COMMAND_TIMEOUT_S):
                    await connection.connect()
                    await connection.send_command("PSUBSCRIBE", pattern)
                    await connection.read_response()
            yield Subscription(connection)
        finally:
            await connection.disconnect(nowait=True)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that no caller waits for; it must not raise."""
        if self._is_closed:
            work.close()
            return
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _check_server(self) -> None:
        with translate_errors():
            try:
                async with asyncio.timeout(COMMAND_TIMEOUT_S):
                    await self._client.ping()
                    is_cluster = bool((await self._info("cluster")).get("cluster_enabled"))
                    memory = await self._info("memory")
            except redis.RedisError as error:
                if is_our_fault(error):
                    raise Refused(
                        "bad_redis",
                        f"Redis refuses the login: {error}. Check the user, password and database number in TORPOR_REDIS_URL",
                    ) from None
                raise
        # Channels would work there, but one script cannot use the keys of two workspaces.
        if is_cluster:
            raise Refused(
                "bad_redis", "TORPOR_REDIS_URL is a Redis Cluster. Torpor needs a single Redis (with or without replicas)"
            )
        if memory.get("maxmemory") and memory.get("maxmemory_policy") != "noeviction":
            log.warning(
                "bus_may_forget",
                maxmemory_policy=memory.get("maxmemory_policy"),
                remedy="set maxmemory-policy to noeviction: after an eviction, no idle workspace is stopped for a while",
            )

    async def _info(self, section: str) -> dict[str, Any]:
        try:
            return dict(await self._client.info(section))
        except redis.ResponseError:
            return {}  # not permitted; a problem shows up later
