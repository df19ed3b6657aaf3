"""Execute effects with the runtime and the archive store.

Every verb names its end state and may be repeated. A failure becomes a report, and the rules decide what follows.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

import structlog

from torpor.control.before_sleep import run_before_sleep
from torpor.domain.effects import (
    AcceptHome,
    BeforeSleep,
    CopyArchive,
    DropHome,
    Effect,
    MakeHome,
    Pack,
    PackEmpty,
    Remove,
    Restore,
    Start,
    Stop,
)
from torpor.domain.errors import CODE_MEANS, Code, Failed, Reason, Refused, Unavailable
from torpor.domain.records import (
    Archive,
    ArchiveKey,
    EffectDone,
    EffectFailed,
    Marker,
    ProvenArchive,
    ProviderOutage,
    Report,
    StaleEpoch,
    Workspace,
)
from torpor.domain.states import Outage
from torpor.ports import ArchiveBase, Archives, Container, Fence, Home, HomeJob, JobProgress, Limits, Program, Runtime

log = structlog.get_logger()

USES_ARCHIVES = (Pack, PackEmpty, CopyArchive, Restore)
# The name of each effect in the context of an error.
ACTION_OF: Mapping[type[Effect], str] = {
    MakeHome: "create_volume",
    Restore: "restore",
    AcceptHome: "accept",
    Start: "start",
    BeforeSleep: "before_sleep",
    Stop: "stop",
    Pack: "archive",
    PackEmpty: "create_empty_archive",
    CopyArchive: "copy_archive",
    DropHome: "delete_volume",
    Remove: "delete",
}
# The next attempt has an archive of its own, or counts its progress from zero.
NEEDS_NEW_OP_ID = frozenset({Code.READBACK_MISMATCH, Code.IMAGE_PULL_INTERRUPTED})
ARCHIVE_STORE = "archive-store"
GIVE_BACK_S = 3.0
"""How long a cancelled effect may take to remove the volume that it did not finish."""


async def no_secrets(_workspace_id: str) -> Mapping[str, str]:
    return {}


class BaseArchives(Protocol):
    """How the next archive is written: its format, and the archive whose content it takes over."""

    async def format(self) -> int: ...

    async def base(self, archive: Archive | None) -> ArchiveBase | None: ...

    async def refuse_unusable(self, proven: ProvenArchive) -> None:
        """Failed if the archive names a pack that cannot be used any more."""
        ...


class NoBases:
    """Every archive is written completely, in format 1."""

    async def format(self) -> int:
        return 1

    async def base(self, archive: Archive | None) -> ArchiveBase | None:
        return None

    async def refuse_unusable(self, proven: ProvenArchive) -> None:
        return


NO_BASES = NoBases()


@dataclass(frozen=True, slots=True)
class EffectExecutor:
    runtime: Runtime
    archives: Archives
    program_of: Callable[[Workspace], Program]
    limits: Limits
    before_sleep_of: Callable[[Workspace], tuple[str, ...]] = lambda _workspace: ()
    """The command that runs before an automatic stop; empty: none."""
    limits_of: Callable[[Workspace, Limits], Limits] = lambda _workspace, limits: limits
    """The limits of a workspace, which may have a size of its own."""
    secrets_of: Callable[[str], Awaitable[Mapping[str, str]]] = no_secrets
    """The decrypted secrets of a workspace, for its start; Refused if one cannot be decrypted."""
    bases: BaseArchives = NO_BASES

    async def carry_out(self, workspace: Workspace, effect: Effect, fence: Fence, progress: JobProgress) -> Report:
        """Return the report of the effect, also after a failure. Raise only a cancellation."""
        try:
            return await self._report(workspace, effect, fence, progress)
        except asyncio.CancelledError:
            if isinstance(effect, MakeHome | Restore):
                await self._give_space_back_though_cancelled(workspace, effect.generation, fence)
            raise
        except Exception as error:
            log.exception("effect_broke", workspace=workspace.id, effect=type(effect).__name__)
            return EffectFailed(Reason.ACTION_FAILED, f"{type(error).__name__}: {error}", _action(effect, Code.INTERNAL.value))

    async def _report(self, workspace: Workspace, effect: Effect, fence: Fence, progress: JobProgress) -> Report:
        try:
            return await self._do(workspace, effect, fence, progress)
        except Failed as failed:
            return await self._broken(workspace, effect, failed, fence)
        except Unavailable as out:
            return await self._unreachable(workspace, effect, out)
        except Refused as refused:
            # For example a template that no longer exists: a new wish may help.
            return EffectFailed(Reason.ACTION_FAILED, refused.message, _action(effect, refused.code))

    async def fence_off(self, workspace: Workspace) -> None:
        """A failure is harmless: the next pass observes the effect of a late call and reverts it."""
        try:
            await self.runtime.admit(workspace.id, Fence(workspace.op_id or "", workspace.epoch))
        except (Failed, Unavailable) as error:
            log.warning("not_fenced_off", workspace=workspace.id, why=error.message)

    async def _do(self, workspace: Workspace, effect: Effect, fence: Fence, progress: JobProgress) -> Report:
        runtime = self.runtime
        match effect:
            case MakeHome(generation, discard):
                await self._discard(workspace, discard, fence)
                home = Home(workspace.id, generation)
                await runtime.ensure_volume(home, fence)
                await runtime.mark_volume(home, Marker(workspace.id, generation, ""), fence)
                return EffectDone()
            case Restore(generation, archive, discard):
                # Checked first, so that a lost archive is found at once and leaves no half-made volume.
                _require_proven(archive, await self.archives.manifest_root(archive.key))
                await self._discard(workspace, discard, fence)
                home = Home(workspace.id, generation)
                await runtime.ensure_volume(home, fence)
                job = self.archives.unpack_job(archive.key, archive.manifest_root)
                result = await runtime.run_at_home(home, job, fence, progress)
                _require_proven(archive, result["manifest_root"])
                await runtime.mark_volume(home, Marker(workspace.id, generation, archive.manifest_root), fence)
                return EffectDone(written_bytes=int(str(result["bytes"])))
            case AcceptHome(generation):
                await runtime.mark_volume(Home(workspace.id, generation), Marker(workspace.id, generation, ""), fence)
                return EffectDone()
            case Start(generation, revision):
                program = self.program_of(workspace)
                own = {**program.own_environment, **await self.secrets_of(workspace.id)}
                program = replace(program, own_environment=own)
                container = Container(Home(workspace.id, generation), revision, program, self.limits_of(workspace, self.limits))
                await runtime.ensure_running(container, fence, progress)
                return EffectDone()
            case BeforeSleep(command, within_s):
                # A command carries no fence, so the fence is checked before: a controller that was replaced runs no command.
                await runtime.admit(workspace.id, fence)
                await run_before_sleep(runtime, workspace, command, within_s=within_s)
                return EffectDone()
            case Stop():
                await runtime.ensure_no_container(workspace.id, fence)
                return EffectDone()
            case Pack(key, generation, revision):
                # Checked here, because a job cannot tell an empty mount point from a store. (`create_empty` checks by itself.)
                await self.archives.world()
                home = Home(workspace.id, generation)
                job = await self._pack_job(workspace, key, home, revision)
                proven = self.archives.proven(key, home, revision, await runtime.run_at_home(home, job, fence, progress))
                await self.bases.refuse_unusable(proven)
                return proven
            case PackEmpty(key, generation, revision):
                written = await self.bases.format()
                return await self.archives.create_empty(key, Home(workspace.id, generation), revision, format=written)
            case CopyArchive(source, target):
                copied = await self.archives.copy(source.key, target, progress)
                _require_proven(source, copied.archive.manifest_root)
                return copied
            case DropHome(generation, archived_revision):
                await runtime.ensure_no_volume(Home(workspace.id, generation), fence, archived_revision=archived_revision)
                return EffectDone()
            case Remove():
                await runtime.ensure_no_container(workspace.id, fence)
                survey = await runtime.observe(frozenset({workspace.id}))
                for volume in survey.of(workspace.id).volumes:
                    await runtime.ensure_no_volume(Home(workspace.id, volume.generation), fence, archived_revision=None)
                return EffectDone()
            case _:
                assert_never(effect)

    async def _pack_job(self, workspace: Workspace, key: ArchiveKey, home: Home, revision: int) -> HomeJob:
        written = await self.bases.format()
        # The archive that the home was restored from, or that was written last, also if the row is read again after a crash.
        base = await self.bases.base(workspace.archive) if written > 1 else None
        return self.archives.pack_job(key, home, revision, format=written, base=base)

    async def _discard(self, workspace: Workspace, generations: frozenset[int], fence: Fence) -> None:
        for generation in sorted(generations):
            await self.runtime.ensure_no_half_made(Home(workspace.id, generation), fence)

    async def _give_space_back(self, workspace: Workspace, generation: int, fence: Fence) -> None:
        """Remove a volume that filled the disk at once: on a full disk the database cannot record the next attempt."""
        try:
            await self.runtime.ensure_no_half_made(Home(workspace.id, generation), fence)
        except Exception as error:
            log.warning("half_made_volume_stays", workspace=workspace.id, generation=generation, why=str(error))

    async def _give_space_back_though_cancelled(self, workspace: Workspace, generation: int, fence: Fence) -> None:
        """Only this attempt uses the volume: every later attempt, also after an adoption, has a new generation.

        The same attempt runs again only in this process and only after this; a volume with a marker stays.
        """
        giving = asyncio.ensure_future(self._give_space_back(workspace, generation, fence))
        until = time.monotonic() + GIVE_BACK_S
        while not giving.done() and (left_s := until - time.monotonic()) > 0:
            try:
                await asyncio.wait({giving}, timeout=left_s)
            except asyncio.CancelledError:
                continue  # every pass cancels the effect again; the first cancellation is raised at the end
        if not giving.done():
            giving.cancel()
            log.warning("half_made_volume_stays", workspace=workspace.id, generation=generation, why="no time left")

    async def _broken(self, workspace: Workspace, effect: Effect, failed: Failed, fence: Fence) -> Report:
        if failed.code is Code.STALE_EPOCH:
            return StaleEpoch(int(str(failed.context.get("seen", fence.epoch))))
        if failed.code is Code.DISK_FULL and isinstance(effect, MakeHome | Restore):
            await self._give_space_back(workspace, effect.generation, fence)
        reason = CODE_MEANS[failed.code]
        if reason is Reason.UNREACHABLE:
            return await self._unreachable(workspace, effect, failed)
        context: dict[str, object] = _action(effect, failed.code.value) | failed.context
        if reason is Reason.DATA_LOST:
            context["archive_key"] = str(effect.archive.key) if isinstance(effect, Restore) else None
            context["detail"] = failed.message
        return EffectFailed(reason, failed.message, context, wants_new_op_id=failed.code in NEEDS_NEW_OP_ID)

    async def _unreachable(self, workspace: Workspace, effect: Effect, error: Failed | Unavailable) -> Report:
        """A call failed: check whether only this workspace is affected, or the whole provider cannot be reached."""
        if isinstance(effect, USES_ARCHIVES) and not await self.archives.reachable():
            return ProviderOutage(Outage.ARCHIVE_STORE, f"the archive store cannot be reached: {error.message}")
        try:
            await self.runtime.observe(frozenset({workspace.id}))
        except Unavailable as out:
            return ProviderOutage(Outage.RUNTIME, f"the runtime cannot be reached: {out.message}")
        is_of_archives = isinstance(error, Failed) and error.code is Code.S3_ACCESS_ERROR
        asked = {"endpoint": ARCHIVE_STORE if is_of_archives else self.runtime.name, "status_code": None}
        return EffectFailed(Reason.UNREACHABLE, error.message, asked | error.context)


def _action(effect: Effect, code: str) -> dict[str, object]:
    """`exit_code` is None if no process ended."""
    return {"action": ACTION_OF[type(effect)], "exit_code": None, "code": code}


def _require_proven(archive: Archive, root: object) -> None:
    if root != archive.manifest_root:
        raise Failed(
            Code.CHECKSUM_MISMATCH,
            f"the archive {archive.key} differs from the one that was verified",
            expected=archive.manifest_root,
            actual=root,
        )
