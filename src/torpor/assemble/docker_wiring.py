"""Build the Docker runtime, and the access of processes that have no engine."""

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from torpor.archives.archives import HomeArchives
from torpor.archives.store import StoreAddress
from torpor.assemble import archive_directory
from torpor.assemble.engine_parts import EngineParts, RoleDatabases
from torpor.domain.errors import Refused
from torpor.kit import layout
from torpor.kit.kit_folder import ensure_kit
from torpor.kit.manifest import Kit
from torpor.runtimes.docker.options import DockerOptions
from torpor.runtimes.docker.runtime import DockerRuntime
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


async def docker_engine(
    settings: Settings, databases: RoleDatabases, stack: contextlib.AsyncExitStack, on_change: Callable[[str], None]
) -> EngineParts:
    """Only a controller gets a runtime: the engine's socket is root on its machine."""
    await _require_same_key(settings, databases.service)
    key = await asyncio.to_thread(SecretKey(settings.secret_key_path).derive, AGENTS)
    archives = HomeArchives(
        settings.archives_at, python=tuple(layout.python_argv()), job_environment=store_environment(os.environ)
    )
    stack.push_async_callback(archives.close)
    access = RowAccess(key, StoredLogs(databases.service))
    if databases.controller is None:
        return EngineParts(None, access, archives)
    has_workspaces = await ServiceStore(databases.service).has_workspaces()
    require_possible_engine(settings.engine_socket, has_workspaces=has_workspaces)
    installation = uuid.UUID((await EventStore(databases.service).newest()).installation)
    options = replace(
        docker_options(settings, f"torpor-{installation.hex[:12]}"), job_paths=await asyncio.to_thread(_job_paths, settings)
    )
    kit = await asyncio.to_thread(_kit, settings)
    kept_logs = StoredLogs(databases.controller)
    runtime = DockerRuntime(options, kit=kit, installation_key=key, kept_logs=kept_logs, on_change=on_change)
    stack.push_async_callback(runtime.close)
    return EngineParts(runtime, access, archives)


def docker_options(settings: Settings, installation: str) -> DockerOptions:
    return DockerOptions(
        name=settings.runtime,
        engine=settings.engine_socket,
        installation=installation,
        image=settings.workspace_image,
        grace_s=settings.workspace_stop_grace,
        user=settings.workspace_user,
        isolation=settings.is_network_isolated,
        blocked_networks=settings.blocked_networks,
        allowed_networks=settings.allowed_networks,
        registry_credentials=settings.registry_credentials,
    )


def require_possible_engine(url: str, *, has_workspaces: bool) -> None:
    """Refuse an engine that will not answer later either: a socket of others, or, for a new installation, none at all."""
    path = Path(url.removeprefix("unix://"))
    if path.exists() and not os.access(path, os.W_OK):
        advice = "Run Torpor as root, or as a member of the socket's group"
        raise Refused("bad_setting", f"the engine's socket {path} is not open to this user. {advice}")
    # An installation with workspaces had an engine, which may start after Torpor.
    if not path.exists() and not has_workspaces:
        advice = "Start the engine, or set TORPOR_ENGINE_URL to its socket"
        raise Refused("bad_setting", f"the engine's socket {path} does not exist. {advice}")


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


def _kit(settings: Settings) -> Kit:
    def progress(done: int, total: int) -> None:
        if done == 0:
            print(f"torpor: building the kit for containers ({total} files)", file=sys.stderr, flush=True)

    return ensure_kit(settings.data, os.environ, progress)


def _job_paths(settings: Settings) -> tuple[str, ...]:
    """The folder of the archives, if they are in one: jobs run as the homes' user and must be able to write there."""
    folder = StoreAddress.parse(settings.archives_at).directory
    if folder is None:
        return ()
    user = settings.workspace_user
    if folder.is_dir() and folder.stat().st_uid != user:
        if os.getuid() == 0 and folder == settings.data / archive_directory.NAME:
            _give_to(folder, user)
        else:
            raise Refused(
                "bad_setting",
                f"jobs in containers run as user {user}, who does not own {folder}. Set TORPOR_WORKSPACE_USER="
                f"{folder.stat().st_uid or 'USER'}, give the folder to that user (chown -R {user}:{user} {folder}), or set "
                "TORPOR_ARCHIVE_URL to an object store",
            )
    return (str(folder),)


def _give_to(folder: Path, user: int) -> None:
    """The folder itself last: a run that was interrupted is repeated."""
    for inside in folder.rglob("*"):
        os.chown(inside, user, user, follow_symlinks=False)
    os.chown(folder, user, user)
