"""Does any database get to today's schema, once and safely?"""

import asyncio

import asyncpg
import pytest

from torpor.domain.errors import Hopeless, Unavailable
from torpor.store.migrate import migrate, migrations

pytestmark = pytest.mark.anyio


async def test_a_new_database_gets_everything_and_a_second_run_nothing(empty_database_url: str) -> None:
    names = [step.name for step in migrations()]
    assert await migrate(empty_database_url) == names
    assert await migrate(empty_database_url) == []


async def test_many_at_once_apply_each_migration_once(empty_database_url: str) -> None:
    done = await asyncio.gather(*(migrate(empty_database_url) for _ in range(5)))
    assert sum(len(names) for names in done) == len(migrations())


async def test_a_migration_changed_after_it_was_applied_is_refused(empty_database_url: str) -> None:
    await migrate(empty_database_url)
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute("UPDATE schema_migrations SET digest = 'other' WHERE number = 1")
    with pytest.raises(Hopeless, match="changed after it was applied"):
        await migrate(empty_database_url)
    await connection.execute("INSERT INTO schema_migrations VALUES (9999, '9999_future.sql', '')")
    with pytest.raises(Hopeless):
        await migrate(empty_database_url)
    await connection.close()


async def test_a_database_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await migrate("postgresql://nobody@127.0.0.1:1/nothing")
