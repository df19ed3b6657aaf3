"""Prove, on a new connection, that both ends know the key of the container.

An engine gives the address of a container that has ended to the next one. So a client may reach another container than it
wants, and must find that out before it sends anything:

    client to agent   a nonce
    agent to client   a nonce, and the HMAC of "agent" and both nonces
    client to agent   the HMAC of "client" and both nonces

The first word after that names what the client wants (`channel`).
"""

import asyncio
import hmac
import os
import socket

NONCE_BYTES = 32
PROOF_BYTES = 32
CHANNEL_BYTES = 8


class ProofFailed(OSError):
    """The other end does not know the key, or it is not a Torpor agent."""


def channel(name: str) -> bytes:
    """A word of fixed length: `control`, `program`, or a port."""
    word = name.encode().ljust(CHANNEL_BYTES)
    if len(word) > CHANNEL_BYTES:
        raise ValueError(f"{name!r} is too long for the name of a channel")
    return word


def container_key(installation_key: bytes, nonce: str) -> bytes:
    """The key of the container with this nonce."""
    return hmac.digest(installation_key, nonce.encode(), "sha256")


def key_id(installation_key: bytes) -> str:
    """Identifies the installation's key, and does not reveal it."""
    return hmac.digest(installation_key, b"id", "sha256").hex()[:16]


async def connect_with_proof(host: str, port: int, key: bytes) -> socket.socket:
    """A connection to the agent with this key; ProofFailed or another OSError if it cannot be reached."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connection, (host, port))
        await prove_as_client(connection, key)
    except BaseException:
        connection.close()
        raise
    return connection


async def prove_as_client(connection: socket.socket, key: bytes) -> None:
    """Raise ProofFailed unless the other end is the agent with this key."""
    loop = asyncio.get_running_loop()
    own = os.urandom(NONCE_BYTES)
    await loop.sock_sendall(connection, own)
    theirs = await read_exactly(connection, NONCE_BYTES)
    if not hmac.compare_digest(await read_exactly(connection, PROOF_BYTES), _proof(key, b"agent", own, theirs)):
        raise ProofFailed("another program answers at the address of the workspace's container")
    await loop.sock_sendall(connection, _proof(key, b"client", own, theirs))


async def prove_as_agent(connection: socket.socket, key: bytes) -> None:
    """Raise ProofFailed unless the other end is a client with this key."""
    theirs = await read_exactly(connection, NONCE_BYTES)
    own = os.urandom(NONCE_BYTES)
    await asyncio.get_running_loop().sock_sendall(connection, own + _proof(key, b"agent", theirs, own))
    if not hmac.compare_digest(await read_exactly(connection, PROOF_BYTES), _proof(key, b"client", theirs, own)):
        raise ProofFailed("the client does not know the key of this container")


async def read_exactly(connection: socket.socket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        data = await asyncio.get_running_loop().sock_recv(connection, size - len(read))
        if not data:
            raise ProofFailed("the connection was closed before both ends had proved who they are")
        read += data
    return read


def _proof(key: bytes, side: bytes, client_nonce: bytes, agent_nonce: bytes) -> bytes:
    return hmac.digest(key, side + b"\0" + client_nonce + agent_nonce, "sha256")
