"""Test what an agent accepts before it has its orders."""

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from torpor.inside import first_orders
from torpor.inside.control_frames import INPUT, REQUEST, frame
from torpor.inside.first_orders import StopRequest, read_request, wrong_marker
from torpor.inside.proof import NONCE_BYTES, PROOF_BYTES, ProofFailed, channel, client_proof, require_agent

KEY, OTHER = b"key", b"another key"
ORDERS = {"do": "orders", "words": ["x" * 100_000]}


@contextmanager
def client(key: bytes, name: str, *frames: bytes) -> Iterator[socket.socket]:
    """The agent's end of a connection from a client with this key."""
    # `read_request` sets an option of TCP.
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()

    def talk() -> None:
        with theirs:
            own = os.urandom(NONCE_BYTES)
            theirs.sendall(own)
            answer = theirs.recv(NONCE_BYTES + PROOF_BYTES, socket.MSG_WAITALL)
            nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
            if key == KEY:
                require_agent(key, own, nonce, proof)
            theirs.sendall(client_proof(key, own, nonce) + channel(name) + b"".join(frames))

    talking = threading.Thread(target=talk)
    talking.start()
    try:
        with ours:
            yield ours
    finally:
        talking.join(10)


def request(what: dict[str, Any]) -> bytes:
    return frame(REQUEST, json.dumps(what).encode())


def test_a_request_of_a_client_with_the_key_is_read() -> None:
    with client(KEY, "control", request(ORDERS)) as connection:
        assert read_request(connection, KEY) == ORDERS


def test_a_client_without_the_key_is_refused() -> None:
    with client(OTHER, "control", request(ORDERS)) as connection, pytest.raises(ProofFailed):
        read_request(connection, KEY)


@pytest.mark.parametrize(("name", "sent"), [("program", b""), ("8080", b""), ("control", frame(INPUT))])
def test_anything_but_a_request_is_ignored(name: str, sent: bytes) -> None:
    with client(KEY, name, sent) as connection:
        assert read_request(connection, KEY) == {}


def test_a_client_that_sends_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_orders, "SERVED_WITHIN_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        connection, _ = server.accept()
        with connection, pytest.raises(TimeoutError):
            read_request(connection, KEY)


def test_a_request_to_stop_is_remembered_until_the_agent_runs() -> None:
    before, stop = signal.getsignal(signal.SIGTERM), StopRequest()
    try:
        stop.remember()
        assert not stop.has_come
        signal.raise_signal(signal.SIGTERM)
        assert stop.has_come
    finally:
        signal.signal(signal.SIGTERM, before)


def test_only_the_expected_marker_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "marker.json"
    assert "cannot be read" in str(wrong_marker(str(path), {"birth": "a"}))
    path.write_text("not JSON")
    assert "cannot be read" in str(wrong_marker(str(path), {"birth": "a"}))
    path.write_text('{"birth": "a"}')
    assert wrong_marker(str(path), {"birth": "a"}) is None
    assert "another home" in str(wrong_marker(str(path), {"birth": "b"}))
