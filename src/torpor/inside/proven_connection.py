"""Prove, on a new connection, that both ends know the key of the container. `proof` describes the messages."""

import asyncio
import os
import socket

from torpor.inside.proof import (
    CHANNEL_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    ProofFailed,
    agent_proof,
    client_proof,
    require_agent,
    require_client,
)

PROVED_WITHIN_S = 10.0
"""A client that says nothing keeps no connection."""


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
    require_agent(key, own, theirs, await read_exactly(connection, PROOF_BYTES))
    await loop.sock_sendall(connection, client_proof(key, own, theirs))


async def prove_as_agent(connection: socket.socket, key: bytes) -> None:
    """Raise ProofFailed unless the other end is a client with this key."""
    theirs = await read_exactly(connection, NONCE_BYTES)
    own = os.urandom(NONCE_BYTES)
    await asyncio.get_running_loop().sock_sendall(connection, own + agent_proof(key, theirs, own))
    require_client(key, theirs, own, await read_exactly(connection, PROOF_BYTES))


async def accept_channel(connection: socket.socket, key: bytes) -> str | None:
    """The channel that a client with this key names. The connection of any other is closed."""
    try:
        async with asyncio.timeout(PROVED_WITHIN_S):
            await prove_as_agent(connection, key)
            return (await read_exactly(connection, CHANNEL_BYTES)).rstrip().decode()
    except (OSError, ValueError, ProofFailed):
        connection.close()
        return None


async def read_exactly(connection: socket.socket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        data = await asyncio.get_running_loop().sock_recv(connection, size - len(read))
        if not data:
            raise ProofFailed("the connection was closed before both ends had proved who they are")
        read += data
    return read
