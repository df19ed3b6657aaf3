"""A caller without the token or the certificate cannot register, send or listen."""

from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest

from tests.sort.wire.lines import (
    ANYWHERE,
    JOB_STATUS,
    TIMEOUT_S,
    any_join,
    control_answers,
    control_server,
    data_server,
    header,
)
from torpor.sort.errors import PeerUnavailable, SortError, SortRefused
from torpor.sort.machine.records import Beat, PartHeader
from torpor.sort.wire.calls import GET_JOB_STATUS, HEARTBEAT, handlers
from torpor.sort.wire.connection import Connection
from torpor.sort.wire.credentials import JoinCredentials
from torpor.sort.wire.guard import HEADER
from torpor.sort.wire.requests import GetStatus, Heartbeat, WorkerRef
from torpor.sort.wire.server import serve
from torpor.sort.wire.shuffle import send_part

BEAT = Heartbeat(WorkerRef("job", 0, 1), Beat("Sorting", 20.0))


def heartbeat(address: str, join: JoinCredentials) -> None:
    with Connection(address, join) as connection:
        connection.call(HEARTBEAT, BEAT, TIMEOUT_S)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_wrong_token_is_refused(tls: bool) -> None:
    join = any_join(tls)
    heard: list[tuple[str, object]] = []
    with control_server("Master", join, heard=heard) as serving:
        for token in ("", "wrong", join.token[:-1], join.token + "x"):
            with pytest.raises(SortRefused, match="does not have the job's token") as refused:
                heartbeat(serving.address, replace(join, token=token))
            assert refused.value.code == "stranger"
        assert heard == []
        heartbeat(serving.address, join)
        assert len(heard) == 1


@pytest.mark.parametrize("metadata", [(), ((HEADER, "Basic abc"),)], ids=["none", "other"])
def test_a_missing_token_is_refused(metadata: tuple[tuple[str, str], ...]) -> None:
    join = any_join()
    with control_server("Master", join) as serving, grpc.insecure_channel(serving.address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(HEARTBEAT.path)
        with pytest.raises(grpc.RpcError) as error:
            call(HEARTBEAT.request.to_bytes(BEAT), timeout=TIMEOUT_S, metadata=metadata)
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_two_tokens_are_refused() -> None:
    join = any_join()
    twice = ((HEADER, f"Bearer {join.token}"), (HEADER, "Bearer wrong"))
    with control_server("Master", join) as serving, grpc.insecure_channel(serving.address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(HEARTBEAT.path)
        with pytest.raises(grpc.RpcError) as error:
            call(HEARTBEAT.request.to_bytes(BEAT), timeout=TIMEOUT_S, metadata=twice)
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_data_without_the_token_is_refused_and_not_read() -> None:
    accepted: list[PartHeader] = []

    def accept(came: PartHeader, blocks: Iterator[bytes]) -> bool:
        accepted.append(came)
        return True

    join = any_join()
    endless = (bytes(1 << 20) for _ in range(10_000))
    with (
        data_server(accept, join) as serving,
        Connection(serving.address, replace(join, token="wrong"), data=True) as connection,
        pytest.raises(SortRefused, match="does not have the job's token"),
    ):
        send_part(connection, header(10_000 << 20), endless, TIMEOUT_S)
    assert accepted == []
    assert next(endless, None) is not None


def test_a_client_without_tls_cannot_call_a_server_with_it() -> None:
    join = any_join(tls=True)
    with control_server("Master", join) as serving, pytest.raises(PeerUnavailable):
        heartbeat(serving.address, replace(join, tls=False))


def test_a_client_with_tls_cannot_call_a_server_without_it() -> None:
    join = any_join(tls=True)
    with control_server("Master", replace(join, tls=False)) as serving, pytest.raises(SortError):
        heartbeat(serving.address, join)


def test_another_jobs_certificate_is_not_trusted() -> None:
    join = any_join(tls=True)
    other = replace(any_join(tls=True), token=join.token)
    with control_server("Master", other) as serving, pytest.raises(SortRefused, match="certificate") as refused:
        heartbeat(serving.address, join)
    assert refused.value.code == "stranger"


def status(address: str, join: JoinCredentials) -> object:
    with Connection(address, join) as connection:
        return connection.call(GET_JOB_STATUS, GetStatus(), TIMEOUT_S)


def test_on_loopback_the_status_needs_no_token() -> None:
    join = any_join()
    with control_server("Master", join) as serving:
        assert status(serving.address, replace(join, token="")) == JOB_STATUS


def test_with_tls_the_status_needs_the_token() -> None:
    join = any_join(tls=True)
    with control_server("Master", join) as serving:
        with pytest.raises(SortRefused, match="does not have the job's token"):
            status(serving.address, replace(join, token=""))
        assert status(serving.address, join) == JOB_STATUS


def test_on_a_public_address_the_status_needs_the_token() -> None:
    join = any_join()
    serving = serve(handlers(*control_answers("Master", [])), ANYWHERE.replace("127.0.0.1", "0.0.0.0"), join, 2, data=False)
    try:
        address = serving.address.replace("0.0.0.0", "127.0.0.1")
        with pytest.raises(SortRefused, match="does not have the job's token"):
            status(address, replace(join, token=""))
        assert status(address, join) == JOB_STATUS
    finally:
        serving.stop(0)
