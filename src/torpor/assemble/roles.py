"""Name the roles that a process can have."""

from enum import StrEnum

from torpor.domain.errors import Refused


class ProcessRole(StrEnum):
    API = "api"
    PROXY = "proxy"
    CONTROLLER = "controller"


EVERY_PART = frozenset(ProcessRole)


def parts_of(text: str) -> frozenset[ProcessRole]:
    """From `api,proxy,controller`; Refused `bad_role` for anything else."""
    words = [word.strip() for word in text.split(",")]
    unknown = sorted(set(words) - {part.value for part in ProcessRole})
    if unknown:
        allowed = ", ".join(part.value for part in ProcessRole)
        raise Refused("bad_role", f"{', '.join(map(repr, unknown))} is not a role; allowed, separated by commas: {allowed}")
    return frozenset(ProcessRole(word) for word in words)
