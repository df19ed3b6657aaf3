"""Which words describe a workspace?

The same words stand in the enums here, in the columns, in the JSON, in the metrics and in the log.
"""

from enum import StrEnum


class Wish(StrEnum):
    """What people wish (`desired_state`)."""

    RUNNING = "RUNNING"
    STANDBY = "STANDBY"
    ARCHIVED = "ARCHIVED"
    DELETED = "DELETED"


class WishOrigin(StrEnum):
    """Who asked for it (`wish_origin`)."""

    PERSON = "PERSON"
    """Somebody said so, or a program in their name."""
    IDLE = "IDLE"
    """Nobody had used it for long enough."""
    WAKE = "WAKE"
    """Somebody knocked at it."""


class Phase(StrEnum):
    """What the observed conditions amount to."""

    PENDING = "PENDING"
    ARCHIVED = "ARCHIVED"
    STANDBY = "STANDBY"
    RUNNING = "RUNNING"
    ERROR = "ERROR"
    DELETING = "DELETING"
    DELETED = "DELETED"


class Operation(StrEnum):
    """What is under way."""

    NONE = "NONE"
    PROVISIONING = "PROVISIONING"
    RESTORING = "RESTORING"
    ACCEPTING = "ACCEPTING"
    STARTING = "STARTING"
    STOPPING = "STOPPING"
    ARCHIVING = "ARCHIVING"
    CREATE_EMPTY_ARCHIVE = "CREATE_EMPTY_ARCHIVE"
    DELETING = "DELETING"


class Outcome(StrEnum):
    """How one attempt at an operation ended, as the history tells it."""

    DONE = "DONE"
    FAILED = "FAILED"
    TURNED = "TURNED"
    ABANDONED = "ABANDONED"


class ObservedStatus(StrEnum):
    """What is really there, from container and volume alone, whatever the health."""

    PENDING = "PENDING"
    STANDBY = "STANDBY"
    RUNNING = "RUNNING"
    DELETED = "DELETED"


class HealthStatus(StrEnum):
    """Whether the controller may go on with it."""

    OK = "OK"
    ERROR = "ERROR"


class Outage(StrEnum):
    """What a workspace waits for and cannot be reached: the reason of its condition `healthy` meanwhile."""

    ARCHIVE_STORE = "ArchiveStoreOut"
    RUNTIME = "RuntimeOut"


# Neighbouring levels are one operation apart (and PENDING to STANDBY); a path never goes up and then down.
# ERROR, DELETING and DELETED stand outside the order.
LEVEL = {Phase.PENDING: 0, Phase.ARCHIVED: 5, Phase.STANDBY: 10, Phase.RUNNING: 20}


class Stage(StrEnum):
    """How far the present attempt at an operation has come."""

    REST = "REST"
    """No operation is under way."""
    BEFORE_SLEEP = "BEFORE_SLEEP"
    """Its `before_sleep` command is to be run, or runs; nothing has been stopped yet."""
    CALL = "CALL"
    """Its actuator is to be called, or is at work."""
    SEE = "SEE"
    """Its actuator said done; the observation must agree before `due_at`."""
    BACKOFF = "BACKOFF"
    """It failed; the next attempt begins at `due_at`."""
