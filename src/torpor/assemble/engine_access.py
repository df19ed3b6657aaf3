"""Build what all processes of an installation on an engine have in common: its key, its archives, and access by the rows."""

import asyncio
import contextlib
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from torpor.archives.archives import HomeArchives
from torpor.assemble.engine_parts import RoleDatabases
from torpor.domain.errors import Refused
from torpor.kit import layout
from torpor.runtimes.process.jobs import PASSED_ON_PREFIXES
from torpor.runtimes.row_access import RowAccess
from torpor.secret_key import SecretKey
from torpor.settings import Settings
from torpor.store.database import Database
from torpor.store.events import EventStore
from torpor.store.kept_logs import StoredLogs
from torpor.store.service_store import ServiceStore

AGENTS = "agents of containers"
"""The purpose of the key that the agents in containers know."""


@dataclass(frozen=True, slots=True)
class EngineAccess:
    key: bytes = field(repr=False)
    archives: HomeArchives
    access: RowAccess


async def engine_access(settings: Settings, databases: RoleDatabases, stack: contextlib.AsyncExitStack) -> EngineAccess:
    await _require_same_key(settings, databases.service)
    key = await asyncio.to_thread(SecretKey(settings.secret_key_path).derive, AGENTS)
    archives = HomeArchives(
        settings.archives_at, python=tuple(layout.python_argv()), job_environment=store_environment(os.environ)
    )
    stack.push_async_callback(archives.close)
    return EngineAccess(key, archives, RowAccess(key, StoredLogs(databases.service)))


async def installation_name(databases: RoleDatabases) -> str:
    """The name of this installation on an engine, which several can share."""
    installation = uuid.UUID((await EventStore(databases.service).newest()).installation)
    return f"torpor-{installation.hex[:12]}"


def require_shared_key(settings: Settings) -> None:
    """Processes of `serve` may run on several machines, so none of them creates the key."""
    path = settings.secret_key_file
    if path is not None and path.exists():
        return
    what = f"the file {path} does not exist" if path is not None else "TORPOR_SECRET_KEY_FILE is not set"
    raise Refused(
        "bad_setting",
        f"with the runtime `{settings.runtime}`, all processes of `serve` need the same key file, and {what}. Create one, and "
        "give it to all of them: (umask 077; head -c 32 /dev/urandom | base64 > FILE)",
    )


async def _require_same_key(settings: Settings, database: Database) -> None:
    """Refuse another key than the other processes have: each would replace the containers of the others."""
    path = settings.secret_key_path
    own = await asyncio.to_thread(SecretKey(path).id)
    known = await ServiceStore(database).remember_key(own, is_accepted=settings.accept_secret_key == own)
    if own != known:
        raise Refused(
            "another_secret_key",
            f"the key file {path} is the key {own}, and the other processes of this installation have the key {known}: they "
            "would replace each other's containers, and could not read the secrets of workspaces. Give this process the same "
            "key file (TORPOR_SECRET_KEY_FILE). If that key is lost or is to be replaced, stop all processes, and start one "
            f"with TORPOR_ACCEPT_SECRET_KEY={own}: running workspaces are then restarted, and users set their secrets again",
        )


def store_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The credentials of the archive store, for jobs in containers: they get them on standard input."""
    return {name: value for name, value in environ.items() if name.startswith(PASSED_ON_PREFIXES)}
