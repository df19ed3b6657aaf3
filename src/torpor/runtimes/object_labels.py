"""Define the labels, and the names, that Torpor's objects have on every engine.

Names are functions of the row. Every object has the label `torpor.installation`, so that a listing by label finds all of them,
and several installations can share an engine.
"""

from enum import StrEnum

from torpor.domain import names
from torpor.ports import Home

INSTALLATION = "torpor.installation"
KIND = "torpor.kind"
WORKSPACE = "torpor.workspace"
GENERATION = "torpor.generation"
BIRTH = "torpor.birth"
"""A random word that the home's volume and its records have in common."""
NONCE = "torpor.nonce"
KEY = "torpor.key"
"""Of a container: identifies the installation's key that its own key is derived from."""
EPOCH = "torpor.epoch"
TEMPLATE = "torpor.template"
ORDER = "torpor.order"
"""Of a job: tells jobs with other orders apart."""


class ObjectKind(StrEnum):
    """The values of the label KIND."""

    IDENTITY = "identity"
    HOME = "home"
    RECORD = "record"
    HOLDER = "holder"
    WORKSPACE = "workspace"
    JOB = "job"
    KIT = "kit"
    KEY = "key"
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


def container_name(workspace_id: str) -> str:
    if not names.is_id(workspace_id):
        raise ValueError(f"{workspace_id!r} cannot be part of a container's name")
    return f"ws-{workspace_id}"


def job_name(home: Home, op_id: str) -> str:
    """It contains the workspace, by which objects are listed."""
    return f"job-{home_name(home)}-{op_id}"


def labels(installation: str, kind: ObjectKind, **more: str) -> dict[str, str]:
    """The labels of an object; `more` by the last part of their names."""
    return {INSTALLATION: installation, KIND: kind.value, **{f"torpor.{name}": value for name, value in more.items()}}


def home_labels(installation: str, kind: ObjectKind, home: Home, **more: str) -> dict[str, str]:
    """The labels of an object that belongs to one home."""
    return labels(installation, kind, workspace=home.workspace_id, generation=str(home.generation), **more)
