"""Choose and start the runtime, and build the archives, as the settings say."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from torpor.archives.archives import HomeArchives
from torpor.assemble.docker_wiring import docker_engine
from torpor.assemble.engine_parts import EngineParts, RoleDatabases
from torpor.assemble.kubernetes_wiring import kubernetes_engine
from torpor.assemble.roles import EVERY_PART, ProcessRole
from torpor.control.effect_executor import EffectExecutor
from torpor.domain.disk import require_space, shortage
from torpor.domain.errors import Refused, Unavailable
from torpor.domain.records import Workspace
from torpor.domain.sizes import effective_size
from torpor.domain.unconfined import CONFINED, ControllerConfinement, MissingProtection
from torpor.ports import Archives, Limits, Program, Runtime
from torpor.runtimes.docker.runtime import DockerRuntime
from torpor.runtimes.kubernetes.runtime import KubernetesRuntime
from torpor.runtimes.local_access import LocalAccess
from torpor.runtimes.process.confinement import (
    CPU_IS_A_WEIGHT,
    DISK_IS_NOT_ENFORCED,
    OPEN_PORT,
    cores_are_enforced,
    headline,
    missing_protections,
    ports_are_open,
)
from torpor.runtimes.process.options import ProcessOptions
from torpor.runtimes.process.runtime import ProcessRuntime
from torpor.secret_key import SecretKey
from torpor.settings import Settings
from torpor.store.archive_bases import ArchiveBases
from torpor.store.controller_store import ControllerStore
from torpor.templates.catalogue import Catalogue

MIB = 1 << 20
# If the disk does not answer in time, the request is not refused: the loop asks again before it acts.
DISK_S = 2.0


async def choose_engine(
    settings: Settings,
    parts: frozenset[ProcessRole],
    databases: RoleDatabases,
    stack: contextlib.AsyncExitStack,
    on_change: Callable[[str], None],
) -> EngineParts:
    """The runtime, the access and the archives that the settings name; the runtime is not started yet.

    `on_change` is called when a program ends or becomes ready, if the runtime notices that.
    """
    match settings.runtime:
        case "fake":
            return await _fake(settings, parts, stack)
        case "docker" | "podman":
            return await docker_engine(settings, databases, stack, on_change)
        case "kubernetes":
            return await kubernetes_engine(settings, databases, stack, on_change)
        case _:
            return _process(settings, parts, stack, on_change)


async def _fake(settings: Settings, parts: frozenset[ProcessRole], stack: contextlib.AsyncExitStack) -> EngineParts:
    if settings.fake_engine is None:
        raise Refused("bad_setting", "the runtime `fake` needs TORPOR_FAKE_ENGINE: set it to the socket of its engine")
    from torpor.testing.fake_engine import RemoteFakeArchives, RemoteFakeRuntime  # no other runtime loads the fakes

    runtime, archives = RemoteFakeRuntime(settings.fake_engine), RemoteFakeArchives(settings.fake_engine)
    stack.push_async_callback(runtime.close)
    stack.push_async_callback(archives.close)
    if ProcessRole.PROXY in parts:
        await runtime.start()
    return EngineParts(runtime, LocalAccess(runtime), archives)


def _process(
    settings: Settings, parts: frozenset[ProcessRole], stack: contextlib.AsyncExitStack, on_change: Callable[[str], None]
) -> EngineParts:
    if ProcessRole.CONTROLLER not in parts:
        raise Refused(
            "bad_role",
            "the runtime `process` runs inside the controller, so api and proxy must run in the same process: "
            f"--role {','.join(sorted(EVERY_PART))}",
        )
    homes = HomeArchives(settings.archives_at)
    stack.push_async_callback(homes.close)
    options = ProcessOptions(
        grace_s=settings.workspace_stop_grace,
        blocked_networks=settings.blocked_networks,
        allowed_networks=settings.allowed_networks,
        disk_reserve_bytes=settings.disk_reserve_bytes,
    )
    runtime = ProcessRuntime(settings.data, options=options, on_change=on_change)
    return EngineParts(runtime, LocalAccess(runtime), homes)


async def confinement(settings: Settings, runtime: Runtime | None) -> ControllerConfinement:
    """The protections that this runtime lacks; a runtime that runs no programs on this machine lacks none."""
    if not isinstance(runtime, ProcessRuntime | DockerRuntime):
        return CONFINED
    abilities = await runtime.abilities()
    is_here = isinstance(runtime, ProcessRuntime)
    missing = missing_protections(abilities, is_root=not is_here or os.getuid() == 0)
    return ControllerConfinement(
        tuple(MissingProtection(one.what, one.how, one.remedy) for one in missing),
        is_accepted=settings.unconfined,
        port_warning=OPEN_PORT if is_here and ports_are_open(abilities) else "",
        cpu_warning="" if cores_are_enforced(abilities) else CPU_IS_A_WEIGHT,
        disk_warning=DISK_IS_NOT_ENFORCED,
    )


async def start(
    runtime: Runtime | None,
    confined: ControllerConfinement,
    disk_reserve_bytes: int,
    stack: contextlib.AsyncExitStack,
) -> None:
    """Start the runtime, and print what is not confined or does not work on this machine."""
    if isinstance(runtime, KubernetesRuntime):
        await runtime.start()
        return
    if not isinstance(runtime, ProcessRuntime | DockerRuntime):
        return
    await runtime.start()
    if isinstance(runtime, ProcessRuntime):
        stack.push_async_callback(runtime.close)
    for ability in await runtime.abilities():
        if not ability.confined:
            fix = f" To fix: {ability.remedy}" if ability.remedy else ""
            print(f"torpor: {headline(ability)}: {ability.what}: {ability.how}.{fix}", file=sys.stderr)
    if confined.summary:
        print(f"torpor: {confined.summary}", file=sys.stderr)
    with contextlib.suppress(Unavailable):
        if short := shortage(await runtime.disk(), disk_reserve_bytes):
            print(f"torpor: no workspace can be started: {short}", file=sys.stderr)


def space_check(runtime: Runtime | None, reserve_bytes: int) -> Callable[[int], Awaitable[None]]:
    """A check that refuses a home that does not fit on the disk, if the free space is known."""

    async def check(needed_bytes: int) -> None:
        if runtime is None:
            return
        try:
            async with asyncio.timeout(DISK_S):
                disk = await runtime.disk()
        except (TimeoutError, Unavailable):
            return
        require_space(disk, reserve_bytes, needed_bytes)

    return check


def is_exclusive(runtime: Runtime | None) -> bool:
    """It runs in this process and its data directory is locked, so the process that used it before is dead."""
    return isinstance(runtime, ProcessRuntime)


def effect_executor(
    settings: Settings,
    runtime: Runtime,
    archives: Archives,
    catalogue: Catalogue,
    store: ControllerStore,
    bases: ArchiveBases,
) -> EffectExecutor:
    limits = Limits(memory_bytes=settings.workspace_memory_mb * MIB, processes=settings.workspace_processes)

    def program_of(workspace: Workspace) -> Program:
        chosen = catalogue.program_of(workspace)
        given = {**chosen.environment, "TORPOR_WORKSPACE": workspace.name}
        return replace(chosen, environment=given, own_environment=workspace.environment)

    def limits_of(workspace: Workspace, usual: Limits) -> Limits:
        size = effective_size(
            workspace.size, catalogue.size_of(workspace), settings.most, memory_mb=settings.workspace_memory_mb
        )
        return replace(usual, memory_bytes=(size.memory_mb or settings.workspace_memory_mb) * MIB, cpu_cores=size.cpu)

    key = SecretKey(settings.secret_key_path)

    async def secrets_of(workspace_id: str) -> Mapping[str, str]:
        sealed = await store.sealed_secrets(workspace_id)
        return await asyncio.to_thread(lambda: {one.name: key.open(one) for one in sealed}) if sealed else {}

    return EffectExecutor(runtime, archives, program_of, limits, catalogue.before_sleep_of, limits_of, secrets_of, bases)
