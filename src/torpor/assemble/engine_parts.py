"""Name what the roles of a process use of an engine, and of the database."""

from dataclasses import dataclass

from torpor.ports import Archives, Runtime, WorkspaceAccess
from torpor.store.database import Database


@dataclass(frozen=True, slots=True)
class EngineParts:
    runtime: Runtime | None
    """None: no role of this process needs it."""
    access: WorkspaceAccess
    archives: Archives


@dataclass(frozen=True, slots=True)
class RoleDatabases:
    """The same database, with the rights of each role."""

    service: Database
    controller: Database | None
    """None: this process is no controller."""
