"""Build the Docker runtime, and the access of processes that have no engine."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torpor.archives.store import StoreAddress
from torpor.assemble import archive_directory
from torpor.assemble.engine_access import engine_access, installation_name
from torpor.assemble.engine_parts import EngineParts, RoleDatabases
from torpor.domain.errors import Refused
from torpor.kit.kit_folder import ensure_kit
from torpor.kit.manifest import Kit
from torpor.runtimes.docker.options import DockerOptions
from torpor.runtimes.docker.runtime import DockerRuntime
from torpor.settings import Settings
from torpor.store.kept_logs import StoredLogs
from torpor.store.service_store import ServiceStore


async def docker_engine(
    settings: Settings, databases: RoleDatabases, stack: contextlib.AsyncExitStack, on_change: Callable[[str], None]
) -> EngineParts:
    """Only a controller gets a runtime: the engine's socket is root on its machine."""
    parts = await engine_access(settings, databases, stack)
    if databases.controller is None:
        return EngineParts(None, parts.access, parts.archives)
    has_workspaces = await ServiceStore(databases.service).has_workspaces()
    require_possible_engine(settings.engine_socket, has_workspaces=has_workspaces)
    options = replace(
        docker_options(settings, await installation_name(databases)),
        job_paths=await asyncio.to_thread(_job_paths, settings),
    )
    kit = await asyncio.to_thread(_kit, settings)
    kept_logs = StoredLogs(databases.controller)
    runtime = DockerRuntime(options, kit=kit, installation_key=parts.key, kept_logs=kept_logs, on_change=on_change)
    stack.push_async_callback(runtime.close)
    return EngineParts(runtime, parts.access, parts.archives)


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
    exists = os.path.exists(path)  # noqa: PTH110 - a closed folder is no error
    if exists and not os.access(path, os.W_OK):
        advice = "Run Torpor as root, or as a member of the socket's group"
        raise Refused("bad_setting", f"the engine's socket {path} is not open to this user. {advice}")
    # An installation with workspaces had an engine, which may start after Torpor.
    if not exists and not has_workspaces:
        advice = "Start the engine, or set TORPOR_ENGINE_URL to its socket"
        raise Refused("bad_setting", f"the engine's socket {path} does not exist. {advice}")


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
