"""Define the enumerations that describe a workspace.

The same values are used in the database, the JSON, the metrics and the log. `status.py` has the words for users.
"""

from enum import StrEnum


class Wish(StrEnum):
    """The requested state (`desired_state`)."""

    RUNNING = "RUNNING"
    STANDBY = "STANDBY"
    ARCHIVED = "ARCHIVED"
    DELETED = "DELETED"


class WishOrigin(StrEnum):
    """Who requested it (`wish_origin`)."""

    PERSON = "PERSON"
    """A user, or a program with a token of the user."""
    IDLE = "IDLE"
    """Torpor, because the workspace was not used."""
    WAKE = "WAKE"
    """Torpor, because the workspace was accessed (a knock)."""
    SWITCH = "SWITCH"
    """Torpor, because an administrator moves all workspaces to another runtime."""


class Phase(StrEnum):
    """The state that was observed."""

    PENDING = "PENDING"
    ARCHIVED = "ARCHIVED"
    STANDBY = "STANDBY"
    RUNNING = "RUNNING"
    ERROR = "ERROR"
    DELETING = "DELETING"
    DELETED = "DELETED"


class Operation(StrEnum):
    """The operation in progress."""

    NONE = "NONE"
    PROVISIONING = "PROVISIONING"
    RESTORING = "RESTORING"
    ACCEPTING = "ACCEPTING"
    STARTING = "STARTING"
    STOPPING = "STOPPING"
    ARCHIVING = "ARCHIVING"
    COPYING = "COPYING"
    CREATE_EMPTY_ARCHIVE = "CREATE_EMPTY_ARCHIVE"
    DELETING = "DELETING"


class Outcome(StrEnum):
    """How one attempt of an operation ended, in the history."""

    DONE = "DONE"
    FAILED = "FAILED"
    TURNED = "TURNED"
    ABANDONED = "ABANDONED"


class ObservedStatus(StrEnum):
    """The observed resources: container and volume, without errors."""

    PENDING = "PENDING"
    STANDBY = "STANDBY"
    RUNNING = "RUNNING"
    DELETED = "DELETED"


class HealthStatus(StrEnum):
    """Whether the controller may continue."""

    OK = "OK"
    ERROR = "ERROR"


class Outage(StrEnum):
    """The provider that a workspace waits for and that cannot be reached: the reason of its condition `healthy`."""

    ARCHIVE_STORE = "ArchiveStoreOut"
    RUNTIME = "RuntimeOut"


# One operation leads to the next level (and from PENDING to STANDBY); a path never goes up and then down.
# ERROR, DELETING and DELETED have no level.
LEVEL = {Phase.PENDING: 0, Phase.ARCHIVED: 5, Phase.STANDBY: 10, Phase.RUNNING: 20}


class Stage(StrEnum):
    """The progress of the current attempt of an operation."""

    REST = "REST"
    """No operation is in progress."""
    BEFORE_SLEEP = "BEFORE_SLEEP"
    """The `before_sleep` command runs or runs next; nothing is stopped yet."""
    CALL = "CALL"
    """The actuator runs or is called next."""
    SEE = "SEE"
    """The actuator returned; the observation must confirm it before `due_at`."""
    BACKOFF = "BACKOFF"
    """The attempt failed; the next one begins at `due_at`."""
