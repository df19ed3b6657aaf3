"""How does everybody hear at once that somebody's right to be here has ended?

The row is gone before anything is said, so whoever hears it and asks again learns the truth; and whoever does not hear it,
because the bus was out, asks again once it is back (`on_gap`).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from torpor.bus.redis import Bus
from torpor.bus.subscription import listen
from torpor.domain.errors import Unavailable
from torpor.domain.names import is_id

log = structlog.get_logger()

CHANNEL = "torpor:people"


@dataclass(frozen=True, slots=True)
class Revocation:
    """What is not good any more, or not what it was."""

    credential_ids: frozenset[str] = frozenset()
    user_id: str | None = None
    """Everything of this user."""

    def concerns(self, credential_id: str, user_id: str) -> bool:
        return credential_id in self.credential_ids or user_id == self.user_id


class Revocations:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._ears: list[Callable[[Revocation], None]] = []

    async def revoked(self, *credential_ids: str) -> None:
        """These are gone."""
        if credential_ids:
            await self._tell(Revocation(frozenset(credential_ids)))

    async def of_user(self, user_id: str) -> None:
        """Whatever this user is recognised by may be gone, or may mean something else."""
        await self._tell(Revocation(user_id=user_id))

    async def listen(
        self, on_revoked: Callable[[Revocation], None], on_gap: Callable[[], None], *, name: str = "revocations"
    ) -> None:
        """Until cancelled. What is said in this process is heard at once, and then again."""

        def heard(_channel: str, message: bytes) -> None:
            revoked = from_message(message)
            if revoked is not None:
                on_revoked(revoked)

        self._ears.append(on_revoked)
        try:
            await listen(self._bus, CHANNEL, heard, on_gap, name=name)
        finally:
            self._ears.remove(on_revoked)

    async def _tell(self, revoked: Revocation) -> None:
        for ear in tuple(self._ears):
            ear(revoked)
        try:
            await self._bus.ask(("PUBLISH", CHANNEL, to_message(revoked)))
        except Unavailable as out:
            # It is gone all the same: others ask again when the bus is back, and now and then without being told.
            log.warning("revocation_not_heard", why=out.message)


def to_message(revoked: Revocation) -> bytes:
    return json.dumps({"credentials": sorted(revoked.credential_ids), "user": revoked.user_id}).encode()


def from_message(message: bytes) -> Revocation | None:
    """None for what is none of ours: channels are open to whoever else uses this Redis."""
    try:
        said = json.loads(message)
        credentials, user = said["credentials"], said["user"]
    except (ValueError, TypeError, KeyError):
        return None
    if not isinstance(credentials, list) or not all(isinstance(one, str) and is_id(one) for one in credentials):
        return None
    if user is not None and not (isinstance(user, str) and is_id(user)):
        return None
    return Revocation(frozenset(credentials), user)
