"""Define the names and labels of everything that Torpor creates on an engine.

Names are functions of the row. Every object has the label `torpor.installation`, so that a listing by label finds all of them,
and several installations can share an engine.
"""

import re
from enum import StrEnum

from torpor.domain import names
from torpor.ports import Home

INSTALLATION = "torpor.installation"
KIND = "torpor.kind"
WORKSPACE = "torpor.workspace"
GENERATION = "torpor.generation"
BIRTH = "torpor.birth"
"""A random word that the home's volume and its records have in common."""
IDENTITY = "torpor.identity"
NONCE = "torpor.nonce"
KEY = "torpor.key"
"""Of a container: identifies the installation's key that its own key is derived from."""
EPOCH = "torpor.epoch"
NUMBER = "torpor.number"
TEMPLATE = "torpor.template"
ORDER = "torpor.order"
"""Of a job: tells jobs with other orders apart."""
SILENT = "torpor.created-by-mount"
"""Of a volume that the engine created by itself, because a container referred to one that was missing. Never a home."""


class ObjectKind(StrEnum):
    """The values of the label KIND."""

    IDENTITY = "identity"
    HOME = "home"
    RECORD = "record"
    HOLDER = "holder"
    WORKSPACE = "workspace"
    JOB = "job"
    KIT = "kit"
    NETWORK = "network"


def home_name(home: Home) -> str:
    # The id becomes part of names and filters, so another format is a bug of the caller.
    if not names.is_id(home.workspace_id) or home.generation < 1:
        raise ValueError(f"{home} cannot be the name of a volume")
    return names.volume_name(home.workspace_id, home.generation)


def parse_home_name(name: str) -> Home | None:
    """The reverse of `home_name`; None for other names."""
    found = names.parse_volume_name(name)
    return Home(*found) if found else None


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


def container_name(workspace_id: str) -> str:
    if not names.is_id(workspace_id):
        raise ValueError(f"{workspace_id!r} cannot be part of a container's name")
    return f"ws-{workspace_id}"


def job_name(home: Home, op_id: str) -> str:
    """It contains the workspace, by which objects are listed."""
    return f"job-{home_name(home)}-{op_id}"


def identity_name(installation: str) -> str:
    return f"{installation}-identity"


def identity_holder_name(installation: str) -> str:
    return f"{identity_name(installation)}-holder"


def labels(installation: str, kind: ObjectKind, **more: str) -> dict[str, str]:
    """The labels of an object; `more` by the last part of their names."""
    return {INSTALLATION: installation, KIND: kind.value, **{f"torpor.{name}": value for name, value in more.items()}}


def home_labels(installation: str, kind: ObjectKind, home: Home, **more: str) -> dict[str, str]:
    """The labels of an object that belongs to one home."""
    return labels(installation, kind, workspace=home.workspace_id, generation=str(home.generation), **more)
