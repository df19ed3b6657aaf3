"""Decide what a user may do with a workspace, and what a token may do for its user.

Two tables: the access of a user to a workspace (`Access`), and the scopes of a token (`Scope`). A session has every scope. A
workspace that a user may not see is reported to them as not found.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum, StrEnum, auto

from torpor.domain.errors import Refused
from torpor.domain.records import Workspace

TOKEN_PREFIX = "torpor_"  # noqa: S105 - no secret: leaked tokens are found by it
LONGEST_TOKEN = 512
"""A longer text is no token. Real ones have about 50 characters."""


class Access(IntEnum):
    """The access of a user to a workspace; each level includes the ones before it."""

    NONE = 0
    USE = 1
    MANAGE = 2
    OWN = 3
    """Its owner, and every administrator."""


class Share(StrEnum):
    """What an owner may grant."""

    USE = "use"
    MANAGE = "manage"


GRANTS: Mapping[Share, Access] = {Share.USE: Access.USE, Share.MANAGE: Access.MANAGE}


class Scope(StrEnum):
    """What a token may do."""

    READ = "read"
    """Read what its user may see."""
    USE = "use"
    """Open, wake, run commands, keep awake."""
    MANAGE = "manage"
    """Create, start, stop, archive, change, delete and share."""
    ACCOUNT = "account"
    """Its user's own tokens, sessions and password."""
    ADMIN = "admin"
    """What only administrators may do, if its user is one."""


EVERY_SCOPE = frozenset(Scope)


class Permission(Enum):
    """What a user does with one workspace."""

    SEE = auto()
    """The workspace, its history, archives, log, events and explanation."""
    OPEN = auto()
    """Through the proxy, which wakes it."""
    RUN = auto()
    """A command or a shell inside."""
    HOLD = auto()
    WISH = auto()
    """RUNNING, STANDBY, ARCHIVED."""
    CHANGE = auto()
    """Its name, its times and its variables."""
    SECRETS = auto()
    """List, set and remove them; no one can read a value."""
    RECOVER = auto()
    READ_ARCHIVES = auto()
    """The files in its archives. An archive can have files that were removed before the workspace was shared for use, so this
    needs as much access as going back to it."""
    FORK = auto()
    """Create a workspace of one's own with the home of an archive."""
    RESTORE = auto()
    """Replace the home by an older archive."""
    DELETE = auto()
    """And undelete."""
    SHARE = auto()


NEEDS: Mapping[Permission, tuple[Access, Scope]] = {
    Permission.SEE: (Access.USE, Scope.READ),
    Permission.OPEN: (Access.USE, Scope.USE),
    Permission.RUN: (Access.USE, Scope.USE),
    Permission.HOLD: (Access.USE, Scope.USE),
    Permission.WISH: (Access.MANAGE, Scope.MANAGE),
    Permission.CHANGE: (Access.MANAGE, Scope.MANAGE),
    Permission.SECRETS: (Access.MANAGE, Scope.MANAGE),
    Permission.RECOVER: (Access.MANAGE, Scope.MANAGE),
    Permission.READ_ARCHIVES: (Access.MANAGE, Scope.USE),
    Permission.FORK: (Access.MANAGE, Scope.MANAGE),
    Permission.RESTORE: (Access.MANAGE, Scope.MANAGE),
    Permission.DELETE: (Access.OWN, Scope.MANAGE),
    Permission.SHARE: (Access.OWN, Scope.MANAGE),
}


def access(workspace: Workspace, username: str, *, is_admin: bool) -> Access:
    if is_admin or workspace.owner == username:
        return Access.OWN
    share = workspace.shares.get(username)
    return GRANTS[Share(share)] if share is not None else Access.NONE


def workspace_not_found(said: str) -> Refused:
    """The same error for a workspace that does not exist and for one that the caller may not see, with the caller's own
    word."""
    return Refused("not_found", f"there is no workspace {said!r}", workspace=said)


def check_access(workspace: Workspace, username: str, deed: Permission, *, is_admin: bool, said: str | None = None) -> None:
    """Return if it is allowed; raise Refused `not_found` if the user may not see the workspace, else `forbidden`.

    `said`: the name or id that the caller used. A caller who guessed an id must not learn the name.
    """
    has, needs = access(workspace, username, is_admin=is_admin), NEEDS[deed][0]
    if has is Access.NONE:
        raise workspace_not_found(said or workspace.name)
    if has < needs:
        by = "its owner" if needs is Access.OWN else "its owner, or a user with the share 'manage'"
        raise Refused(
            "forbidden",
            f"your share of {workspace.name!r} does not allow this; {by} can do it",
            workspace=workspace.name,
            has=has.name.lower(),
            needs=needs.name.lower(),
        )


def check_scope(scopes: Iterable[Scope], needs: Scope) -> None:
    """Return if the scopes include the needed one; else raise Refused `scope_missing`."""
    if needs not in scopes:
        raise Refused(
            "scope_missing", f"this API token lacks the scope {needs.value!r}; create one with that scope", needs=needs
        )
