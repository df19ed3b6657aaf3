"""Test that a database is migrated to the current schema, once and safely."""

import asyncio
import hashlib
from importlib.resources import files

import asyncpg
import pytest

from torpor.domain.errors import Hopeless, Unavailable
from torpor.store.migrate import migrate, migrations

pytestmark = pytest.mark.anyio

# The beginning of the SHA-256 of each migration. A released migration never changes, not even in a comment: a database that has
# applied it would refuse to start. Add a line for each new migration.
DIGESTS = {
    "0001_workspaces.sql": "bbf3b1955aaa1c0a",
    "0002_latches.sql": "db9a01e180143d5f",
    "0003_controllers.sql": "b1c64bd09e449652",
    "0004_events.sql": "f6592751bb9eb586",
    "0005_collecting.sql": "d47e9d09a4b1bb56",
    "0006_activity.sql": "3f97942ec5dccb81",
    "0007_people.sql": "a9dc16b170ec1de4",
    "0008_confinement.sql": "dcf969970806eed6",
    "0009_accepting.sql": "5aacd0de0a26f15e",
    "0010_creators_and_one_time_secrets.sql": "0cb00b814d117099",
    "0011_waiting.sql": "41910ec0e4a6ed91",
    "0012_home_sizes.sql": "95dd90ac8da5043e",
    "0013_sleeping_soon.sql": "ed7bace2264202eb",
    "0014_freed_names.sql": "e70ce08c91ecf872",
    "0015_before_sleep.sql": "ff7290e0da1bc534",
    "0016_environment.sql": "4cda107d5fde90e9",
    "0017_secrets.sql": "cb4c874ff73afd9c",
    "0018_sizes.sql": "87056495e1fc0dd1",
    "0019_locations.sql": "f547c40f7ecbaf02",
    "0020_images.sql": "4dc0f13888c9869a",
    "0021_home_runtime.sql": "7d304fd9db4c561e",
    "0022_secret_key.sql": "1f5517c6d4897d32",
    "0023_sees_runtime.sql": "347fdb9623380e8c",
    "0024_packs.sql": "2ab493f7a63fa838",
    "0025_time_machine.sql": "f15ab910413699cd",
    "0026_progress_files.sql": "d5012f80d620b8fc",
    "0027_roots.sql": "1ede5078992ee4d9",
    "0028_left_over_copies.sql": "1180d64b32d3a0cd",
}


async def test_a_new_database_gets_every_migration_and_a_second_run_none(empty_database_url: str) -> None:
    names = [step.name for step in migrations()]
    assert await migrate(empty_database_url) == names
    assert await migrate(empty_database_url) == []


async def test_concurrent_runs_apply_each_migration_once(empty_database_url: str) -> None:
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


async def test_an_unreachable_database_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await migrate("postgresql://nobody@127.0.0.1:1/nothing")


def test_no_migration_has_changed() -> None:
    folder = files("torpor.store") / "migrations"
    found = {
        one.name: hashlib.sha256(one.read_bytes()).hexdigest()[:16] for one in folder.iterdir() if one.name.endswith(".sql")
    }
    assert found == DIGESTS
