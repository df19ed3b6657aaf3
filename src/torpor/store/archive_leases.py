"""Keep archives while a program outside an operation reads them: a proof, a copy or an export.

While a lease of a workspace lasts, none of its packs and archives is marked or removed. A lease ends by itself, so a process
that was killed does not hold it for ever. Every role can use leases.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

from torpor.domain.errors import Unavailable
from torpor.store.database import Database
from torpor.store.queries import ARCHIVE_LEASES


@dataclass(frozen=True, slots=True)
class ArchiveLease:
    database: Database
    id: uuid.UUID
    lease_s: float

    async def renew(self) -> bool:
        """Call it more often than every `lease_s`. False: it has expired, so packs may have been removed since."""
        return await self.database.fetchrow(ARCHIVE_LEASES["renew_lease"], self.id, self.lease_s) is not None

    async def end(self) -> None:
        """Without a database it ends by itself."""
        with contextlib.suppress(Unavailable):
            await self.database.execute(ARCHIVE_LEASES["end_lease"], self.id)


@contextlib.asynccontextmanager
async def reading(database: Database, workspace_id: str, reason: str, *, lease_s: float) -> AsyncIterator[ArchiveLease]:
    """A lease for the time of this context. Read the rows of the archives after it has begun."""
    lease = ArchiveLease(database, uuid.uuid4(), lease_s)
    try:
        # In the block, because a cancellation can come after the commit.
        async with database.transaction() as connection:
            await connection.execute(ARCHIVE_LEASES["hold_for_lease"], uuid.UUID(workspace_id))
            await connection.execute(ARCHIVE_LEASES["begin_lease"], lease.id, uuid.UUID(workspace_id), reason, lease_s)
        yield lease
    finally:
        # In a task of its own, because a cancelled reader may be cancelled again at each await.
        await asyncio.shield(asyncio.create_task(lease.end()))
