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
_HASH = PasswordHash.recommended()
# Somebody who does not exist takes as long to refuse as somebody with a wrong password.
_NOBODY = _HASH.hash(secrets.token_urlsafe())


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class Accounts:
    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._hashing = asyncio.Semaphore(_HASHING_AT_ONCE)

    async def by_token(self, token: str) -> User:
        user = await self._store.user_by_token(digest(token))
        if user is None:
            raise Refused("unauthorized", "this token is not known here, or has expired")
        return user

    async def sign_in(self, username: str, password: str) -> str:
        """A new session's token."""
        known = await self._store.user_by_name(username)
        stored = known[1] if known else None
        async with self._hashing:
            matches = await asyncio.to_thread(_HASH.verify, password, stored or _NOBODY)
        if known is None or stored is None or not matches:
            raise Refused("bad_credentials", "username or password is wrong")
        return await self._new_token(known[0], "session", lives_s=SESSION_LIVES_S)

    async def sign_out(self, token: str) -> None:
        await self._store.delete_token(digest(token))

    async def ensure_admin(self, username: str, password: str) -> User:
        """The first user of an installation."""
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

    async def _new_token(self, user: User, label: str, *, lives_s: float | None) -> str:
        token = new_token()
        await self._store.create_token(user.id, label, digest(token), lives_s=lives_s)
        return token


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)
