"""Define the errors: who must act, and what each failure means for the workspace."""

from enum import StrEnum


class TorporError(Exception):
    """The base class of all errors that Torpor raises.

    TorporError
      Refused       the caller must change the request
      Unavailable   Torpor retries automatically
      Failed        an actuator failed; its code says what that means for the workspace
      Hopeless      an operator must act
        Deposed     another process has taken over this role; start again, or end
    """

    def __init__(self, message: str, **context: object) -> None:
        super().__init__(message)
        self.message = message
        self.context = context


class Refused(TorporError):
    """The caller must change the request; `code` is stable and part of the API."""

    def __init__(self, code: str, message: str, **context: object) -> None:
        super().__init__(message, **context)
        self.code = code


class Unavailable(TorporError):
    """A provider cannot be reached; the state of its resources is not known."""


class Failed(TorporError):
    """An actuator failed; `code` is the provider's error code."""

    def __init__(self, code: "Code", message: str, **context: object) -> None:
        super().__init__(message, **context)
        self.code = code


class Hopeless(TorporError):
    """No automatic action can help."""


class Deposed(Hopeless):
    """Another process has taken over this role; this one must not write or begin anything."""


class Reason(StrEnum):
    """Why a workspace has an error (`error_info.reason`)."""

    ACTION_FAILED = "ActionFailed"
    MISMATCH = "Mismatch"
    UNREACHABLE = "Unreachable"
    TIMEOUT = "Timeout"
    RETRY_EXCEEDED = "RetryExceeded"
    DATA_LOST = "DataLost"
    MARKER_UNREADABLE = "MarkerUnreadable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_WITHOUT_VOLUME = "ContainerWithoutVolume"


class Code(StrEnum):
    """The error codes of providers."""

    ARCHIVE_NOT_FOUND = "ARCHIVE_NOT_FOUND"
    CHECKSUM_MISMATCH = "CHECKSUM_MISMATCH"
    READBACK_MISMATCH = "READBACK_MISMATCH"
    S3_ACCESS_ERROR = "S3_ACCESS_ERROR"
    K8S_API_ERROR = "K8S_API_ERROR"
    TAR_EXTRACT_FAILED = "TAR_EXTRACT_FAILED"
    VOLUME_CREATE_FAILED = "VOLUME_CREATE_FAILED"
    VOLUME_REOPENED = "VOLUME_REOPENED"
    VOLUME_NOT_READY = "VOLUME_NOT_READY"
    HOME_CHANGED = "HOME_CHANGED"
    HOME_UNREADABLE = "HOME_UNREADABLE"
    HOME_TOO_LARGE = "HOME_TOO_LARGE"
    CONTAINER_START_FAILED = "CONTAINER_START_FAILED"
    PROGRAM_INSTALL_FAILED = "PROGRAM_INSTALL_FAILED"
    PROGRAM_ENDED = "PROGRAM_ENDED"
    IMAGE_PULL_FAILED = "IMAGE_PULL_FAILED"
    IMAGE_PULL_INTERRUPTED = "IMAGE_PULL_INTERRUPTED"
    DISK_FULL = "DISK_FULL"
    STALE_EPOCH = "STALE_EPOCH"
    INTERNAL = "INTERNAL"


# The reason of the workspace's error for each code of a provider.
CODE_MEANS = {
    Code.ARCHIVE_NOT_FOUND: Reason.DATA_LOST,
    Code.CHECKSUM_MISMATCH: Reason.DATA_LOST,
    # The volume is intact, so another archive with another op_id may succeed.
    Code.READBACK_MISMATCH: Reason.ACTION_FAILED,
    Code.S3_ACCESS_ERROR: Reason.UNREACHABLE,
    Code.K8S_API_ERROR: Reason.UNREACHABLE,
    Code.TAR_EXTRACT_FAILED: Reason.ACTION_FAILED,
    Code.VOLUME_CREATE_FAILED: Reason.ACTION_FAILED,
    Code.VOLUME_REOPENED: Reason.ACTION_FAILED,
    Code.VOLUME_NOT_READY: Reason.ACTION_FAILED,
    Code.HOME_CHANGED: Reason.ACTION_FAILED,
    Code.HOME_UNREADABLE: Reason.ACTION_FAILED,
    Code.HOME_TOO_LARGE: Reason.ACTION_FAILED,
    Code.CONTAINER_START_FAILED: Reason.ACTION_FAILED,
    Code.PROGRAM_INSTALL_FAILED: Reason.ACTION_FAILED,
    Code.PROGRAM_ENDED: Reason.ACTION_FAILED,
    # The registry's answer is final: no such image, or no access to it.
    Code.IMAGE_PULL_FAILED: Reason.IMAGE_PULL_FAILED,
    Code.IMAGE_PULL_INTERRUPTED: Reason.ACTION_FAILED,
    Code.DISK_FULL: Reason.ACTION_FAILED,
    Code.STALE_EPOCH: Reason.ACTION_FAILED,
    Code.INTERNAL: Reason.ACTION_FAILED,
}

# Whether a reason is retried (up to `max_retries`), or terminal at once.
IS_RETRIED = {
    Reason.ACTION_FAILED: True,
    Reason.MISMATCH: True,
    Reason.UNREACHABLE: True,
    Reason.TIMEOUT: False,
    Reason.RETRY_EXCEEDED: False,
    Reason.DATA_LOST: False,
    Reason.MARKER_UNREADABLE: False,
    Reason.IMAGE_PULL_FAILED: False,
    Reason.CONTAINER_WITHOUT_VOLUME: False,
}

# The home is not what the row expects. A new wish does not clear these errors: the user must choose a recovery.
ASKS_HOW_TO_GO_ON = frozenset({Reason.DATA_LOST, Reason.MARKER_UNREADABLE})
