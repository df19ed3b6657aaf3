"""Test how errors of the database are reported to users."""

import asyncio

import pytest

from torpor.domain.errors import Unavailable
from torpor.store.database import Database, Deadlocked, Role, retry_deadlock

pytestmark = pytest.mark.anyio


async def test_the_message_of_a_deadlock_has_no_internal_details(database_url: str) -> None:
    database = await Database.open(database_url, Role.SERVICE)
    together = asyncio.Barrier(2)

    async def lock(first: int, then: int) -> None:
        async with database.transaction() as connection:
            await connection.execute("SELECT pg_advisory_xact_lock($1)", first)
            await together.wait()
            await connection.execute("SELECT pg_advisory_xact_lock($1)", then)

    try:
        said = await asyncio.gather(lock(1, 2), lock(2, 1), return_exceptions=True)
    finally:
        await database.close()
    (sent_back,) = [one for one in said if one is not None]
    assert isinstance(sent_back, Deadlocked)
    assert isinstance(sent_back, Unavailable)
    for internal in ("DETAIL", "HINT", "Process", "lock on"):
        assert internal not in sent_back.message


async def test_a_deadlocked_call_is_retried_once() -> None:
    done = []

    @retry_deadlock
    async def work(troubles: int) -> str:
        done.append(troubles)
        if len(done) <= troubles:
            raise Deadlocked("busy")
        return "done"

    assert await work(1) == "done"
    assert len(done) == 2
    done.clear()
    with pytest.raises(Deadlocked):
        await work(2)
    assert len(done) == 2
