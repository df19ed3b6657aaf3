"""Define what an examination of this machine reports."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    ok: bool
    detail: str
    advice: str = ""
    blocks: bool = False
    """Torpor cannot run like this."""
