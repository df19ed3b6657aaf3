"""Move all homes to another runtime: archive them, and request the same states again at the other runtime.

Between the two an operator restarts Torpor with the other runtime. Until it has started completely, the move can be cancelled.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torpor.accounts import Caller
from torpor.domain.audit import AuditAction
from torpor.domain.errors import Failed, Refused
from torpor.domain.records import Workspace
from torpor.domain.runtime_switch import HomeRuntime, admit_runtime, another_runtime, check_target
from torpor.domain.states import Wish
from torpor.ports import Archives
from torpor.store.home_runtime import SwitchStore
from torpor.store.service_store import ServiceStore
from torpor.templates.catalogue import Catalogue

MOST_STUCK = 20
CHECKED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class CannotRun:
    """A workspace that the other runtime cannot run. Its home is moved, and stays archived."""

    workspace: str
    owner: str
    why: str


@dataclass(frozen=True, slots=True)
class SwitchPreview:
    target: str
    workspaces: int
    running: int
    """They are stopped."""
    cannot_run: Sequence[CannotRun]


@dataclass(frozen=True, slots=True)
class SwitchStatus:
    runtime: HomeRuntime
    homes_left: int
    """The workspaces that are not archived or deleted."""
    stuck_count: int
    """How many of these have an error that asks for a user."""
    stuck: Sequence[Workspace]
    """Some of those."""


@dataclass(frozen=True, slots=True)
class SwitchResult:
    """A move that was completed."""

    resumed: int
    """The workspaces that have their requested state again."""
    cannot_run: Sequence[CannotRun]


class SwitchService:
    def __init__(self, store: ServiceStore, catalogue: Catalogue, *, hint: Callable[[str], None]) -> None:
        self._services = store
        self._catalogue = catalogue
        self._hint = hint

    @property
    def _store(self) -> SwitchStore:
        return self._services.switches()

    async def status(self) -> SwitchStatus:
        stuck_count, stuck = await self._store.stuck(limit=MOST_STUCK)
        return SwitchStatus(await self._store.read(), await self._store.homes_left(), stuck_count, stuck)

    async def preview(self, target: str) -> SwitchPreview:
        check_target(target, await self._store.read())
        counts = await self._store.counts()
        cannot_run = [why for _, why in await self._refused_by(self._catalogue.at_runtime(target))]
        return SwitchPreview(target, counts.workspaces, counts.running, cannot_run)

    async def begin(self, caller: Caller, target: str) -> SwitchStatus:
        """Archive everything, and refuse every start until the move is completed or cancelled. May be repeated."""
        archived: Sequence[str] = ()
        async with self._store.changing() as changing:
            known = await changing.read()
            check_target(target, known)
            if known.switch is None:
                archived = await changing.begin(target)
                detail = {"from": known.world, "to": target, "archived": len(archived)}
                await changing.audit(caller.entry(AuditAction.RUNTIME_SWITCH, detail=detail))
        for workspace_id in archived:
            self._hint(workspace_id)
        return await self.status()

    async def cancel(self, caller: Caller) -> SwitchStatus:
        """Request again what was requested before the move."""
        async with self._store.changing() as changing:
            known = await changing.read()
            if known.switch is None:
                raise Refused("not_switching", "no move to another runtime is in progress")
            states = await changing.end()
            detail = {"to": known.switch.target}
            await changing.audit(caller.entry(AuditAction.RUNTIME_SWITCH_CANCEL, detail=detail))
        for workspace_id in states:
            self._hint(workspace_id)
        return await self.status()

    async def complete(self, world: str, archives: Archives) -> SwitchResult | None:
        """The homes are at this runtime from now on, which has just started. None if they were before.

        Refused if the move was canceled since the controller joined: the homes are, and are restored, elsewhere.
        """
        if (await self._store.read()).world == world:
            return None
        await self._check_archives(archives)
        cannot_run = {one.id: why for one, why in await self._refused_by(self._catalogue)}
        async with self._store.changing() as changing:
            known = await changing.read()
            if known.world == world:  # another controller has completed it
                return None
            if known.switch is None:
                raise another_runtime(known, world)
            admit_runtime(known, world, homes_left=await changing.homes_left(), accepted=None)
            await changing.require_only(world)
            await changing.record(world)
            states = await changing.end(cannot_run=cannot_run)
        for workspace_id in states:
            self._hint(workspace_id)
        stay_archived = [why for workspace_id, why in cannot_run.items() if states.get(workspace_id) is Wish.ARCHIVED]
        return SwitchResult(len(states) - len(stay_archived), stay_archived)

    async def _check_archives(self, archives: Archives) -> None:
        """Refused if an archive that a workspace needs cannot be read here."""
        slots = asyncio.Semaphore(CHECKED_AT_ONCE)

        async def fault(workspace: Workspace) -> str:
            assert workspace.archive is not None
            async with slots:
                try:
                    found = await archives.manifest_root(workspace.archive.key)
                except Failed as failed:
                    return f"{workspace.name} ({failed.message})"
            return "" if found == workspace.archive.manifest_root else f"{workspace.name} (its archive was changed)"

        wanted = [one async for one in self._store.all_workspaces() if one.archive is not None]
        faults = [said for said in await asyncio.gather(*map(fault, wanted)) if said]
        if faults:
            raise Refused(
                "archives_missing",
                f"the move is not completed, because {len(faults)} of {len(wanted)} archives cannot be used here: "
                f"{'; '.join(faults[:MOST_STUCK])}. Nothing was changed. Repair the archive store; or start Torpor with the "
                "former runtime, and delete these workspaces or run `torpor switch-runtime --cancel` there",
            )

    async def _refused_by(self, catalogue: Catalogue) -> Sequence[tuple[Workspace, CannotRun]]:
        found = []
        async for one in self._store.all_workspaces():
            try:
                catalogue.program_of(one)
            except Refused as refused:
                found.append((one, CannotRun(one.name, one.owner, refused.message)))
        return found
