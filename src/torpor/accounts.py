"""Who is asking?

Tokens and sessions are random and stored as SHA-256 only; passwords as argon2id.
"""

import asyncio
import hashlib
import secrets

from pwdlib import PasswordHash

from torpor.domain.errors import Refused
from torpor.store.for_service import ServiceStore, User

TOKEN_PREFIX = "torpor_"  # noqa: S105 - a mark by which leaked tokens are found, no secret
SESSION_LIVES_S = 30 * 86_400
_HASHING_AT_ONCE = 2
_WAITING_AT_MOST = 32
_HASH = PasswordHash.recommended()
# Somebody who does not exist takes as long to refuse as somebody with a wrong password.
_NOBODY = _HASH.hash(secrets.token_urlsafe())


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class Accounts:
    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._hashing = asyncio.Semaphore(_HASHING_AT_ONCE)
        self._waiting = 0

    async def by_token(self, token: str) -> User:
        user = await self._store.user_by_token(digest(token))
        if user is None:
            raise Refused("unauthorized", "this token is not known here, or has expired")
        return user

    async def sign_in(self, username: str, password: str) -> str:
        """A new session's token."""
        known = await self._store.user_by_name(username)
        stored = known[1] if known else None
        matches = await self._matches(password, stored or _NOBODY)
        if known is None or stored is None or not matches:
            raise Refused("bad_credentials", "username or password is wrong")
        token = new_token()
        await self._store.delete_expired_tokens()
        await self._store.create_token(known[0].id, "session", digest(token), lives_s=SESSION_LIVES_S)
        return token

    async def sign_out(self, token: str) -> None:
        await self._store.end_session(digest(token))

    async def _matches(self, password: str, stored: str) -> bool:
        if self._waiting >= _WAITING_AT_MOST:
            raise Refused("too_many_sign_ins", "too many people sign in just now; try again in a moment", retry_after_s=5)
        self._waiting += 1
        try:
            async with self._hashing:
                return await asyncio.to_thread(_HASH.verify, password, stored)
        finally:
            self._waiting -= 1

    async def knows(self, username: str, password: str) -> bool:
        """Whether this password is really the one of this user."""
        known = await self._store.user_by_name(username)
        return known is not None and known[1] is not None and await self._matches(password, known[1])

    async def ensure_admin(self, username: str, password: str) -> User:
        """The first user of an installation; one that is there already keeps its password."""
        async with self._hashing:
            hashed = await asyncio.to_thread(_HASH.hash, password)
        await self._store.create_user(username, is_admin=True, password=hashed)
        known = await self._store.user_by_name(username)
        assert known is not None, "just created, or there before"
        return known[0]

    async def ensure_token(self, user: User, label: str, token: str) -> None:
        """This very token is good, and no other under this label."""
        await self._store.delete_tokens_labelled(user.id, label)
        await self._store.create_token(user.id, label, digest(token), lives_s=None)


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)
