"""Every part reaches its receiver, although the receiver fails, moves or restarts."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tests.sort.wire.lines import ANYWHERE, any_join, data_server
from tests.support.waiting import wait_until
from torpor.sort.errors import PeerNotReady, PeerUnavailable, SortError, SortFailed, SortRefused, StaleAttempt
from torpor.sort.machine.records import PartHeader, Peer
from torpor.sort.proof import Proof
from torpor.sort.wire.calls import handlers
from torpor.sort.wire.credentials import JoinCredentials
from torpor.sort.wire.server import serve
from torpor.sort.wire.shuffle import part_receiver, refuse_if_not_for
from torpor.sort.worker.part_sender import Part, PartSender

PIECES = (3_000, 500)


def content(partition: int) -> bytes:
    return bytes([partition]) * sum(PIECES)


@dataclass(frozen=True)
class PartOfMemory:
    partition: int
    size: int

    @property
    def proof(self) -> Proof:
        return Proof(self.size // 100, self.size, self.partition)

    @property
    def pieces(self) -> tuple[int, ...]:
        return PIECES if self.size else ()

    def blocks(self, buffer: memoryview) -> Iterator[memoryview]:
        for at in range(0, self.size, 1_000):
            size = min(1_000, self.size - at)
            buffer[:size] = content(self.partition)[at : at + size]
            yield buffer[:size]


@dataclass
class Memory:
    """Runs in memory."""

    empty: frozenset[int] = frozenset()
    error: Exception | None = None

    def part(self, partition: int) -> PartOfMemory:
        if self.error:
            raise self.error
        return PartOfMemory(partition, 0 if partition in self.empty else sum(PIECES))


@dataclass
class Receiver:
    """Takes parts; `first` replaces the reaction to the first ones."""

    index: int = 1
    first: list[Callable[[], None]] = field(default_factory=list)
    always: Callable[[PartHeader], None] = lambda header: None
    arrived: dict[int, bytes] = field(default_factory=dict)
    asked: Counter[int] = field(default_factory=Counter)
    headers: list[PartHeader] = field(default_factory=list)

    def __call__(self, header: PartHeader, blocks: Iterator[bytes]) -> bool:
        refuse_if_not_for(header, "job", self.index)
        self.asked[header.partition] += 1
        self.headers.append(header)
        if self.first:
            self.first.pop(0)()
        self.always(header)
        if header.partition in self.arrived:
            return False
        self.arrived[header.partition] = b"".join(blocks)
        return True


class World:
    """One sender, worker 0, and its failures."""

    def __init__(self, join: JoinCredentials, source: Memory, streams: int) -> None:
        self.join = join
        self.failures: list[SortError] = []
        self.sender = PartSender(
            job="job",
            index=0,
            attempt=3,
            source=source,
            join=join,
            seed=1,
            failed=self.failures.append,
            streams=streams,
        )

    def delivered(self, parts: Iterable[Part]) -> None:
        wanted = tuple(parts)
        wait_until(lambda: self.failures or not self.sender.unacknowledged(wanted))
        assert self.failures == []


@contextmanager
def sending(source: Memory | None = None, *, streams: int = 4, join: JoinCredentials | None = None) -> Iterator[World]:
    world = World(join or any_join(), source or Memory(), streams)
    try:
        yield world
    finally:
        world.sender.close()


def peer(address: str, *, index: int = 1, attempt: int = 1) -> Peer:
    return Peer(index, attempt, "127.0.0.1:1", address)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_every_part_reaches_its_receiver(tls: bool) -> None:
    one, other = Receiver(1), Receiver(2)
    parts = [(partition, 1 + partition % 2) for partition in range(20)]
    with (
        sending(join=any_join(tls)) as world,
        data_server(one, world.join) as first,
        data_server(other, world.join) as second,
    ):
        world.sender.want(parts)
        world.sender.peers((peer(first.address), peer(second.address, index=2), peer("127.0.0.1:1", index=0)))
        world.delivered(parts)
        assert one.arrived == {partition: content(partition) for partition in range(0, 20, 2)}
        assert other.arrived == {partition: content(partition) for partition in range(1, 20, 2)}
        assert PartHeader("job", 4, 0, 3, 1, Proof(35, 3_500, 4), PIECES) in one.headers
        counters = world.sender.counters
        assert (counters.acknowledged, counters.size, counters.retries, counters.resent) == (20, 20 * 3_500, 0, 0)
        assert world.sender.acknowledged == 20


def test_own_parts_are_not_sent() -> None:
    own, other = Receiver(0), Receiver(1)
    with sending(streams=1) as world, data_server(own, world.join) as here, data_server(other, world.join) as there:
        world.sender.peers((peer(here.address, index=0), peer(there.address)))
        world.sender.want([(5, 0), (6, 1)])
        world.delivered([(5, 0), (6, 1)])
        assert world.sender.acknowledged == 1
    assert own.headers == []


def test_an_empty_part_counts_and_is_not_sent() -> None:
    receiver = Receiver()
    with sending(Memory(empty=frozenset({1}))) as world, data_server(receiver, world.join) as serving:
        world.sender.peers((peer(serving.address),))
        world.sender.want([(1, 1), (2, 1)])
        world.delivered([(1, 1), (2, 1)])
    assert set(receiver.asked) == {2}


def test_a_part_that_is_queued_or_being_sent_is_not_sent_twice() -> None:
    go_on, inside = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        go_on.wait()

    receiver = Receiver(first=[wait])
    parts = [(partition, 1) for partition in range(8)]
    with sending(streams=1) as world, data_server(receiver, world.join) as serving:
        world.sender.want(parts)
        world.sender.want(parts)
        world.sender.peers((peer(serving.address),))
        inside.wait()
        world.sender.want(parts)
        go_on.set()
        world.delivered(parts)
        # A late heartbeat still reports them as missing. The part that is requested last is sent last.
        world.sender.want([*parts, (8, 1)])
        world.delivered([(8, 1)])
    assert receiver.asked == Counter(range(9))


def test_not_yet_waits_and_uses_up_no_retries() -> None:
    receiver = Receiver(first=[raising(PeerNotReady("no boundaries yet"))] * 4)
    with sending(streams=1) as world, data_server(receiver, world.join) as serving:
        world.sender.peers((peer(serving.address),))
        world.sender.want([(1, 1)])
        world.delivered([(1, 1)])
        assert world.sender.counters.retries == 0
    assert receiver.asked[1] == 5
    assert receiver.arrived == {1: content(1)}


def test_an_interrupted_part_is_sent_again() -> None:
    receiver = Receiver(first=[raising(PeerUnavailable("the sender has gone away"))] * 2)
    with sending(streams=1) as world, data_server(receiver, world.join) as serving:
        world.sender.peers((peer(serving.address),))
        world.sender.want([(1, 1)])
        world.delivered([(1, 1)])
        assert world.sender.counters.retries == 2
        assert world.sender.counters.resent == 0
    assert receiver.arrived == {1: content(1)}


def test_a_restarted_receiver_is_found_at_its_address() -> None:
    receiver = Receiver()
    with sending() as world:
        with data_server(receiver, world.join) as serving:
            address = serving.address
        world.sender.peers((peer(address),))
        world.sender.want([(1, 1)])
        wait_until(lambda: world.sender.counters.retries >= 2)
        again = serve(handlers(part_receiver(receiver)), address, world.join, 2, data=True)
        try:
            world.delivered([(1, 1)])
        finally:
            again.stop(0)
    assert receiver.arrived == {1: content(1)}


def test_a_receiver_that_moved_is_found_at_its_new_address() -> None:
    receiver = Receiver()
    with sending() as world:
        with data_server(receiver, world.join) as serving:
            gone = serving.address
        world.sender.peers((peer(gone),))
        world.sender.want([(1, 1)])
        wait_until(lambda: world.sender.counters.retries >= 1)
        with data_server(receiver, world.join) as serving:
            world.sender.peers((peer(serving.address, attempt=2),))
            world.delivered([(1, 1)])
    assert receiver.arrived == {1: content(1)}


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_worker_of_another_job_at_the_old_address_is_no_failure(tls: bool) -> None:
    """A worker of another job: it does not know our token or, with TLS, our certificate."""
    stranger, receiver = Receiver(), Receiver()
    with sending(join=any_join(tls)) as world, data_server(stranger, any_join(tls)) as elsewhere:
        world.sender.peers((peer(elsewhere.address),))
        world.sender.want([(1, 1)])
        wait_until(lambda: world.sender.counters.retries >= 1)
        with data_server(receiver, world.join) as serving:
            world.sender.peers((peer(serving.address, attempt=2),))
            world.delivered([(1, 1)])
    assert stranger.headers == []


def test_another_worker_of_the_same_job_at_the_old_address_is_no_failure() -> None:
    other, receiver = Receiver(2), Receiver(1)
    with sending() as world, data_server(other, world.join) as elsewhere, data_server(receiver, world.join) as serving:
        world.sender.peers((peer(elsewhere.address),))
        world.sender.want([(1, 1)])
        wait_until(lambda: world.sender.counters.retries >= 1)
        world.sender.peers((peer(serving.address),))
        world.delivered([(1, 1)])
    assert other.headers == []
    assert receiver.arrived == {1: content(1)}


@pytest.mark.parametrize(
    "error",
    [StaleAttempt("attempt 4 sends now"), SortFailed("the disk is full"), SortRefused("wrong_state", "Failed")],
    ids=lambda error: type(error).__name__,
)
def test_a_permanent_error_is_reported_once(error: SortError) -> None:
    receiver = Receiver(first=[raising(error)])
    with sending() as world, data_server(receiver, world.join) as serving:
        world.sender.peers((peer(serving.address),))
        world.sender.want([(1, 1)])
        wait_until(lambda: world.failures)
        assert [(type(failure), failure.message) for failure in world.failures] == [(type(error), error.message)]
        assert world.sender.unacknowledged([(1, 1)]) == ((1, 1),)
        world.failures.clear()
        world.sender.want([(2, 1)])
        world.delivered([(2, 1)])
    assert receiver.asked == Counter({1: 1, 2: 1})


@pytest.mark.parametrize(
    "error", [SortFailed("run.00003 cannot be read"), ValueError("a fault of ours")], ids=["broken", "fault"]
)
def test_an_unreadable_run_is_reported(error: Exception) -> None:
    receiver = Receiver()
    with sending(Memory(error=error)) as world, data_server(receiver, world.join) as serving:
        world.sender.peers((peer(serving.address),))
        world.sender.want([(1, 1)])
        wait_until(lambda: world.failures)
    assert isinstance(world.failures[0], SortFailed)
    assert str(error) in world.failures[0].message
    assert receiver.headers == []


def test_a_receiver_with_a_new_attempt_gets_its_parts_again() -> None:
    before, after = Receiver(), Receiver()
    with sending() as world:
        with data_server(before, world.join) as serving:
            world.sender.peers((peer(serving.address),))
            world.sender.want([(1, 1), (2, 1)])
            world.delivered([(1, 1), (2, 1)])
        with data_server(after, world.join) as serving:
            world.sender.peers((peer(serving.address, attempt=2),))
            world.sender.want([(1, 1)])
            wait_until(lambda: world.sender.counters.resent == 1)
            assert world.sender.acknowledged == 2
    assert after.arrived == {1: content(1)}


def test_a_blocked_receiver_does_not_hold_up_another() -> None:
    freed = threading.Event()
    blocked, swift = Receiver(1, always=lambda header: wait_for(freed)), Receiver(2)
    parts = [(partition, 2) for partition in range(30)]
    with sending(streams=3) as world, data_server(blocked, world.join) as first, data_server(swift, world.join) as second:
        world.sender.peers((peer(first.address), peer(second.address, index=2)))
        world.sender.want([(partition, 1) for partition in range(30)])
        world.sender.want(parts)
        world.delivered(parts)
        assert blocked.arrived == {}
        assert sum(blocked.asked.values()) == 2
        freed.set()
        world.delivered([(partition, 1) for partition in range(30)])


def test_closing_ends_parts_in_progress() -> None:
    freed, inside = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        freed.wait()

    receiver = Receiver(first=[wait])
    with sending() as world, data_server(receiver, world.join) as serving:
        world.sender.peers((peer(serving.address), peer(ANYWHERE, index=2)))
        world.sender.want([(partition, 1 + partition % 2) for partition in range(10)])
        inside.wait()
        world.sender.close()
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("sort-send")]
        assert world.failures == []
        freed.set()


def raising(error: SortError) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def wait_for(event: threading.Event) -> None:
    event.wait()
