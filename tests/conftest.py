"""Fixtures for all tests.

Each pytest-xdist worker has one throwaway PostgreSQL, started by the first test that needs it. Each test gets a new
database: a file copy of a template that was migrated once.
"""

import secrets
import signal
from collections.abc import AsyncIterator

import asyncpg
import hypothesis
import pytest
import structlog

from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus
from torpor.store.embedded import EmbeddedPostgres

pytest_plugins = ["tests.support.timeouts"]

# The same examples in each run, without time limits. `--hypothesis-profile=default` draws others.
hypothesis.settings.register_profile(
    "torpor", deadline=None, derandomize=True, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("torpor")

TEMPLATE = "torpor_template"


class SkippedTests:
    """Record the skipped tests, so that CI can run them on a machine that has all requirements."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._names.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.cache is not None:
            session.config.cache.set("torpor/skipped", sorted(self._names))


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs with SIGINT ignored, and every program that a test starts would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A worker of pytest-xdist sends its reports to the process that started it.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkippedTests())


@pytest.fixture(scope="session", autouse=True)
def plain_tracebacks() -> None:
    """As the product logs them. By default structlog renders them with all locals, so slowly that a membership expires
    meanwhile."""
    *others, _ = structlog.get_config()["processors"]
    structlog.configure(
        [*others, structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)]
    )


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
async def postgres(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedPostgres]:
    """A running PostgreSQL without durability, which makes it fast."""
    async with EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), durable=False) as server:
        yield server


@pytest.fixture(scope="session")
async def migrated_template(postgres: EmbeddedPostgres) -> str:
    """The name of a database with the present schema, for copying only: no connection to it may stay open."""
    from torpor.store.migrate import migrate

    connection = await asyncpg.connect(postgres.dsn)
    await connection.execute(f"CREATE DATABASE {TEMPLATE} STRATEGY file_copy")
    await connection.close()
    await migrate(postgres.dsn_of(TEMPLATE))
    return TEMPLATE


@pytest.fixture
async def empty_database_url(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """A new database without any schema, as for the first migration."""
    async for url in fresh_database(postgres, "template0"):
        yield url


@pytest.fixture
async def database_url(postgres: EmbeddedPostgres, migrated_template: str) -> AsyncIterator[str]:
    """A new database with the present schema, removed after the test."""
    async for url in fresh_database(postgres, migrated_template):
        yield url


async def fresh_database(postgres: EmbeddedPostgres, template: str) -> AsyncIterator[str]:
    name = f"test_{secrets.token_hex(6)}"
    connection = await asyncpg.connect(postgres.dsn)
    try:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        yield postgres.dsn_of(name)
        # A connection that a test left open must not delay the next tests.
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


@pytest.fixture(scope="session")
async def valkey(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedValkey]:
    """A running Valkey. A test that kills or restarts one starts its own."""
    async with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
async def redis_url(valkey: EmbeddedValkey) -> str:
    """An empty bus. Channels are shared between database numbers, so no other test may use the server meanwhile."""
    bus = await Bus.open(valkey.url)
    await bus.ask(("FLUSHALL",))
    await bus.close()
    return valkey.url
