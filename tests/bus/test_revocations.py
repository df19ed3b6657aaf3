"""Test that every listener gets revocations, and ignores foreign messages."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from tests.support.valkey import kill_and_start_again, until_listened
from tests.support.waiting import until
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus
from torpor.bus.revocations import CHANNEL, Revocation, Revocations, from_message, to_message

pytestmark = pytest.mark.anyio
ONE, OTHER = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


@dataclass
class Ear:
    heard: list[Revocation] = field(default_factory=list)
    gaps: int = 0

    def miss(self) -> None:
        self.gaps += 1


@contextlib.asynccontextmanager
async def listening(revocations: Revocations) -> AsyncIterator[Ear]:
    ear = Ear()
    task = asyncio.create_task(revocations.listen(ear.heard.append, ear.miss))
    try:
        yield ear
    finally:
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_another_process_receives_a_revocation(bus: Bus) -> None:
    async with listening(Revocations(bus)) as ear:
        await until_listened(bus)
        await Revocations(bus).revoked(ONE, OTHER)
        await Revocations(bus).of_user(ONE)
        await until(lambda: len(ear.heard) == 2)
    assert ear.heard == [Revocation(frozenset({ONE, OTHER})), Revocation(user_id=ONE)]


async def test_the_same_process_receives_a_revocation_while_the_bus_is_down(own_valkey: EmbeddedValkey, own_bus: Bus) -> None:
    revocations = Revocations(own_bus)
    async with listening(revocations) as ear:
        await until_listened(own_bus)
        await own_valkey.stop()
        with capture_logs() as logs:
            await revocations.revoked(ONE)
        assert ear.heard == [Revocation(frozenset({ONE}))]
        assert "revocation_not_heard" in [entry["event"] for entry in logs]
        await own_valkey.start()
        await until(lambda: ear.gaps == 1)
    # A listener that has ended gets no more messages.
    await revocations.revoked(OTHER)
    assert len(ear.heard) == 1


async def test_a_listener_learns_of_a_gap(own_valkey: EmbeddedValkey, own_bus: Bus) -> None:
    async with listening(Revocations(own_bus)) as ear:
        await until_listened(own_bus)
        await kill_and_start_again(own_valkey)
        await until(lambda: ear.gaps == 1)
        await Revocations(own_bus).revoked(ONE)
        await until(lambda: ear.heard == [Revocation(frozenset({ONE}))])


async def test_an_empty_revocation_is_not_sent(bus: Bus) -> None:
    async with listening(Revocations(bus)) as ear:
        await until_listened(bus)
        await Revocations(bus).revoked()
        await Revocations(bus).revoked(ONE)
        await until(lambda: ear.heard != [])
    assert ear.heard == [Revocation(frozenset({ONE}))]


NOT_OURS = [
    b"",
    b"\xff",
    b"[]",
    b"null",
    b"{}",
    b'{"credentials": null, "user": null}',
    b'{"credentials": ["*"], "user": null}',
    b'{"credentials": [7], "user": null}',
    b'{"credentials": [], "user": "everybody"}',
    b'{"credentials": [], "user": 7}',
]


@pytest.mark.parametrize("message", NOT_OURS)
def test_an_invalid_message_is_ignored(message: bytes) -> None:
    assert from_message(message) is None


async def test_invalid_messages_do_not_end_the_listener(bus: Bus) -> None:
    async with listening(Revocations(bus)) as ear:
        await until_listened(bus)
        await bus.ask(*(("PUBLISH", CHANNEL, message) for message in NOT_OURS))
        await Revocations(bus).revoked(ONE)
        await until(lambda: ear.heard == [Revocation(frozenset({ONE}))])


@pytest.mark.parametrize("revoked", [Revocation(frozenset({ONE, OTHER})), Revocation(user_id=ONE), Revocation()])
def test_a_revocation_survives_encoding(revoked: Revocation) -> None:
    assert from_message(to_message(revoked)) == revoked


@pytest.mark.parametrize(
    ("revoked", "concerns"),
    [
        (Revocation(frozenset({ONE})), True),
        (Revocation(user_id=OTHER), True),
        (Revocation(user_id=ONE), False),
        (Revocation(), False),
    ],
)
def test_a_revocation_concerns_its_credentials_or_its_user(revoked: Revocation, concerns: bool) -> None:
    assert revoked.concerns(credential_id=ONE, user_id=OTHER) is concerns
