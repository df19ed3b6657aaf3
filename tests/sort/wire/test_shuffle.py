"""A part arrives completely, or not at all."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sort.wire.lines import TIMEOUT_S, any_join, data_line, data_server, header
from torpor.sort.errors import PeerNotReady, PeerUnavailable, SortError, SortFailed, SortRefused, StaleAttempt
from torpor.sort.machine.records import PartHeader
from torpor.sort.wire.connection import Connection
from torpor.sort.wire.credentials import save_join
from torpor.sort.wire.shuffle import refuse_if_not_for, send_part

MESSAGE = 1 << 20


class Taking:
    """Accepts parts, and records the result of each."""

    def __init__(self, *, whole: bool = False, error: SortError | None = None) -> None:
        self.headers: list[PartHeader] = []
        self.blocks: list[bytes] = []
        self.broke: list[Exception] = []
        self.over = threading.Event()
        self.first_block = threading.Event()
        self._whole, self._error = whole, error

    def __call__(self, came: PartHeader, blocks: Iterator[bytes]) -> bool:
        self.headers.append(came)
        if self._error:
            raise self._error
        if self._whole:
            return False
        try:
            for block in blocks:
                self.blocks.append(block)
                self.first_block.set()
        except Exception as error:
            self.broke.append(error)
            raise
        finally:
            self.over.set()
        return True


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_part_arrives_in_its_blocks(tls: bool) -> None:
    blocks = [bytes([number]) * MESSAGE for number in range(20)] + [b"last"]
    came = header(sum(map(len, blocks)))
    taking = Taking()
    with data_line(taking, tls=tls) as connection:
        assert send_part(connection, came, iter(blocks), TIMEOUT_S)
    assert taking.headers == [came]
    assert taking.blocks == blocks


def test_an_empty_part_arrives() -> None:
    taking = Taking()
    with data_line(taking) as connection:
        assert send_part(connection, header(0), (), TIMEOUT_S)
    assert taking.blocks == []


def test_one_buffer_may_serve_all_blocks() -> None:
    buffer = memoryview(bytearray(1_000))

    def blocks() -> Iterator[memoryview]:
        for number in range(200):
            buffer[:] = bytes([number]) * 1_000
            yield buffer

    taking = Taking()
    with data_line(taking) as connection:
        assert send_part(connection, header(200_000), blocks(), TIMEOUT_S)
    assert b"".join(taking.blocks) == b"".join(bytes([number]) * 1_000 for number in range(200))


def test_a_part_that_is_already_complete_is_acknowledged_unread() -> None:
    """The sender has far more than any buffer in between, so it can only end because the receiver tells it to."""
    made = 0

    def blocks() -> Iterator[bytes]:
        nonlocal made
        for _ in range(4_000):
            made += 1
            yield bytes(MESSAGE)

    with data_line(Taking(whole=True)) as connection:
        assert not send_part(connection, header(4_000 * MESSAGE), blocks(), TIMEOUT_S)
    assert made < 400


@pytest.mark.parametrize(
    "error",
    [
        PeerNotReady("no boundaries yet"),
        StaleAttempt("attempt 2 sends now"),
        SortRefused("other_job", "another"),
        SortFailed("the disk is full"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_receiver_is_raised_at_the_sender(error: SortError) -> None:
    with data_line(Taking(error=error)) as connection, pytest.raises(type(error)) as raised:
        send_part(connection, header(100 * MESSAGE), (bytes(MESSAGE) for _ in range(100)), TIMEOUT_S)
    assert vars(raised.value) == vars(error)


def test_a_sender_that_fails_is_noticed_on_both_sides() -> None:
    taking = Taking()

    def blocks() -> Iterator[bytes]:
        yield bytes(MESSAGE)
        taking.first_block.wait()
        raise OSError("the disk")

    with data_line(taking) as connection:
        with pytest.raises(OSError, match="the disk"):
            send_part(connection, header(10 * MESSAGE), blocks(), TIMEOUT_S)
        taking.over.wait()
    assert [type(error) for error in taking.broke] == [PeerUnavailable]


def test_an_end_before_the_announced_bytes_is_an_error() -> None:
    taking = Taking()
    with data_line(taking) as connection, pytest.raises(PeerUnavailable, match="ended 1 bytes too early"):
        send_part(connection, header(MESSAGE + 1), [bytes(MESSAGE)], TIMEOUT_S)
    assert [type(error) for error in taking.broke] == [PeerUnavailable]


def test_more_than_the_announced_bytes_is_an_error() -> None:
    taking = Taking()
    with data_line(taking) as connection, pytest.raises(SortFailed, match="longer than"):
        send_part(connection, header(MESSAGE), [bytes(MESSAGE), b"x"], TIMEOUT_S)
    assert len(taking.blocks) == 1


def test_a_connection_that_is_closed_ends_its_part() -> None:
    taking = Taking()
    with data_line(taking) as connection:

        def blocks() -> Iterator[bytes]:
            yield bytes(MESSAGE)
            taking.first_block.wait()
            connection.close()
            while True:
                yield bytes(MESSAGE)

        with pytest.raises(PeerUnavailable):
            send_part(connection, header(1 << 40), blocks(), TIMEOUT_S)
        taking.over.wait()
    assert [type(error) for error in taking.broke] == [PeerUnavailable]


SENDS_A_BIT_AND_WAITS = """
import sys, time
from pathlib import Path
from torpor.sort.machine.records import PartHeader
from torpor.sort.proof import Proof
from torpor.sort.wire.connection import Connection
from torpor.sort.wire.credentials import load_join
from torpor.sort.wire.shuffle import send_part

def blocks():
    yield bytes(1 << 20)
    time.sleep(600)

connection = Connection(sys.argv[1], load_join(Path(sys.argv[2])), data=True)
send_part(connection, PartHeader("job", 0, 0, 1, 1, Proof(1, 10 << 20, 0)), blocks())
"""


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_sender_that_is_killed_midway_is_noticed(tmp_path: Path, tls: bool) -> None:
    taking = Taking()
    join = any_join(tls)
    save_join(join, tmp_path / "join.json")
    with data_server(taking, join) as serving:
        sender = subprocess.Popen([sys.executable, "-c", SENDS_A_BIT_AND_WAITS, serving.address, str(tmp_path / "join.json")])
        try:
            assert taking.first_block.wait(TIMEOUT_S)
        finally:
            sender.kill()
            sender.wait()
        assert taking.over.wait(TIMEOUT_S)
    assert [type(error) for error in taking.broke] == [PeerUnavailable]


def test_a_receiver_that_stops_midway_is_unavailable() -> None:
    taking = Taking()
    join = any_join()
    with data_server(taking, join) as serving, Connection(serving.address, join, data=True) as connection:

        def blocks() -> Iterator[bytes]:
            yield bytes(MESSAGE)
            taking.first_block.wait()
            serving.stop(0)
            while True:
                yield bytes(MESSAGE)

        with pytest.raises(PeerUnavailable):
            send_part(connection, header(1 << 40), blocks(), TIMEOUT_S)


def test_many_parts_at_once_do_not_mix() -> None:
    arrived: dict[int, bytes] = {}

    def accept(came: PartHeader, blocks: Iterator[bytes]) -> bool:
        arrived[came.partition] = b"".join(blocks)
        return True

    with data_line(accept, threads=4) as connection:

        def send(partition: int) -> None:
            blocks = (bytes([partition]) * 50_000 for _ in range(30))
            send_part(connection, header(1_500_000, partition=partition), blocks, TIMEOUT_S)

        senders = [threading.Thread(target=send, args=(partition,)) for partition in range(12)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    assert arrived == {partition: bytes([partition]) * 1_500_000 for partition in range(12)}


def test_a_part_for_another_job_or_worker_is_refused() -> None:
    refuse_if_not_for(header(1), "job", 1)
    with pytest.raises(SortRefused) as refused:
        refuse_if_not_for(header(1), "another", 1)
    assert refused.value.code == "other_job"
    with pytest.raises(SortRefused) as refused:
        refuse_if_not_for(header(1), "job", 2)
    assert refused.value.code == "other_worker"
