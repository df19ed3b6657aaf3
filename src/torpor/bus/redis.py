"""How is the bus reached, and what do its errors mean?

Any Redis from 6.2 on, or Valkey. Everything that goes there goes through here: nobody else knows redis-py or its errors.
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
COMMAND_TIMEOUT_S = 5.0  # the whole of it: waiting for a free connection, connecting, asking
SILENCE_S = 5.0  # of a listener's connection, after which it is asked whether it still lives
GOODBYE_S = 1.0

Command: TypeAlias = tuple[str | bytes | int, ...]

UNREACHABLE = (redis.RedisError, OSError, TimeoutError)
# What a wrong login looks like: somebody must change it.
WRONG = (AuthenticationError, AuthorizationError, NoPermissionError)

BAD_ADDRESS = (
    "the address of Redis cannot be understood; it is redis://[user[:password]@]host[:port][/number],"
    " the same with rediss:// for TLS, or unix:///path/of/the/socket"
)


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Foreign errors become ours where they enter; the address itself, with its password, is never repeated."""
    try:
        yield
    except UNREACHABLE as error:
        raise Unavailable(f"the bus cannot be reached: {str(error) or type(error).__name__}") from error


def is_our_fault(error: redis.RedisError) -> bool:
    """Whether the login or the number of the database is wrong. On a Unix socket redis-py wraps it once more."""
    return any(isinstance(one, WRONG) or "DB index" in str(one) for one in (error, error.__cause__))


def pool_of(url: str, connections: int) -> Any:
    try:
        pool: Any = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=connections, timeout=COMMAND_TIMEOUT_S)
        pool.connection_kwargs |= {
            # What the address says about these is overruled.
            "decode_responses": False,
            "protocol": 2,
            "driver_info": None,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_timeout": COMMAND_TIMEOUT_S,
            "health_check_interval": 0,
            # Once, for a connection that was found broken when it was used. What took too long is not tried again.
            "retry": Retry(NoBackoff(), 1, (redis.ConnectionError,)),
            "retry_on_timeout": False,
            "retry_on_error": [],
        }
        pool.make_connection()  # which says whether every option of the address is known
    # Their words repeat parts of the address, and a badly written one may have its password anywhere.
    except (ValueError, TypeError, redis.RedisError):
        raise Refused("bad_redis", BAD_ADDRESS) from None
    return pool


class Subscription:
    """One connection that hears a pattern, until it breaks."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def next(self) -> tuple[str, bytes]:
        """The next (channel, message); Unavailable when the connection is lost, or when its other end lives no more."""
        was_asked = False
        # No iteration catches anything, so none can lose a cancellation.
        with translate_errors():
            while True:
                with keep_cancellation():
                    heard = await self._connection.read_response(timeout=SILENCE_S)
                    if heard is None and was_asked:
                        raise TimeoutError("no answer")
                    if heard is None:
                        await self._connection.send_command("PING")
                was_asked = heard is None
                report_progress()
                if heard and heard[0] == b"pmessage":
                    return heard[2].decode(errors="replace"), heard[3]


class Bus:
    """Connections to one Redis. It heals by itself: each verb tries anew."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._client = redis.asyncio.Redis.from_pool(pool)
        self._background: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @classmethod
    async def open(cls, url: str, *, connections: int = CONNECTIONS) -> "Bus":
        """Refused when the address or the login is wrong. One that does not answer now is no reason not to begin."""
        bus = cls(pool_of(url, connections))
        try:
            await bus._look()
        except Unavailable as out:
            log.warning("bus_unreachable", why=out.message)
        except BaseException:
            await bus.close()
            raise
        return bus

    async def close(self) -> None:
        """What was said in the background gets a moment to be heard."""
        self._is_closed = True
        if self._background:
            await asyncio.wait(self._background, timeout=GOODBYE_S)
        await stop(*self._background)
        # A connection that was lost under way is not worth waiting for.
        with contextlib.suppress(*UNREACHABLE):
            await self._client.aclose()

    async def reachable(self) -> bool:
        try:
            await self.ask(("PING",))
        except Unavailable:
            return False
        return True

    async def ask(self, *commands: Command) -> list[Any]:
        """The answer to each, in one round trip."""
        with translate_errors(), keep_cancellation():
            async with asyncio.timeout(COMMAND_TIMEOUT_S), self._client.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                answers: list[Any] = await pipeline.execute()
                return answers

    @contextlib.asynccontextmanager
    async def subscribed(self, pattern: str) -> AsyncIterator[Subscription]:
        """A connection of its own that hears everything on these channels from the moment it is handed out."""
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
        """Whatever nobody waits for; it must not raise."""
        if self._is_closed:
            work.close()
            return
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _look(self) -> None:
        with translate_errors():
            try:
                async with asyncio.timeout(COMMAND_TIMEOUT_S):
                    await self._client.ping()
                    is_cluster = bool((await self._told_of("cluster")).get("cluster_enabled"))
                    memory = await self._told_of("memory")
            except redis.RedisError as error:
                if is_our_fault(error):
                    raise Refused("bad_redis", f"Redis does not let us in: {error}") from None
                raise
        # Its channels would work, but one script may not ask for two workspaces there.
        if is_cluster:
            raise Refused("bad_redis", "this is a Redis Cluster; Torpor needs a single Redis (with or without replicas)")
        if memory.get("maxmemory") and memory.get("maxmemory_policy") != "noeviction":
            log.warning(
                "bus_may_forget",
                maxmemory_policy=memory.get("maxmemory_policy"),
                remedy="set maxmemory-policy to noeviction: after a key was thrown out nobody can be put to sleep for a while",
            )

    async def _told_of(self, section: str) -> dict[str, Any]:
        try:
            return dict(await self._client.info(section))
        except redis.ResponseError:
            return {}  # we may not ask, so we find out later
