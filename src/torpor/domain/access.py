"""Who may do what with a workspace, and what may a token do for its user?

Two questions, each a table: how near somebody is to a workspace (`Access`), and what a token was made for (`Scope`). A session
has every scope. What somebody may not even see does not exist for them.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum, StrEnum, auto

from torpor.domain.errors import Refused
from torpor.domain.records import Workspace


class Access(IntEnum):
    """How near somebody is to a workspace; each includes those before it."""

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
    """What a token was made for."""

    READ = "read"
    """Look at what its user may see."""
    USE = "use"
    """Open, wake, run commands, hold awake."""
    MANAGE = "manage"
    """Create, wish, change, delete and share."""
    ACCOUNT = "account"
    """Its user's own tokens, sessions and password."""
    ADMIN = "admin"
    """What only administrators may, if its user is one."""


EVERY_SCOPE = frozenset(Scope)


class Permission(Enum):
    """What somebody does with one workspace."""

    SEE = auto()
    """It, its history, its archives, its log, its events, why it is as it is."""
    OPEN = auto()
    """Through the proxy; waking it by that."""
    RUN = auto()
    """A command or a shell inside."""
    HOLD = auto()
    WISH = auto()
    """RUNNING, STANDBY, ARCHIVED."""
    CHANGE = auto()
    """Its name and its times."""
    RECOVER = auto()
    DELETE = auto()
    """And take that back."""
    SHARE = auto()


NEEDS: Mapping[Permission, tuple[Access, Scope]] = {
    Permission.SEE: (Access.USE, Scope.READ),
    Permission.OPEN: (Access.USE, Scope.USE),
    Permission.RUN: (Access.USE, Scope.USE),
    Permission.HOLD: (Access.USE, Scope.USE),
    Permission.WISH: (Access.MANAGE, Scope.MANAGE),
    Permission.CHANGE: (Access.MANAGE, Scope.MANAGE),
    Permission.RECOVER: (Access.MANAGE, Scope.MANAGE),
    Permission.DELETE: (Access.OWN, Scope.MANAGE),
    Permission.SHARE: (Access.OWN, Scope.MANAGE),
}


def access(workspace: Workspace, username: str, *, is_admin: bool) -> Access:
    if is_admin or workspace.owner == username:
        return Access.OWN
    share = workspace.shares.get(username)
    return GRANTS[Share(share)] if share is not None else Access.NONE


def workspace_not_found(said: str) -> Refused:
    """What is said of a workspace that there is not, and of one that is not to be seen: the same, in the asker's own words."""
    return Refused("not_found", f"there is no workspace {said!r}", workspace=said)


def check_access(workspace: Workspace, username: str, deed: Permission, *, is_admin: bool, said: str | None = None) -> None:
    """Returns when it may be done; Refused `not_found` for what may not even be seen, else `forbidden`.

    `said` is what it was asked for by: somebody who guessed an id must not be told the name.
    """
    has, needs = access(workspace, username, is_admin=is_admin), NEEDS[deed][0]
    if has is Access.NONE:
        raise workspace_not_found(said or workspace.name)
    if has < needs:
        by = "its owner" if needs is Access.OWN else "its owner, or somebody it is shared with to manage it"
        raise Refused(
            "forbidden",
            f"{workspace.name!r} is shared with you, and that takes more than you were granted: {by} may do it",
            workspace=workspace.name,
            has=has.name.lower(),
            needs=needs.name.lower(),
        )


def check_scope(scopes: Iterable[Scope], needs: Scope) -> None:
    """Returns when one of the scopes covers it; Refused `scope_missing` when not."""
    if needs not in scopes:
        raise Refused(
            "scope_missing", f"this token was not made for that; it would need the scope {needs.value!r}", needs=needs
        )
