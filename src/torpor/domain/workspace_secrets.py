"""Decide which secrets a workspace may have, and what a secret is as a record.

A secret is a variable of the environment whose value is encrypted in the database and is never shown again.
"""

from dataclasses import dataclass, field
from datetime import datetime

from torpor.domain.environment import variable_bytes, variable_fault
from torpor.domain.errors import Refused

MOST_SECRETS = 100
"""Of one workspace."""


@dataclass(frozen=True, slots=True)
class SealedSecret:
    """An encrypted value. It can be decrypted only for this workspace and this name."""

    workspace_id: str
    name: str
    key_id: str
    """The key that it is encrypted with."""
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SecretEntry:
    """What users see of a secret."""

    name: str
    set_at: datetime
    size_bytes: int
    """As a variable of the environment."""


def check_secret(name: str, value: str) -> None:
    """Refused `bad_secret`; the message does not contain the value."""
    if (fault := variable_fault(name)) is not None:
        raise Refused("bad_secret", f"{fault}.", name=name)
    if not value or "\0" in value:
        raise Refused("bad_secret", f"the value of {name} is empty or contains a NUL character.", name=name)


def secret_bytes(name: str, value: str) -> int:
    return variable_bytes(name, value)
