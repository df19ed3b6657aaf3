"""Create the first administrator in a database that is there already (`torpor migrate --admin`)."""

from torpor.accounts.first_admin import FirstAdmin
from torpor.assemble.process import opened
from torpor.store.database import Role
from torpor.store.user_store import PeopleStore


async def create_first_admin(database_url: str, username: str) -> str:
    """The one-time password."""
    async with opened(database_url, Role.SERVICE) as database:
        return await FirstAdmin(PeopleStore(database)).create(username)
