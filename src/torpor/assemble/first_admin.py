"""Create the first administrator in an existing database (`torpor migrate --admin`)."""

from torpor.accounts.first_admin import FirstAdmin
from torpor.assemble.process import open_database
from torpor.store.database import Role
from torpor.store.user_store import UserStore


async def create_first_admin(database_url: str, username: str) -> str:
    """The one-time password."""
    async with open_database(database_url, Role.SERVICE) as database:
        return await FirstAdmin(UserStore(database)).create(username)
