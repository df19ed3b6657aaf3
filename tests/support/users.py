"""Users and callers for tests of other subjects."""

import uuid

from torpor.accounts import Accounts, AuthMethod, Caller, digest, new_token
from torpor.bus.login_throttle import Throttle
from torpor.bus.redis import Bus
from torpor.bus.revocations import Revocations
from torpor.domain.access import EVERY_SCOPE, Scope
from torpor.store.database import Database
from torpor.store.user_store import NewCredential, NewUser, User, UserStore
from torpor.testing.defaults import DEFAULTS


def acting(user: User) -> Caller:
    return Caller(user, AuthMethod.TOKEN, str(uuid.uuid4()), EVERY_SCOPE, "test")


async def person(database: Database, username: str, *, is_admin: bool = False, max_running: int | None = None) -> Caller:
    """Create a user and return it as a caller."""
    async with UserStore(database).writing() as writing:
        made = await writing.create_user(NewUser(username, is_admin, max_running=max_running))
    assert made is not None, f"there is a user {username} already"
    return acting(made.user)


async def token_for(
    database: Database, user: User, *, scopes: frozenset[Scope] = EVERY_SCOPE, lives_s: float | None = None
) -> str:
    """Create an API token for this user."""
    token = new_token()
    async with UserStore(database).writing() as writing:
        await writing.create_credential(
            NewCredential(user.id, AuthMethod.TOKEN, "test", digest(token), scopes=scopes, lives_s=lives_s)
        )
    return token


def accounts_of(database: Database, bus: Bus) -> Accounts:
    return Accounts(UserStore(database), Revocations(bus), Throttle(bus), session_ttl_s=DEFAULTS.session_ttl)
