"""Set, list and remove the secrets of workspaces. No method returns a value."""

import asyncio
from collections.abc import Callable, Sequence

from torpor.accounts import Caller
from torpor.domain.access import Permission
from torpor.domain.audit import AuditAction
from torpor.domain.environment import check_size
from torpor.domain.errors import Refused
from torpor.domain.workspace_secrets import MOST_SECRETS, SealedSecret, SecretEntry, check_secret, secret_bytes
from torpor.service.audit import audit_entry
from torpor.service.workspace_lookup import find_workspace, lock_workspace, refuse_deleted
from torpor.store.service_store import ServiceStore

Seal = Callable[[str, str, str], SealedSecret]
"""Encrypts a value: workspace id, name, value. May block."""


class SecretsService:
    def __init__(self, store: ServiceStore, *, seal: Seal | None, limit_bytes: int | None) -> None:
        self._store = store
        self._seal = seal
        self._limit_bytes = limit_bytes

    async def entries(self, caller: Caller, id_or_name: str) -> Sequence[SecretEntry]:
        """The names of its secrets, and when each was set."""
        found = await find_workspace(self._store, caller, id_or_name, Permission.SECRETS)
        return await self._store.secrets(found.id)

    async def set(self, caller: Caller, id_or_name: str, name: str, value: str) -> SecretEntry:
        """Create or replace a secret. It applies at the next start."""
        check_secret(name, value)
        if self._seal is None:
            raise Refused("bad_secret_key", "this process has no key for secrets")
        found = await find_workspace(self._store, caller, id_or_name, Permission.SECRETS)
        sealed = await asyncio.to_thread(self._seal, found.id, name, value)
        size_bytes = secret_bytes(name, value)
        async with self._store.writing() as writing:
            workspace = await lock_workspace(writing, caller, found.id, Permission.SECRETS)
            refuse_deleted(workspace)
            others = [one for one in await writing.secrets(workspace.id) if one.name != name]
            if len(others) >= MOST_SECRETS:
                raise Refused(
                    "bad_secret", f"{workspace.name!r} has {MOST_SECRETS} secrets already; remove one first", name=name
                )
            # A secret replaces the variable of its name.
            variables = {key: text for key, text in workspace.environment.items() if key != name}
            check_size(variables, [size_bytes, *(one.size_bytes for one in others)], self._limit_bytes)
            entry = await writing.set_secret(sealed, size_bytes)
            await writing.audit(audit_entry(caller, AuditAction.SECRET_SET, workspace, secret=name))
        return entry

    async def remove(self, caller: Caller, id_or_name: str, name: str) -> None:
        async with self._store.writing() as writing:
            workspace = await lock_workspace(writing, caller, id_or_name, Permission.SECRETS)
            if not await writing.remove_secret(workspace.id, name):
                raise Refused("not_found", f"{workspace.name!r} has no secret {name!r}", kind="secret", name=name)
            await writing.audit(audit_entry(caller, AuditAction.SECRET_REMOVE, workspace, secret=name))
