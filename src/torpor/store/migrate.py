"""Which schema does this code need, and how does a database get there?

Numbered files, each in one transaction, each applied once; what was applied may never change afterwards.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import asyncpg

from torpor.domain.errors import Hopeless, Unavailable
from torpor.store.database import UNREACHABLE

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


async def migrate(url: str) -> Sequence[str]:
    """Bring the database to the schema of this code; the names of the migrations that were applied now."""
    try:
        connection = await asyncpg.connect(url)
    except UNREACHABLE as error:
        raise Unavailable(f"the database cannot be reached: {error}") from error
    try:
        # Polled, because a waiter inside pg_advisory_lock is killed as a deadlock during CREATE INDEX CONCURRENTLY.
        while not await connection.fetchval("SELECT pg_try_advisory_lock($1)", MIGRATION_LOCK_ID):
            await asyncio.sleep(_POLL_S)
        await connection.execute(_JOURNAL)
        applied = {row["number"]: row for row in await connection.fetch("SELECT * FROM schema_migrations")}
        steps = migrations()
        _refuse_strangers(applied, steps)
        done = []
        for step in steps:
            if step.number in applied:
                continue
            async with connection.transaction():
                await connection.execute(step.sql)
                await connection.execute(
                    "INSERT INTO schema_migrations (number, name, digest) VALUES ($1, $2, $3)",
                    step.number,
                    step.name,
                    step.digest,
                )
            done.append(step.name)
        return done
    finally:
        await connection.close()


def _refuse_strangers(applied: dict[int, asyncpg.Record], steps: Sequence[Migration]) -> None:
    known = {step.number: step for step in steps}
    for number, row in sorted(applied.items()):
        if number not in known:
            raise Hopeless(
                f"the database has migration {row['name']}, which this version of Torpor does not know; use a newer Torpor"
            )
        if row["digest"] != known[number].digest:
            raise Hopeless(f"migration {row['name']} was changed after it was applied to this database")
