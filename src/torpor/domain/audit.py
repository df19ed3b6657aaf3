"""List the actions that are written to the audit log.

These are all requests that change something, and everything about access. Reading is not logged, except the content of
archives.
"""

from enum import StrEnum


class AuditAction(StrEnum):
    SESSION_BEGIN = "session.begin"
    SESSION_END = "session.end"
    SESSION_REFUSED = "session.refused"
    TOKEN_CREATE = "token.create"  # noqa: S105 - a word, no secret
    TOKEN_REVOKE = "token.revoke"  # noqa: S105 - a word, no secret
    USER_CREATE = "user.create"
    USER_CHANGE = "user.change"
    WORKSPACE_CREATE = "workspace.create"
    WORKSPACE_WISH = "workspace.wish"
    WORKSPACE_CHANGE = "workspace.change"
    WORKSPACE_DELETE = "workspace.delete"
    WORKSPACE_UNDELETE = "workspace.undelete"
    WORKSPACE_RECOVER = "workspace.recover"
    WORKSPACE_RESTORE = "workspace.restore"
    WORKSPACE_CANCEL_RESTORE = "workspace.cancel_restore"
    WORKSPACE_FORK = "workspace.fork"
    WORKSPACE_READ_ARCHIVE = "workspace.read_archive"
    WORKSPACE_SHARE = "workspace.share"
    WORKSPACE_UNSHARE = "workspace.unshare"
    WORKSPACE_HOLD = "workspace.hold"
    WORKSPACE_UNHOLD = "workspace.unhold"
    WORKSPACE_EXEC = "workspace.exec"
    WORKSPACE_SHELL = "workspace.shell"
    WORKSPACE_WAKE = "workspace.wake"
    SECRET_SET = "secret.set"  # noqa: S105 - a word, no secret
    SECRET_REMOVE = "secret.remove"  # noqa: S105 - a word, no secret
    LATCH_RELEASE = "latch.release"
    RUNTIME_SWITCH = "runtime.switch"
    RUNTIME_SWITCH_CANCEL = "runtime.switch.cancel"
    GC_REQUEST = "gc.request"
