"""Hash and check passwords.

argon2id is slow on purpose, so it runs in threads, a few at a time. A check is refused when too many wait; a smaller limit for
each address keeps one client from taking all places.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher

from torpor.bus.login_throttle import address_group
from torpor.domain.errors import Refused

Answer = TypeVar("Answer")

AT_ONCE = 2
WAITING_AT_MOST = 32
WAITING_FROM_ONE_ADDRESS = 4
AGAIN_S = 5


@dataclass(frozen=True, slots=True)
class PasswordCheck:
    is_right: bool
    newer: str | None = None
    """The same password hashed with the current parameters, where the stored hash has others."""


class Passwords:
    def __init__(self, hasher: Argon2Hasher | None = None) -> None:
        self._hash = PasswordHash((hasher or Argon2Hasher(),))
        # Checked for unknown users, so that refusing them takes as long as refusing a wrong password.
        self._placeholder = self._hash.hash(secrets.token_urlsafe())
        self._at_work = asyncio.Semaphore(AT_ONCE)
        self._waiting: Counter[str] = Counter()

    async def hash(self, password: str) -> str:
        async with self._at_work:
            return await asyncio.to_thread(self._hash.hash, password)

    async def check(self, password: str, stored: str | None, *, came_from: str = "") -> PasswordCheck:
        """`stored`: None where there is no password to match."""
        is_right, newer = await self._work(
            lambda: self._hash.verify_and_update(password, stored or self._placeholder), came_from
        )
        return PasswordCheck(True, newer) if is_right and stored is not None else PasswordCheck(False)

    async def _work(self, work: Callable[[], Answer], came_from: str) -> Answer:
        here = address_group(came_from)
        if self._waiting.total() >= WAITING_AT_MOST or self._waiting[here] >= WAITING_FROM_ONE_ADDRESS:
            raise Refused("too_many_sign_ins", "too many users are signing in; try again in a moment", retry_after_s=AGAIN_S)
        self._waiting[here] += 1
        try:
            async with self._at_work:
                return await asyncio.to_thread(work)
        finally:
            self._waiting[here] -= 1
            if not self._waiting[here]:
                del self._waiting[here]
