"""Which controllers live, and which of them leads?"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from torpor.store.database import Database
from torpor.store.queries import FOR_CONTROLLER


@dataclass(frozen=True, slots=True)
class Member:
    node_id: str
    epoch: int
    """Of this life."""
    started_at: datetime
    expires_at: datetime
    is_leader: bool


async def members(database: Database) -> Sequence[Member]:
    """Either role may ask."""
    return [Member(**row) for row in await database.fetch(FOR_CONTROLLER["members"])]
