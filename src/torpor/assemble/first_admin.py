"""Create the first administrator in an existing database (`torpor migrate --admin`)."""

from torpor.accounts.first_admin import ADMIN_EXISTS, FirstAdmin
from torpor.assemble.process import open_database
from torpor.domain.errors import Refused
from torpor.store.database import Role
from torpor.store.user_store import UserStore


async def create_first_admin(database_url: str, username: str, *, if_none: bool) -> str | None:
    """The one-time password. With `if_none`, None if there is already an administrator with a password."""
    async with open_database(database_url, Role.SERVICE) as database:
        try:
            return await FirstAdmin(UserStore(database)).create(username)
        except Refused as refused:
            if if_none and refused.code == ADMIN_EXISTS:
                return None
            raise
