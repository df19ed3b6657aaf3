"""Test that hints arrive, and never block the sender."""

import asyncio
import contextlib
import operator
import uuid
from collections.abc import AsyncIterator
from functools import partial

import pytest

from tests.support.valkey import kill_and_start_again, until_listened
from tests.support.waiting import until
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.hints import CHANNEL, MOST_IDS, RedisHints
from torpor.bus.redis import Bus

pytestmark = pytest.mark.anyio

Heard = list[tuple[str, ...]]


def an_id(number: int) -> str:
    """Ids that sort in the order of the numbers."""
    return str(uuid.UUID(int=number))


A, B, C = (an_id(number) for number in (10, 11, 12))


@contextlib.asynccontextmanager
async def heard_by(hints: RedisHints) -> AsyncIterator[Heard]:
    heard: Heard = []
    listening = asyncio.create_task(hints.listen(lambda *ids: heard.append(ids)))
    try:
        yield heard
    finally:
        assert not listening.done()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_a_hint_reaches_every_listener(redis_url: str, bus: Bus) -> None:
    other = await Bus.open(redis_url)
    async with heard_by(RedisHints(bus)) as here, heard_by(RedisHints(other)) as there:
        await until_listened(bus, 2)
        RedisHints(bus).wake(A)
        await until(lambda: here == there == [(A,)])
    await other.close()


async def test_hints_of_one_loop_iteration_are_one_message(bus: Bus) -> None:
    hints = RedisHints(bus)
    async with heard_by(hints) as heard:
        await until_listened(bus)
        hints.wake(B, A)
        hints.wake(C)
        hints.wake(A)
        await until(lambda: heard == [(A, B, C)])


async def test_a_hint_without_ids_or_with_too_many_means_all_workspaces(bus: Bus) -> None:
    hints = RedisHints(bus)
    async with heard_by(hints) as heard:
        await until_listened(bus)
        hints.wake(A)
        hints.wake()
        await until(lambda: heard == [()])
        for number in range(MOST_IDS + 1):
            hints.wake(an_id(number))
        await until(lambda: heard == [(), ()])
        hints.wake(*(an_id(number) for number in range(MOST_IDS)))
        await until(lambda: len(heard) == 3)
        assert len(heard[2]) == MOST_IDS


async def test_hints_during_a_send_go_with_the_next_message(bus: Bus) -> None:
    hints = RedisHints(bus)
    async with heard_by(hints) as heard:
        await until_listened(bus)
        for number in range(500):
            hints.wake(an_id(number))
            if number % 50 == 0:
                await asyncio.sleep(0)
        await until(lambda: sorted(one for ids in heard for one in ids) == sorted(map(an_id, range(500))))
        assert len(heard) < 20


async def test_invalid_messages_are_ignored(bus: Bus) -> None:
    async with heard_by(RedisHints(bus)) as heard:
        await until_listened(bus)
        said = (b"\xff\xfe  x\n", b"a", A.encode(), f"x {B} {B[:-1]}".encode())
        await bus.ask(*(("PUBLISH", CHANNEL, words) for words in said))
        await until(lambda: heard == [(A,), (B,)])


async def test_a_hint_neither_waits_nor_fails_while_the_bus_is_down(own_valkey: EmbeddedValkey, own_bus: Bus) -> None:
    await own_valkey.stop()
    hints = RedisHints(own_bus)
    for number in range(5000):
        hints.wake(an_id(number))
        if number % 1000 == 0:
            await asyncio.sleep(0.01)  # so that some fail meanwhile
    await own_valkey.start()
    async with heard_by(hints) as heard:
        await until_listened(own_bus)
        hints.wake(an_id(21))
        await until(lambda: (an_id(21),) in heard)


async def test_a_listener_gets_a_hint_for_all_workspaces_after_a_restart_of_the_bus(
    own_valkey: EmbeddedValkey, own_bus: Bus
) -> None:
    hints = RedisHints(own_bus)
    async with heard_by(hints) as heard:
        await until_listened(own_bus)
        hints.wake(an_id(20))
        await until(lambda: heard == [(an_id(20),)])
        for times in (1, 2):
            await kill_and_start_again(own_valkey)
            await until(partial(operator.eq, heard, [(an_id(20),), *[()] * times]))
        hints.wake(an_id(21))
        await until(lambda: heard[-1] == (an_id(21),))


async def test_closing_sends_the_last_hint_and_later_ones_are_dropped(redis_url: str, bus: Bus) -> None:
    leaving = await Bus.open(redis_url)
    async with heard_by(RedisHints(bus)) as heard:
        await until_listened(bus)
        hints = RedisHints(leaving)
        hints.wake(an_id(22))
        await leaving.close()
        hints.wake(an_id(23))
        RedisHints(bus).wake(an_id(24))  # a dropped hint would arrive before this one
        await until(lambda: (an_id(24),) in heard)
    assert heard == [(an_id(22),), (an_id(24),)]
