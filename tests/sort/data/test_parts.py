"""Only complete and valid parts are kept, and other parts leave no trace."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sort.workers import (
    AMPLE,
    TINY,
    Worker,
    blocks,
    contexts,
    declared_for,
    expected,
    fixed_records,
    header,
    lines,
    merge_all,
    shuffle,
    sweep_all,
)
from torpor.sort.data.parts import PartStore
from torpor.sort.errors import PeerUnavailable, SortRefused
from torpor.sort.proof import Proof
from torpor.sort.record import GENSORT, Format, Lines

MEMORIES = pytest.mark.parametrize("memory", [TINY, AMPLE], ids=["file", "memory"])
GIVEN = [{"a": fixed_records(9_000, GENSORT, seed=1)}, {"a": fixed_records(30_000, GENSORT, seed=2)}]


@pytest.fixture
def pair(tmp_path: Path, memory: int) -> Iterator[tuple[Worker, Worker]]:
    """A receiver of three partitions and its one sender. With little memory the parts are files."""
    with contexts(tmp_path, GIVEN, memory=memory) as made:
        receiver, sender = sweep_all(made)
        yield receiver, sender


def left_in(worker: Worker) -> list[str]:
    return sorted(path.name for path in worker.context.place.parts.iterdir())


@MEMORIES
def test_a_part_counts_when_it_is_complete(pair: tuple[Worker, Worker], memory: int) -> None:
    receiver, sender = pair
    assert not receiver.parts.has(0, 1)
    assert receiver.parts.receive(header(sender, receiver, 0), blocks(sender, 0)) is True
    assert receiver.parts.has(0, 1)
    assert left_in(receiver) == ([] if memory == AMPLE else ["part.00000.00001"])
    assert receiver.parts.lacking({0: tuple(worker.runs.declared[0] for worker in pair)}) == ()


@MEMORIES
def test_a_repeated_part_is_not_read(pair: tuple[Worker, Worker]) -> None:
    receiver, sender = pair
    receiver.parts.receive(header(sender, receiver, 0), blocks(sender, 0))

    stream = iter([b"never read"])
    assert receiver.parts.receive(header(sender, receiver, 0), stream) is False
    assert next(stream) == b"never read"


def damaged(data: bytes, how: str) -> bytes:
    match how:
        case "short":
            return data[:-1]
        case "cut by a record":
            return data[:-100]
        case "nothing":
            return b""
        case "long":
            return data + data[:100]
        case "flipped":
            return data[:777] + bytes([data[777] ^ 4]) + data[778:]
        case "doubled":
            return data[:100] + data[:100] + data[200:]
    raise AssertionError(how)


@MEMORIES
@pytest.mark.parametrize("how", ["short", "cut by a record", "nothing", "long", "flipped", "doubled"])
def test_a_part_that_does_not_match_its_header_leaves_no_file(pair: tuple[Worker, Worker], memory: int, how: str) -> None:
    receiver, sender = pair
    data = b"".join(blocks(sender, 0))
    for _ in range(3):
        # A part that arrived completely and differs will differ the next time, too.
        error, said = (
            (SortRefused, "differs from what its sender declared")
            if how in ("flipped", "doubled")
            else (PeerUnavailable, "arrive completely")
        )
        with pytest.raises(error, match=said):
            receiver.parts.receive(header(sender, receiver, 0), [damaged(data, how)])
    assert not receiver.parts.has(0, 1)
    assert left_in(receiver) == []
    # The memory that was reserved for it is free again.
    assert receiver.parts.receive(header(sender, receiver, 0), [data])
    assert left_in(receiver) == ([] if memory == AMPLE else ["part.00000.00001"])


@MEMORIES
def test_a_failed_stream_leaves_no_file(pair: tuple[Worker, Worker]) -> None:
    receiver, sender = pair

    def fails() -> Iterator[bytes]:
        yield from list(blocks(sender, 0))[:1]
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError):
        receiver.parts.receive(header(sender, receiver, 0), fails())
    assert not receiver.parts.has(0, 1)
    assert left_in(receiver) == []


@MEMORIES
def test_two_streams_of_the_same_part_do_no_harm(pair: tuple[Worker, Worker]) -> None:
    receiver, sender = pair
    both = threading.Barrier(2)

    def slowly() -> Iterator[bytes]:
        for block in blocks(sender, 0):
            both.wait(20)
            yield block

    def receive() -> None:
        receiver.parts.receive(header(sender, receiver, 0), slowly())

    threads = [threading.Thread(target=receive) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert receiver.parts.has(0, 1)
    assert len(left_in(receiver)) <= 1
    shuffle([receiver, sender])
    assert merge_all([receiver, sender]) == expected(GIVEN, GENSORT)


@MEMORIES
def test_blocks_may_be_cut_anywhere(pair: tuple[Worker, Worker]) -> None:
    receiver, sender = pair
    data = b"".join(blocks(sender, 0))
    assert receiver.parts.receive(header(sender, receiver, 0), (data[at : at + 333] for at in range(0, len(data), 333)))


@MEMORIES
def test_a_part_for_another_receiver_is_refused(pair: tuple[Worker, Worker]) -> None:
    receiver, sender = pair
    with pytest.raises(SortRefused):
        receiver.parts.receive(header(sender, receiver, 4), blocks(sender, 4))
    lie = replace(header(sender, receiver, 0), pieces=(5,))
    with pytest.raises(SortRefused):
        receiver.parts.receive(lie, blocks(sender, 0))


@MEMORIES
def test_a_declared_part_that_has_not_arrived_is_lacking(pair: tuple[Worker, Worker]) -> None:
    receiver, sender = pair
    declared = declared_for(pair, 0)
    assert receiver.parts.lacking(declared) == ((0, 1), (1, 1), (2, 1))
    receiver.parts.receive(header(sender, receiver, 1), blocks(sender, 1))
    assert receiver.parts.lacking(declared) == ((0, 1), (2, 1))
    # A part without records is not sent.
    assert receiver.parts.lacking({**declared, 0: (declared[0][0], Proof())}) == ((2, 1),)


@MEMORIES
def test_a_part_that_differs_from_its_declaration_is_removed(pair: tuple[Worker, Worker]) -> None:
    receiver, sender = pair
    receiver.parts.receive(header(sender, receiver, 1), blocks(sender, 1))
    other = {1: (Proof(), Proof(1, 100, 5))}
    assert receiver.parts.lacking(other) == ((1, 1),)
    assert not receiver.parts.has(1, 1)
    assert left_in(receiver) == []


@pytest.mark.parametrize("memory", [TINY], ids=["file"])
@pytest.mark.parametrize("damage", ["none", "byte", "short", "manifest"])
def test_complete_parts_are_found_after_a_restart(pair: tuple[Worker, Worker], damage: str) -> None:
    receiver, sender = pair
    shuffle([receiver, sender])
    victim = receiver.context.place.part_file(1, 1)
    match damage:
        case "byte":
            data = bytearray(victim.read_bytes())
            data[99] ^= 128
            victim.write_bytes(data)
        case "short":
            victim.write_bytes(victim.read_bytes()[:-100])
        case "manifest":
            receiver.context.place.manifest_of(victim).unlink()
    receiver.parts = PartStore(receiver.context)
    assert not receiver.parts.has(0, 1)
    receiver.parts.load_kept()
    declared = declared_for(pair, 0)
    assert receiver.parts.lacking(declared) == (() if damage == "none" else ((1, 1),))
    assert victim.exists() is (damage == "none")
    shuffle([receiver, sender])
    assert merge_all([receiver, sender]) == expected(GIVEN, GENSORT)


@pytest.mark.parametrize("memory", [TINY, AMPLE])
@pytest.mark.parametrize("form", [Lines(), Lines(2, b",")], ids=str)
def test_lines_cut_by_blocks_are_proven(tmp_path: Path, memory: int, form: Format) -> None:
    given = [{"a": lines(100, 1)}, {"a": lines(5_000, 2)}]
    with contexts(tmp_path, given, form, memory=memory) as made:
        receiver, sender = sweep_all(made)
        data = b"".join(blocks(sender, 0))
        assert receiver.parts.receive(header(sender, receiver, 0), (data[at : at + 777] for at in range(0, len(data), 777)))
        with pytest.raises(SortRefused, match="differs from what its sender declared"):
            receiver.parts.receive(header(sender, receiver, 1), [b"".join(blocks(sender, 1))[:-1] + b"x"])
