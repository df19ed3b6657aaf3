"""A server reports why it cannot listen, and answers during heavy data streams."""

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.sort.wire.lines import (
    JOB_STATUS,
    OWN_STATUS,
    TIMEOUT_S,
    any_join,
    control_answers,
    control_server,
    data_server,
    header,
)
from torpor.sort.errors import PeerNotReady, PeerUnavailable, SortRefused
from torpor.sort.machine.records import PartHeader
from torpor.sort.wire.calls import ABORT_WORKER, GET_JOB_STATUS, GET_WORKER_STATUS, handlers
from torpor.sort.wire.connection import Connection
from torpor.sort.wire.requests import Abort, Acknowledged, GetStatus, WorkerRef
from torpor.sort.wire.server import WAITING_PER_THREAD, serve
from torpor.sort.wire.shuffle import send_part


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SortRefused, match=f"port {port} of 127.0.0.1 is in use") as refused:
            serve(handlers(*control_answers("Master", [])), f"127.0.0.1:{port}", any_join(), 1, data=False)
    assert refused.value.code == "port_in_use"


def test_two_servers_do_not_share_a_port() -> None:
    join = any_join()
    with control_server("Master", join) as first, pytest.raises(SortRefused) as refused:
        serve(handlers(*control_answers("Master", [])), first.address, join, 1, data=False)
    assert refused.value.code == "port_in_use"


def test_a_port_is_free_again_at_once() -> None:
    join = any_join()
    with control_server("Master", join) as first, Connection(first.address, join) as connection:
        assert connection.call(GET_JOB_STATUS, GetStatus(), TIMEOUT_S) == JOB_STATUS
        first.stop(0)
        second = serve(handlers(*control_answers("Master", [])), first.address, join, 1, data=False)
        try:
            with Connection(second.address, join) as again:
                assert again.call(GET_JOB_STATUS, GetStatus(), TIMEOUT_S) == JOB_STATUS
        finally:
            second.stop(0)


@pytest.mark.parametrize("listen", ["192.0.2.1:0", "no-such-host.invalid:0"])
def test_an_address_of_another_machine_is_refused(listen: str) -> None:
    with pytest.raises(SortRefused) as refused:
        serve(handlers(*control_answers("Master", [])), listen, any_join(), 1, data=False)
    assert refused.value.code == "bad_address"


def test_many_data_streams_do_not_block_control_calls() -> None:
    """Every data thread is blocked, and so many streams wait that the next is refused; status and abort are answered."""
    threads = 2
    most = threads * (1 + WAITING_PER_THREAD)
    freed, entered = threading.Event(), threading.Semaphore(0)

    def accept(came: PartHeader, blocks: Iterator[bytes]) -> bool:
        entered.release()
        freed.wait()
        return not sum(map(len, blocks)) - came.proof.size

    join = any_join()
    outcomes: list[bool | str] = []

    def send(connection: Connection) -> None:
        try:
            outcomes.append(send_part(connection, header(4 << 20), (bytes(1 << 20) for _ in range(4)), TIMEOUT_S))
        except PeerNotReady:
            outcomes.append("not yet")
            sent_away.release()

    sent_away = threading.Semaphore(0)
    with (
        data_server(accept, join, threads=threads) as data,
        control_server("Worker", join) as control,
        Connection(data.address, join, data=True) as connection,
        Connection(control.address, join) as caller,
    ):
        senders = [threading.Thread(target=send, args=(connection,)) for _ in range(most + 3)]
        for sender in senders:
            sender.start()
        for _ in range(threads):
            entered.acquire()
        for _ in range(3):
            sent_away.acquire()
        assert caller.call(GET_WORKER_STATUS, GetStatus(), TIMEOUT_S) == OWN_STATUS
        assert caller.call(ABORT_WORKER, Abort(WorkerRef(), "enough"), TIMEOUT_S) == Acknowledged()
        assert outcomes == ["not yet"] * 3
        freed.set()
        for sender in senders:
            sender.join()
    assert outcomes[3:] == [True] * most


def test_a_stopped_server_ends_calls_in_progress() -> None:
    begun = threading.Event()
    inside: list[Exception] = []

    def accept(came: PartHeader, blocks: Iterator[bytes]) -> bool:
        begun.set()
        try:
            for _ in blocks:
                pass
        except Exception as error:
            inside.append(error)
            raise
        return True

    def stalling() -> Iterator[bytes]:
        yield bytes(1 << 20)
        begun.wait()
        serving.stop(0)
        while True:
            yield bytes(1 << 20)

    join = any_join()
    with data_server(accept, join) as serving, Connection(serving.address, join, data=True) as connection:
        with pytest.raises(PeerUnavailable):
            send_part(connection, header(1 << 40), stalling(), TIMEOUT_S)
        serving.threads.shutdown(wait=True)
    assert [type(error) for error in inside] == [PeerUnavailable]
