"""Create the first administrator of an installation that does not create one by itself."""

import secrets

from torpor.accounts.passwords import Passwords
from torpor.domain.errors import Refused
from torpor.domain.unconfined import admit_user
from torpor.domain.usernames import check_username
from torpor.store.database import retry_deadlock
from torpor.store.user_store import AuditEntry, NewUser, UserStore

ADMIN_EXISTS = "admin_exists"


class FirstAdmin:
    """For an operator who has the address of the database: there is no caller yet whose rights could be checked."""

    def __init__(self, store: UserStore, passwords: Passwords | None = None) -> None:
        self._store = store
        self._passwords = passwords or Passwords()

    @retry_deadlock
    async def create(self, username: str) -> str:
        """The one-time password of this administrator; Refused `admin_exists` where there is an administrator.

        An administrator who has not signed in, or who has used up the password without setting another, gets a new one.
        """
        check_username(username)
        password = secrets.token_urlsafe(12)
        hashed = await self._passwords.hash(password)
        failed = f"administrator {username!r} was not created"
        known = await self._store.by_name(username)
        async with self._store.writing() as writing:
            # Locked before the first read, so that of two calls at once the second sees the first one's administrator.
            await writing.hold_registry()
            others = await writing.administrators() - {username}
            if others:
                raise _exists(failed, min(others))
            made = await writing.create_user(NewUser(username, is_admin=True))
            account = made or (await writing.lock_user(known.user.id) if known is not None else None)
            if account is None or not account.user.is_admin or not account.user.is_active:
                raise Refused(
                    "name_taken", f"{failed}: there is already a user {username!r}; choose another name", name=username
                )
            if not account.is_one_time and (account.password is not None or account.is_from_provider):
                raise _exists(failed, username)
            await writing.set_password(account.user.id, hashed, is_one_time=True)
            admit_user(*await writing.users_and_confinements(), failed=failed)
            detail = {"user_id": account.user.id, "username": username, "is_admin": True, "password": "one-time"}
            action = "user.change" if made is None else "user.create"
            await writing.audit(AuditEntry(action, username=username, how="SYSTEM", detail=detail))
        return password


def _exists(failed: str, username: str) -> Refused:
    return Refused(
        ADMIN_EXISTS,
        f"{failed}: there is already an administrator {username!r}, who can create others (`torpor users create NAME --admin`)",
        username=username,
    )
