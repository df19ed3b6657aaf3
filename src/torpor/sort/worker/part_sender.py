"""Send parts to their receivers, and retry when a receiver does not take them.

A few threads send, at most two at once to the same receiver, so that a slow receiver does not delay the others. A receiver that
cannot be reached is retried without limit, about once a second; the master decides when that is too long.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from torpor.sort.errors import PeerNotReady, PeerUnavailable, SortError, SortFailed, SortRefused
from torpor.sort.machine.records import PartHeader, Peer
from torpor.sort.proof import Proof
from torpor.sort.sizes import MESSAGE
from torpor.sort.wire.connection import Connection
from torpor.sort.wire.credentials import JoinCredentials
from torpor.sort.wire.failures import STRANGER
from torpor.sort.wire.shuffle import send_part

FIRST_DELAY_S, LONGEST_DELAY_S = 0.05, 1.0
NEWS_S = 3.0
"""A request that comes this soon after the acknowledgement was made before it: requests travel by two heartbeats."""

# The process that refuses with these codes has the receiver's old address. The receiver will be found at its new address.
NOT_THE_RECEIVER = frozenset({STRANGER, "other_job", "other_worker", "unknown_call"})

Part = tuple[int, int]
"""(partition, receiver)"""


class PartSource(Protocol):
    @property
    def proof(self) -> Proof: ...

    @property
    def pieces(self) -> tuple[int, ...]: ...

    def blocks(self, buffer: memoryview) -> Iterator[memoryview]:
        """All bytes, in messages, read through this buffer."""


class RunSource(Protocol):
    """The runs of this worker."""

    def part(self, partition: int) -> PartSource: ...


@dataclass(frozen=True, slots=True)
class SendCounters:
    acknowledged: int = 0
    """The number of different parts."""
    size: int = 0
    """The bytes that receivers have taken."""
    retries: int = 0
    resent: int = 0
    """Parts that a receiver had acknowledged, lost and taken again."""


@dataclass(slots=True)
class _ReceiverConnection:
    """The connection to one attempt of a receiver."""

    peer: Peer
    connection: Connection
    setbacks: int = 0
    """The number of failures in a row."""
    not_before: float = 0.0


class PartSender:
    def __init__(
        self,
        *,
        job: str,
        index: int,
        attempt: int,
        source: RunSource,
        join: JoinCredentials,
        seed: int,
        failed: Callable[[SortError], None],
        moved: Callable[[], None] = lambda: None,
        streams: int = 4,
        streams_per_peer: int = 2,
        timeout_s: float = 600.0,
    ) -> None:
        """`failed` is called with an error that a retry cannot help, `moved` whenever a part was acknowledged."""
        self._job, self._index, self._attempt = job, index, attempt
        self._source, self._join = source, join
        self._failed, self._moved = failed, moved
        self._streams_per_peer, self._timeout_s = streams_per_peer, timeout_s
        self._dice = random.Random(seed)  # noqa: S311 (for delays)
        self._changed = threading.Condition()
        self._lines: dict[int, _ReceiverConnection] = {}
        self._queued: dict[int, dict[int, None]] = {}
        """Receiver to partitions, in the order in which they were requested."""
        self._under_way: set[Part] = set()
        self._acknowledged: dict[Part, tuple[int, float]] = {}
        """The receiver's attempt, and the time of the acknowledgement."""
        self._counters = SendCounters()
        self._served_last = index
        self._is_closed = False
        self._threads = [threading.Thread(target=self._work, name=f"sort-send-{n}", daemon=True) for n in range(streams)]
        for thread in self._threads:
            thread.start()

    def want(self, parts: Iterable[Part]) -> None:
        """Request that these parts are sent. A part that is queued or being sent is not sent twice; an acknowledged part is
        sent again."""
        with self._changed:
            now = time.monotonic()
            for partition, receiver in parts:
                part = (partition, receiver)
                if receiver == self._index or part in self._under_way or self._is_old_news(part, now):
                    continue
                self._queued.setdefault(receiver, {}).setdefault(partition)
            self._changed.notify_all()

    def peers(self, peers: Iterable[Peer]) -> None:
        """Update the addresses of the other workers. A connection is renewed when its receiver has a new address or attempt."""
        left: list[Connection] = []
        with self._changed:
            for peer in peers:
                line = self._lines.get(peer.index)
                if self._is_closed or peer.index == self._index:
                    continue
                if line and (line.peer.data, line.peer.attempt) == (peer.data, peer.attempt):
                    continue
                if line:
                    left.append(line.connection)
                self._lines[peer.index] = _ReceiverConnection(peer, Connection(peer.data, self._join, data=True))
            self._changed.notify_all()
        for connection in left:
            connection.close()

    @property
    def counters(self) -> SendCounters:
        return self._counters

    @property
    def acknowledged(self) -> int:
        return self._counters.acknowledged

    def unacknowledged(self, parts: Iterable[Part]) -> tuple[Part, ...]:
        """The parts that no receiver has acknowledged yet. Parts for this worker itself need no acknowledgement."""
        with self._changed:
            return tuple(part for part in parts if part[1] != self._index and part not in self._acknowledged)

    def close(self) -> None:
        """Stop all transfers soon."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for line in self._lines.values():
            line.connection.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _is_old_news(self, part: Part, now: float) -> bool:
        if part not in self._acknowledged:
            return False
        attempt, at = self._acknowledged[part]
        line = self._lines.get(part[1])
        return line is not None and line.peer.attempt == attempt and now - at < NEWS_S

    def _work(self) -> None:
        buffer = memoryview(bytearray(MESSAGE))
        while (chosen := self._choose()) is not None:
            partition, line = chosen
            try:
                size, taken = self._send(partition, line, buffer)
            except PeerNotReady:
                self._put_back(partition, line, retries=0)
            except PeerUnavailable:
                self._put_back(partition, line, retries=1)
            except SortRefused as error:
                if error.code in NOT_THE_RECEIVER:
                    self._put_back(partition, line, retries=1)
                else:
                    self._give_up(partition, line, error)
            except SortError as error:
                self._give_up(partition, line, error)
            except Exception as error:
                what = f"partition {partition} cannot be sent to worker {line.peer.index}"
                self._give_up(partition, line, SortFailed(f"{what}: {type(error).__name__}: {error}"))
            else:
                self._acknowledge(partition, line, size, taken)

    def _send(self, partition: int, line: _ReceiverConnection, buffer: memoryview) -> tuple[int, bool]:
        part = self._source.part(partition)
        if not part.proof.records:
            # It is declared as empty, so its receiver does not wait for it.
            return 0, False
        receiver = line.peer.index
        header = PartHeader(self._job, partition, self._index, self._attempt, receiver, part.proof, part.pieces)
        return part.proof.size, send_part(line.connection, header, part.blocks(buffer), self._timeout_s)

    def _choose(self) -> tuple[int, _ReceiverConnection] | None:
        """Wait for a part that can be sent now; None after `close`."""
        with self._changed:
            while not self._is_closed:
                now = time.monotonic()
                soonest: float | None = None
                for receiver in self._in_turn():
                    line = self._lines[receiver]
                    if line.not_before > now:
                        soonest = line.not_before if soonest is None else min(soonest, line.not_before)
                        continue
                    partition = next(iter(self._queued[receiver]))
                    del self._queued[receiver][partition]
                    self._under_way.add((partition, receiver))
                    self._served_last = receiver
                    return partition, line
                self._changed.wait(None if soonest is None else soonest - now)
            return None

    def _in_turn(self) -> list[int]:
        """Receivers with queued parts and a free stream, beginning after the receiver that was served last."""
        busy: dict[int, int] = {}
        for _, receiver in self._under_way:
            busy[receiver] = busy.get(receiver, 0) + 1
        waiting = [
            receiver
            for receiver, partitions in self._queued.items()
            if partitions and (line := self._lines.get(receiver)) and busy.get(receiver, 0) < self._limit(line)
        ]
        return sorted(waiting, key=lambda receiver: (receiver <= self._served_last, receiver))

    def _limit(self, line: _ReceiverConnection) -> int:
        # One thread is enough to find out whether a receiver is back.
        return 1 if line.setbacks else self._streams_per_peer

    def _acknowledge(self, partition: int, line: _ReceiverConnection, size: int, taken: bool) -> None:
        part = (partition, line.peer.index)
        with self._changed:
            line.setbacks = 0
            self._under_way.discard(part)
            again = taken and part in self._acknowledged
            self._acknowledged[part] = (line.peer.attempt, time.monotonic())
            self._count(size=size if taken else 0, resent=int(again))
            self._changed.notify_all()
        self._moved()

    def _put_back(self, partition: int, line: _ReceiverConnection, *, retries: int) -> None:
        with self._changed:
            delay = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(line.setbacks, 16))
            line.setbacks += 1
            line.not_before = time.monotonic() + delay * self._dice.uniform(1.0, 1.5)
            self._under_way.discard((partition, line.peer.index))
            # It was the first in the queue and is the first again.
            others = self._queued.get(line.peer.index, {})
            self._queued[line.peer.index] = {partition: None} | others
            if not self._is_closed:
                self._count(retries=retries)
            self._changed.notify_all()

    def _give_up(self, partition: int, line: _ReceiverConnection, error: SortError) -> None:
        with self._changed:
            self._under_way.discard((partition, line.peer.index))
            self._changed.notify_all()
            if self._is_closed:
                return
        self._failed(error)

    def _count(self, *, size: int = 0, retries: int = 0, resent: int = 0) -> None:
        before = self._counters
        self._counters = SendCounters(
            len(self._acknowledged), before.size + size, before.retries + retries, before.resent + resent
        )
