"""Define how both ends of a new connection prove that they know the key of the container.

An engine gives the address of a container that has ended to the next one. So a client may reach another container than it
wants, and must find that out before it sends anything:

    client to agent   a nonce
    agent to client   a nonce, and the HMAC of "agent" and both nonces
    client to agent   the HMAC of "client" and both nonces

The first word after that names what the client wants (`channel`). `proven_connection` does this on a connection.
"""

import hmac

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


def agent_proof(key: bytes, client_nonce: bytes, agent_nonce: bytes) -> bytes:
    return _proof(key, b"agent", client_nonce, agent_nonce)


def client_proof(key: bytes, client_nonce: bytes, agent_nonce: bytes) -> bytes:
    return _proof(key, b"client", client_nonce, agent_nonce)


def require_agent(key: bytes, client_nonce: bytes, agent_nonce: bytes, shown: bytes) -> None:
    if not hmac.compare_digest(shown, agent_proof(key, client_nonce, agent_nonce)):
        raise ProofFailed("another program answers at the address of the workspace's container")


def require_client(key: bytes, client_nonce: bytes, agent_nonce: bytes, shown: bytes) -> None:
    if not hmac.compare_digest(shown, client_proof(key, client_nonce, agent_nonce)):
        raise ProofFailed("the client does not know the key of this container")


def _proof(key: bytes, side: bytes, client_nonce: bytes, agent_nonce: bytes) -> bytes:
    return hmac.digest(key, side + b"\0" + client_nonce + agent_nonce, "sha256")
