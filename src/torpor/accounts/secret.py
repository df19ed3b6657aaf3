"""Create secrets, and compute the digest that is stored in their place."""

import hashlib
import secrets

from torpor.domain.access import TOKEN_PREFIX


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def digest(secret: str) -> bytes:
    """What is stored. The secret is random enough that it needs no salt and no slow hash."""
    return hashlib.sha256(secret.encode()).digest()
