"""Both ends of a connection to an agent prove that they know the key of its container."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from torpor.inside import proof, proven_connection
from torpor.inside.proof import ProofFailed
from torpor.inside.proven_connection import prove_as_agent, prove_as_client

pytestmark = pytest.mark.anyio

KEY, OTHER = b"key", b"another key"
WITHIN_S = 10.0


@contextlib.asynccontextmanager
async def ends() -> AsyncIterator[tuple[socket.socket, socket.socket]]:
    client, agent = socket.socketpair()
    with client, agent:
        for end in (client, agent):
            end.setblocking(False)
        async with asyncio.timeout(WITHIN_S):
            yield client, agent


async def test_ends_with_the_same_key_accept_each_other() -> None:
    async with ends() as (client, agent):
        await asyncio.gather(prove_as_client(client, KEY), prove_as_agent(agent, KEY))
        await asyncio.get_running_loop().sock_sendall(client, proof.channel("control") + b"request")
        assert await proven_connection.read_exactly(agent, proof.CHANNEL_BYTES) == b"control "
        assert await proven_connection.read_exactly(agent, 7) == b"request"


async def test_a_client_sends_nothing_to_an_agent_with_another_key() -> None:
    async with ends() as (client, agent):
        accepting = asyncio.ensure_future(prove_as_agent(agent, OTHER))
        with pytest.raises(ProofFailed, match="another program answers"):
            await prove_as_client(client, KEY)
        client.close()
        with pytest.raises(ProofFailed):
            await accepting


async def test_a_client_with_another_key_is_refused() -> None:
    async with ends() as (client, agent):
        accepting = asyncio.ensure_future(prove_as_agent(agent, KEY))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, bytes(proof.NONCE_BYTES))
        await proven_connection.read_exactly(client, proof.NONCE_BYTES + proof.PROOF_BYTES)
        await loop.sock_sendall(client, bytes(proof.PROOF_BYTES))
        with pytest.raises(ProofFailed, match="does not know the key"):
            await accepting


async def test_the_proof_of_an_agent_cannot_be_sent_back_to_it() -> None:
    """A client without the key could otherwise answer with what it was told."""
    async with ends() as (client, agent):
        accepting = asyncio.ensure_future(prove_as_agent(agent, KEY))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, bytes(proof.NONCE_BYTES))
        told = await proven_connection.read_exactly(client, proof.NONCE_BYTES + proof.PROOF_BYTES)
        await loop.sock_sendall(client, told[proof.NONCE_BYTES :])
        with pytest.raises(ProofFailed):
            await accepting


async def test_a_program_that_closes_the_connection_is_not_an_agent() -> None:
    async with ends() as (client, agent):
        agent.close()
        with pytest.raises(OSError):
            await prove_as_client(client, KEY)


def test_each_container_has_its_own_key() -> None:
    keys = {proof.container_key(key, nonce) for key in (KEY, OTHER) for nonce in ("one", "two")}
    assert len(keys) == 4


def test_a_channel_has_a_fixed_length() -> None:
    assert {len(proof.channel(name)) for name in ("control", "program", "1", "65535")} == {proof.CHANNEL_BYTES}
    with pytest.raises(ValueError):
        proof.channel("much too long")
