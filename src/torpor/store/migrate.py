"""Bring a database to the schema that this code needs.

The migrations are numbered files. Each is applied once, in one transaction, and must never change afterwards.
"""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import asyncpg

from torpor.domain.errors import Hopeless, Refused, Unavailable
from torpor.store.database import translate_startup_errors

MIGRATION_LOCK_ID = 7_011_600
_POLL_S = 0.1

_JOURNAL = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    digest     text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> Sequence[Migration]:
    folder = files("torpor.store") / "migrations"
    found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    steps = [Migration(int(name.split("_")[0]), name, (folder / name).read_text(encoding="utf-8")) for name in found]
    if [step.number for step in steps] != list(range(1, len(steps) + 1)):
        raise Hopeless(f"the migrations are not numbered 1, 2, 3, ...: {found}")
    return steps


async def migrate(url: str, *, wait_s: float = 60) -> Sequence[str]:
    """Bring the database to the schema of this code; return the names of the applied migrations."""
    with translate_startup_errors():
        connection = await asyncpg.connect(url)
        try:
            await _alone(connection, wait_s)
            await connection.execute(_JOURNAL)
            applied = {row["number"]: row for row in await connection.fetch("SELECT * FROM schema_migrations")}
            steps = migrations()
            _refuse_strangers(applied, steps)
            due = [step for step in steps if step.number not in applied]
            for step in due:
                await _apply(connection, step)
        finally:
            await connection.close()
    return [step.name for step in due]


async def require_migrated(url: str) -> None:
    """Refused when the database lacks a migration of this code."""
    with translate_startup_errors():
        connection = await asyncpg.connect(url)
        try:
            has_journal = await connection.fetchval("SELECT to_regclass('schema_migrations') IS NOT NULL")
            rows = await connection.fetch("SELECT * FROM schema_migrations") if has_journal else []
        finally:
            await connection.close()
    applied, steps = {row["number"]: row for row in rows}, migrations()
    _refuse_strangers(applied, steps)
    if due := [step.name for step in steps if step.number not in applied]:
        raise Refused("schema_is_old", f"the database lacks {', '.join(due)}. Run `torpor migrate` first")


async def _alone(connection: "asyncpg.Connection[asyncpg.Record]", wait_s: float) -> None:
    """Polls, because a session that waits in pg_advisory_lock fails as a deadlock during CREATE INDEX CONCURRENTLY."""
    until = time.monotonic() + wait_s
    while not await connection.fetchval("SELECT pg_try_advisory_lock($1)", MIGRATION_LOCK_ID):
        if time.monotonic() > until:
            raise Unavailable(
                f"another process has been migrating this database for {wait_s:g} s (advisory lock {MIGRATION_LOCK_ID});"
                " try again when it has ended"
            )
        await asyncio.sleep(_POLL_S)


async def _apply(connection: "asyncpg.Connection[asyncpg.Record]", step: Migration) -> None:
    async with connection.transaction():
        await connection.execute(step.sql)
        insert = "INSERT INTO schema_migrations (number, name, digest) VALUES ($1, $2, $3)"
        await connection.execute(insert, step.number, step.name, step.digest)


def _refuse_strangers(applied: dict[int, asyncpg.Record], steps: Sequence[Migration]) -> None:
    known = {step.number: step for step in steps}
    for number, row in sorted(applied.items()):
        if number not in known:
            raise Hopeless(
                f"the database has migration {row['name']}, which this version of Torpor does not know. Use a newer Torpor"
            )
        if row["digest"] != known[number].digest:
            raise Hopeless(f"migration {row['name']} was changed after it was applied to this database")
