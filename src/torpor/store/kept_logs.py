"""Keep the last lines of containers that were removed: the implementation of `torpor.ports.KeptLogs`."""

import uuid

import asyncpg

from torpor.domain.names import is_id
from torpor.store.database import Database
from torpor.store.queries import KEPT_LOGS

MOST_BYTES = 65536
"""As in the table."""


class StoredLogs:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, workspace_id: str, lines: bytes) -> None:
        """No effect for a workspace that is not in this database."""
        if is_id(workspace_id):
            try:
                await self._database.execute(KEPT_LOGS["keep"], uuid.UUID(workspace_id), lines[-MOST_BYTES:])
            except asyncpg.ForeignKeyViolationError:
                return

    async def read(self, workspace_id: str) -> bytes:
        if not is_id(workspace_id):
            return b""
        rows = await self._database.fetch(KEPT_LOGS["read"], uuid.UUID(workspace_id))
        return bytes(rows[0]["lines"]) if rows else b""
