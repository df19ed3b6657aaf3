"""The caller of a request: the user, the credential with its scopes, and the address."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from torpor.domain.access import EVERY_SCOPE, Scope
from torpor.store.user_store import AuditEntry, Credential, User


class AuthMethod(StrEnum):
    """How a caller is authenticated."""

    SESSION = "SESSION"
    """A cookie on the platform's host."""
    TOKEN = "TOKEN"  # noqa: S105 - a word, no secret
    """`Authorization: Bearer`."""
    DOOR = "DOOR"
    """A cookie on one workspace's own host. It gives access to that workspace only."""


@dataclass(frozen=True, slots=True)
class Caller:
    user: User
    how: AuthMethod
    credential_id: str
    scopes: frozenset[Scope]
    label: str
    came_from: str = ""
    """The address, where it is known."""
    workspace_id: str | None = None
    """For DOOR: the workspace."""
    expires_at: datetime | None = field(default=None, compare=False)

    @property
    def is_admin(self) -> bool:
        """Whether the caller acts as an administrator. A token without the scope `admin` does not."""
        return self.user.is_admin and Scope.ADMIN in self.scopes

    def has_lost(self, now: "Caller") -> bool:
        """Whether `now`, the same caller read again, lacks a right that this one has. More rights are no loss."""
        same = (self.credential_id, self.user.id, self.user.username, self.workspace_id)
        return (
            same != (now.credential_id, now.user.id, now.user.username, now.workspace_id)
            or (self.is_admin and not now.is_admin)
            or not self.scopes <= now.scopes
        )

    def entry(
        self,
        action: str,
        *,
        outcome: str = "ok",
        workspace_id: str | None = None,
        workspace: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> AuditEntry:
        """The audit entry for something that this caller did."""
        return AuditEntry(
            action,
            username=self.user.username,
            user_id=self.user.id,
            how=self.how,
            token_label=self.label if self.how is AuthMethod.TOKEN else "",
            came_from=self.came_from,
            workspace_id=workspace_id,
            workspace=workspace,
            outcome=outcome,
            detail=detail or {},
        )


def to_caller(user: User, credential: Credential, *, came_from: str = "") -> Caller:
    how = AuthMethod(credential.kind)
    return Caller(
        user=user,
        how=how,
        credential_id=credential.id,
        # A scope that only a newer version knows gives no right here.
        scopes=frozenset(map(Scope, KNOWN_SCOPES & set(credential.scopes))) if how is AuthMethod.TOKEN else EVERY_SCOPE,
        label=credential.label,
        came_from=came_from,
        workspace_id=credential.workspace_id,
        expires_at=credential.expires_at,
    )


KNOWN_SCOPES = frozenset(scope.value for scope in Scope)
