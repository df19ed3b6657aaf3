"""Define the names and labels of objects that only a Docker engine has: records, holders, and the engine's identity."""

import re

from torpor.domain import names
from torpor.ports import Home
from torpor.runtimes.object_labels import home_name

IDENTITY = "torpor.identity"
NUMBER = "torpor.number"
SILENT = "torpor.created-by-mount"
"""Of a volume that the engine created by itself, because a container referred to one that was missing. Never a home."""


def record_name(home: Home, number: int) -> str:
    return f"{home_name(home)}-r{number}"


_RECORD = re.compile(r"(.+)-r([1-9][0-9]{0,17})")


def parse_record_name(name: str) -> tuple[Home, int] | None:
    """The home and the number of a record; None for other names."""
    match = _RECORD.fullmatch(name)
    found = names.parse_volume_name(match[1]) if match else None
    return (Home(*found), int(match[2])) if match and found else None


def holder_name(home: Home, number: int) -> str:
    return f"{record_name(home, number)}-holder"


def identity_name(installation: str) -> str:
    return f"{installation}-identity"


def identity_holder_name(installation: str) -> str:
    return f"{identity_name(installation)}-holder"
