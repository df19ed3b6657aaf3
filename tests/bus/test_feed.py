"""Test that listeners get messages in order, and notice when some may be missing."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from tests.support.valkey import AT_ONCE_S, kill_and_start_again, pid_of, until_listened
from tests.support.waiting import until
from torpor.bus import redis as redis_module
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.feed import RedisFeed
from torpor.bus.redis import Bus
from torpor.domain.errors import Unavailable

pytestmark = pytest.mark.anyio


@dataclass
class Ear:
    heard: list[tuple[str, bytes]] = field(default_factory=list)
    gaps: int = 0
    """How many gaps were reported."""

    def hear(self, channel: str, message: bytes) -> None:
        self.heard.append((channel, message))

    def miss(self) -> None:
        self.gaps += 1

    def has_missed(self, times: int) -> bool:
        return self.gaps == times


@contextlib.asynccontextmanager
async def listening_to(bus: Bus, pattern: str) -> AsyncIterator[Ear]:
    ear = Ear()
    listening = asyncio.create_task(RedisFeed(bus).listen(pattern, ear.hear, ear.miss))
    try:
        yield ear
    finally:
        assert not listening.done()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_messages_arrive_in_order_with_their_channel_and_every_byte(bus: Bus) -> None:
    messages = [(f"workspace:{number % 7}", b"\x00\xff\r\n%d" % number) for number in range(3000)]
    async with listening_to(bus, "workspace:*") as ear:
        await until_listened(bus)
        await RedisFeed(bus).publish(messages)
        await until(lambda: len(ear.heard) == len(messages))
    assert ear.heard == messages
    assert ear.gaps == 0


async def test_only_matching_channels_are_received(bus: Bus) -> None:
    async with listening_to(bus, "workspace:*") as some, listening_to(bus, "*") as everything:
        await until_listened(bus, 2)
        await RedisFeed(bus).publish([("owner:a", b"1"), ("workspace:b", b"2")])
        await until(lambda: len(everything.heard) == 2)
        await until(lambda: some.heard == [("workspace:b", b"2")])


async def test_publishing_no_messages_needs_no_bus(own_valkey: EmbeddedValkey, own_bus: Bus) -> None:
    await own_valkey.stop()
    await RedisFeed(own_bus).publish([])
    async with asyncio.timeout(AT_ONCE_S):
        with pytest.raises(Unavailable):
            await RedisFeed(own_bus).publish([("channel", b"message")])


async def test_a_large_message_arrives_whole(bus: Bus) -> None:
    large = os.urandom(3_000_000)
    async with listening_to(bus, "workspace:*") as ear:
        await until_listened(bus)
        await RedisFeed(bus).publish([("workspace:a", large)])
        await until(lambda: ear.heard == [("workspace:a", large)])


async def test_a_listener_survives_a_restart_of_the_bus_and_reports_a_gap(own_valkey: EmbeddedValkey, own_bus: Bus) -> None:
    async with listening_to(own_bus, "workspace:*") as ear:
        await until_listened(own_bus)
        for times in (1, 2, 3):
            await kill_and_start_again(own_valkey)
            await until(partial(ear.has_missed, times))
            # After the gap is reported, the listener gets every message.
            await RedisFeed(own_bus).publish([("workspace:a", b"%d" % times)])
            await until(partial(ear.heard.__contains__, ("workspace:a", b"%d" % times)))
            assert ear.heard[-1] == ("workspace:a", b"%d" % times)


async def test_a_killed_connection_is_opened_again(bus: Bus) -> None:
    async with listening_to(bus, "workspace:*") as ear:
        await until_listened(bus)
        await bus.ask(("CLIENT", "KILL", "TYPE", "pubsub"))
        await until(lambda: ear.gaps == 1)
        await RedisFeed(bus).publish([("workspace:a", b"1")])
        await until(lambda: ear.heard == [("workspace:a", b"1")])


def lost(logs: list[EventDict]) -> int:
    return sum(entry["event"] == "bus_lost" for entry in logs)


async def test_a_listener_that_starts_while_the_bus_is_down_reports_a_gap(own_valkey: EmbeddedValkey, own_bus: Bus) -> None:
    await own_valkey.stop()
    with capture_logs() as logs:
        async with listening_to(own_bus, "workspace:*") as ear:
            await until(lambda: lost(logs) == 1)
            await own_valkey.start()
            await until(lambda: ear.gaps == 1)
    assert lost(logs) == 1  # logged once for all attempts


async def pings(bus: Bus) -> int:
    _, said = await bus.ask(("PING",), ("INFO", "commandstats"))
    return int(said["cmdstat_ping"]["calls"])


async def test_a_quiet_connection_is_pinged_and_kept(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_module, "SILENCE_S", 0.05)
    async with listening_to(bus, "workspace:*") as ear:
        await until_listened(bus)

        before = await pings(bus)

        async def was_asked_often() -> bool:
            return await pings(bus) >= before + 50

        await until(was_asked_often)
        assert ear.gaps == 0
        await RedisFeed(bus).publish([("workspace:a", b"1")])
        await until(lambda: ear.heard == [("workspace:a", b"1")])


async def test_a_connection_to_a_hanging_bus_is_given_up(
    own_valkey: EmbeddedValkey, own_bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_module, "SILENCE_S", 0.1)
    monkeypatch.setattr(redis_module, "COMMAND_TIMEOUT_S", 0.3)
    with capture_logs() as logs:
        async with listening_to(own_bus, "workspace:*") as ear:
            await until_listened(own_bus)
            os.kill(pid_of(own_valkey), signal.SIGSTOP)
            try:
                await until(lambda: lost(logs) == 1)
            finally:
                os.kill(pid_of(own_valkey), signal.SIGCONT)
            await until(lambda: ear.gaps >= 1)
