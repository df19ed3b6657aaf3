"""Announce to all processes that credentials have ended or changed.

The row is deleted before the announcement, so a listener that checks again gets the truth. A listener that missed it, because
the bus was unreachable, checks again once the bus is back (`on_gap`).
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
    """Credentials that are no longer valid, or have changed."""

    credential_ids: frozenset[str] = frozenset()
    user_id: str | None = None
    """All credentials of this user."""

    def concerns(self, credential_id: str, user_id: str) -> bool:
        return credential_id in self.credential_ids or user_id == self.user_id


class Revocations:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._listeners: list[Callable[[Revocation], None]] = []

    async def revoked(self, *credential_ids: str) -> None:
        """Announce that these are deleted."""
        if credential_ids:
            await self._announce(Revocation(frozenset(credential_ids)))

    async def of_user(self, user_id: str) -> None:
        """Announce that any credential of this user may be deleted or changed."""
        await self._announce(Revocation(user_id=user_id))

    async def listen(
        self, on_revoked: Callable[[Revocation], None], on_gap: Callable[[], None], *, name: str = "revocations"
    ) -> None:
        """Run until cancelled. Announcements of this process arrive at once, and then again from the bus."""

        def on_message(_channel: str, message: bytes) -> None:
            revoked = from_message(message)
            if revoked is not None:
                on_revoked(revoked)

        self._listeners.append(on_revoked)
        try:
            await listen(self._bus, CHANNEL, on_message, on_gap, name=name)
        finally:
            self._listeners.remove(on_revoked)

    async def _announce(self, revoked: Revocation) -> None:
        for listener in tuple(self._listeners):
            listener(revoked)
        try:
            await self._bus.ask(("PUBLISH", CHANNEL, to_message(revoked)))
        except Unavailable as out:
            # The row is deleted anyway: other processes check again when the bus is back, and from time to time.
            log.warning("revocation_not_heard", why=out.message)


def to_message(revoked: Revocation) -> bytes:
    return json.dumps({"credentials": sorted(revoked.credential_ids), "user": revoked.user_id}).encode()


def from_message(message: bytes) -> Revocation | None:
    """None for a foreign message: other users of this Redis can write to the channel."""
    try:
        content = json.loads(message)
        credentials, user = content["credentials"], content["user"]
    except (ValueError, TypeError, KeyError):
        return None
    if not isinstance(credentials, list) or not all(isinstance(one, str) and is_id(one) for one in credentials):
        return None
    if user is not None and not (isinstance(user, str) and is_id(user)):
        return None
    return Revocation(frozenset(credentials), user)
