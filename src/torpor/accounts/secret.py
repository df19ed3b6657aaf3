"""What does a secret look like, and what of it is kept?"""

import hashlib
import secrets

TOKEN_PREFIX = "torpor_"  # noqa: S105 - a mark by which leaked tokens are found, no secret


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def digest(secret: str) -> bytes:
    """What is stored of it: it has more than enough chance in it to need no salt and no slow hash."""
    return hashlib.sha256(secret.encode()).digest()
