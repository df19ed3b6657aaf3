"""Exactly the packs that no archive needs are collected, also after crashes and with a wrong view of the store."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.gc_stage import ARCHIVING, IN_ERROR, RETENTION, TERM, deleted, gc_stage
from tests.support.pack_stage import PackStage
from tests.support.stored_packs import FakePacks, StoredPacks
from torpor.archives.archives import HomeArchives
from torpor.archives.packs.layout import root_path
from torpor.control.gc import GarbageCollector
from torpor.domain.errors import Unavailable
from torpor.domain.records import ArchiveKey
from torpor.ports import ListedArchive, ListedPack
from torpor.store.archive_leases import reading
from torpor.testing.fake_runtime import FakeArchives, FakeWorld

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(database_url: str, tmp_path: Path) -> AsyncIterator[PackStage]:
    """With a real store in a directory."""
    async with gc_stage(database_url, HomeArchives(f"file://{tmp_path}")) as made:
        yield PackStage(made, StoredPacks(tmp_path))


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld()


@pytest.fixture
async def faked(database_url: str, world: FakeWorld) -> AsyncIterator[PackStage]:
    async with gc_stage(database_url, FakeArchives(world)) as made:
        yield PackStage(made, FakePacks(world))


# ── what is collected ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_pack_is_removed_after_its_last_archive_and_a_grace_period(here: PackStage) -> None:
    _, old, kept = await here.superseded("demo")
    everything = await here.stored()
    assert (await here.collect())["orphans"] == 0
    await here.grace_passes()
    # The root of the archive is removed. Its own pack is an orphan from now on.
    report = await here.gc.collect()
    assert (report["removed"], report["freed_bytes"], report["packs"]["orphans"]) == (1, 0, 1)
    assert str(old.key) not in await here.gc.objects()
    assert await here.stored() == everything
    assert (await here.collect())["removed"] == 0, "the grace period is not over"
    await here.grace_passes()
    report = await here.gc.collect()
    assert (report["packs"]["removed"], report["packs"]["kept"]) == (1, 3)
    assert report["freed_bytes"] == len(b"own of the old one")
    assert await here.stored() == everything - {old.packs[0]} == (await here.rows()).keys()
    await here.require_whole(*kept)


async def test_all_packs_of_a_purged_workspace_go(here: PackStage, tmp_path: Path) -> None:
    workspace_id, *_ = await here.superseded("purged")
    await here.gc.change(workspace_id, **deleted(days=1), purge="true")
    for _ in range(3):
        await here.collect()
        await here.grace_passes()
    assert await here.rows() == {}
    assert await here.stored() == set()
    assert not (tmp_path / workspace_id).exists()


@pytest.mark.parametrize("what", ["operation", "lease", "error"])
async def test_no_pack_is_marked_or_removed_while_its_workspace_is_busy(here: PackStage, what: str) -> None:
    workspace_id, old, kept = await here.superseded("demo")
    await here.gc.owner.execute("UPDATE archives SET orphan_since = now(), removing_since = now() WHERE key = $1", str(old.key))
    async with contextlib.AsyncExitStack() as busy:
        await _make_busy(here, workspace_id, what, busy)
        await here.gc.owner.execute("DELETE FROM archives WHERE key = $1", str(old.key))
        await here.gc.archives.remove(old.key)
        assert (await here.collect())["orphans"] == 0, "not marked"
        await here.change_packs(old.packs[0], orphan_since="now() - interval '3 hours'")
        assert (await here.collect())["removed"] == 0, "not removed"
        assert old.packs[0] in await here.stored()
    await here.gc.change(
        workspace_id, operation="'NONE'", stage="'REST'", phase="'ARCHIVED'", error_info="NULL", deadline_at="NULL"
    )
    await here.change_packs(old.packs[0], orphan_since="now() - interval '3 hours'")
    assert (await here.collect())["removed"] == 1
    await here.require_whole(*kept)


async def _make_busy(here: PackStage, workspace_id: str, what: str, busy: contextlib.AsyncExitStack) -> None:
    match what:
        case "operation":
            await here.gc.change(workspace_id, **ARCHIVING)
        case "lease":
            await busy.enter_async_context(reading(here.gc.packs._database, workspace_id, "an export", lease_s=60))
        case "error":
            await here.gc.change(workspace_id, **IN_ERROR)


async def test_an_expired_lease_holds_nothing(here: PackStage) -> None:
    workspace_id, old, _ = await here.superseded("demo")
    async with reading(here.gc.packs._database, workspace_id, "an export", lease_s=60) as lease:
        assert await lease.renew()
        assert (await here.gc.collect())["orphans"] == 0
        await here.gc.owner.execute("UPDATE archive_leases SET expires_at = now() - interval '1 second'")
        assert not await lease.renew()
        assert (await here.gc.collect())["orphans"] == 1
    assert await here.gc.owner.fetchval("SELECT count(*) FROM archive_leases") == 0
    assert (await here.gc.rows())[str(old.key)] == (True, False)


async def test_a_pack_that_is_needed_again_is_not_removed(here: PackStage) -> None:
    """An archive was written between the look and the lock."""
    _, old, _ = await here.superseded("demo")
    await here.change_packs(*old.packs, orphan_since="now() - interval '3 hours'")
    report = await here.collect()
    assert (report["removed"], report["orphans"]) == (0, 0)


# ── what operations left behind ───────────────────────────────────────────────────────────────────────────────────────


async def test_packs_of_an_operation_that_failed_are_removed_and_unknown_packs_are_reported(here: PackStage) -> None:
    workspace_id, old, kept = await here.superseded("demo")
    failed = ArchiveKey(workspace_id, str(uuid.uuid4()))
    await here.gc.operation(str(failed))
    left = await here.writer.write(failed, b"left over")
    report = await here.collect()
    assert report["left_over"] == [f"{workspace_id}/packs/{left}"]
    assert (await here.rows())[left] == (True, False)
    await here.grace_passes()
    assert (await here.collect())["removed"] == 1
    assert left not in await here.stored()

    stranger = ArchiveKey(workspace_id, str(uuid.uuid4()))
    unknown = await here.writer.write(stranger, b"of unknown origin")
    for _ in range(3):
        report = await here.collect()
        await here.grace_passes()
    assert report["unknown"] == [f"{workspace_id}/packs/{unknown}"]
    assert unknown in await here.stored()
    # The database may be older than the store, so nothing of this workspace is removed.
    assert (report["removed"], report["orphans"]) == (0, 0)
    assert old.packs[0] in await here.stored()
    await here.require_whole(*kept)


async def test_a_pack_of_the_last_operation_is_neither_unknown_nor_left_over(here: PackStage) -> None:
    workspace_id, _, _ = await here.superseded("demo")
    now = ArchiveKey(workspace_id, str(uuid.uuid4()))
    await here.gc.operation(str(now))
    await here.gc.change(workspace_id, op_id=f"'{now.op_id}'")
    await here.writer.write(now, b"perhaps of the next attempt")
    report = await here.collect()
    assert (report["unknown"], report["left_over"]) == ([], [])


async def test_a_pack_that_the_finished_archive_of_its_operation_does_not_name_is_left_over(here: PackStage) -> None:
    """The first attempt of an operation wrote it, and the second one cut the home in another way."""
    workspace_id, _, kept = await here.superseded("demo")
    await here.gc.operation(str(kept[-1].key), outcome="DONE")
    spare = await here.writer.write(kept[-1].key, b"of the first attempt")
    assert (await here.collect())["left_over"] == [f"{workspace_id}/packs/{spare}"]
    await here.grace_passes()
    await here.collect()
    assert spare not in await here.stored()
    await here.require_whole(*kept)


AT_REST = {"operation": "'NONE'", "stage": "'REST'"}


@pytest.mark.parametrize("is_of_fork", [False, True])
async def test_packs_of_a_copy_that_never_ended_are_removed_after_a_purge(here: PackStage, is_of_fork: bool) -> None:
    """Their names are those of the source, or of the source of the source."""
    source, _, kept = await here.superseded("demo")
    await here.gc.operation(str(kept[-1].key), outcome="DONE")
    fork = (await here.gc.wishes.fork(here.gc.user, source, name="fork")).workspace.id
    if is_of_fork:
        middle = (await here.gc.wishes.fork(here.gc.user, source, name="middle")).workspace.id
        await here.gc.change(fork, fork_source=f"""jsonb_set(fork_source, '{{workspace_id}}', '"{middle}"')""")
    copied = kept[-1].packs[0]
    await here.writer.damage(fork, copied, b"a copy, or the beginning of one")
    tried = ArchiveKey(fork, str(uuid.uuid4()))
    await here.gc.operation(str(tried), "COPYING", None)
    await here.gc.change(fork, op_id=f"'{tried.op_id}'", **{**ARCHIVING, "operation": "'COPYING'"})
    report = await here.collect()
    assert (report["unknown"], report["left_over"]) == ([], []), "it is being copied"
    await here.gc.owner.execute("UPDATE operations SET ended_at = now(), outcome = 'TURNED' WHERE op_id = $1", tried.op_id)
    await here.gc.change(fork, **AT_REST, **deleted(hours=1))
    report = await here.collect()
    assert (report["unknown"], report["left_over"]) == ([], []), "an undelete copies it again"
    await here.gc.change(fork, purge="true")
    assert (await here.collect())["left_over"] == [f"{fork}/packs/{copied}"]
    await here.grace_passes()
    assert (await here.collect())["removed"] >= 1
    gone = {(found.workspace_id, found.name) async for found in here.gc.archives.listing() if isinstance(found, ListedPack)}
    assert (fork, copied) not in gone
    await here.require_whole(*kept)


# ── the view is wrong ─────────────────────────────────────────────────────────────────────────────────────────────────


async def ripe(here: PackStage, name: str = "demo") -> tuple[str, str, list[Any]]:
    """A pack that the next collection removes: no archive names it, and its grace period is over."""
    workspace_id, old, kept = await here.superseded(name)
    await here.gc.mark(str(old.key), orphan_since="now()", removing_since="now()")
    await here.gc.owner.execute("DELETE FROM archives WHERE key = $1", str(old.key))
    await here.gc.archives.remove(old.key)
    await here.change_packs(old.packs[0], orphan_since="now() - interval '3 hours'")
    return workspace_id, old.packs[0], kept


@pytest.mark.parametrize("fault", ["lost", "damaged", "other packs", "other manifest root"])
async def test_with_a_root_that_cannot_be_verified_no_pack_of_its_workspace_is_removed(
    here: PackStage, tmp_path: Path, fault: str
) -> None:
    workspace_id, orphan, kept = await ripe(here)
    _, other, _ = await ripe(here, "other")
    root = tmp_path / root_path(kept[0].key)
    good = root.read_bytes()
    match fault:
        case "lost":
            root.unlink()
        case "damaged":
            root.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        case "other packs":
            await here.writer.finish(kept[0].key, here.gc.home(workspace_id), (*kept[0].packs, orphan))
        case _:
            await here.gc.owner.execute("UPDATE archives SET manifest_root = 'x' WHERE key = $1", str(kept[0].key))
    report = await here.collect()
    assert report["unreadable_roots"].keys() == {str(kept[0].key)}
    assert report["removed"] == 1, "that of the other workspace"
    stored = await here.stored()
    assert orphan in stored
    assert other not in stored
    root.write_bytes(good)
    await here.gc.owner.execute("UPDATE archives SET manifest_root = 'root'")
    assert (await here.collect())["removed"] == 1
    assert orphan not in await here.stored()


async def test_with_a_root_that_cannot_be_read_no_archive_of_its_workspace_is_removed(here: PackStage, tmp_path: Path) -> None:
    """The newest archive but one looks complete in the listing, but it cannot be restored."""
    _, old, kept = await here.superseded("demo")
    _, other, _ = await here.superseded("other")
    root = tmp_path / root_path(kept[0].key)
    good = root.read_bytes()
    root.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    await here.collect()
    await here.grace_passes()
    report = await here.gc.collect()
    assert report["removed"] == 1, "that of the other workspace"
    assert report["packs"]["unreadable_roots"].keys() == {str(kept[0].key)}
    objects = await here.gc.objects()
    assert str(old.key) in objects
    assert str(other.key) not in objects
    damaged = await here.gc.owner.fetch("SELECT key FROM archives WHERE is_damaged(archives)")
    assert [row["key"] for row in damaged] == [str(kept[0].key)]
    # From now on the old archive is one of the two newest that can be restored.
    await here.collect()
    assert (await here.gc.rows())[str(old.key)] == (False, False)
    await here.require_whole(old, kept[1])


async def test_an_archive_with_a_damaged_root_does_not_keep_itself(here: PackStage, tmp_path: Path) -> None:
    workspace_id, old, kept = await here.superseded("demo")
    (tmp_path / root_path(old.key)).write_bytes(b"damaged")
    await here.collect()
    await here.grace_passes()
    assert (await here.gc.collect())["removed"] == 1
    assert str(old.key) not in await here.gc.objects()
    await here.require_whole(*kept)

    (tmp_path / root_path(kept[1].key)).write_bytes(b"damaged")
    await here.gc.change(workspace_id, **deleted(days=1), purge="true")
    for _ in range(3):
        await here.collect()
        await here.grace_passes()
    assert await here.rows() == {}
    assert not (tmp_path / workspace_id).exists(), "the whole workspace was purged"


async def test_an_archive_that_is_written_while_roots_are_verified_keeps_the_older_ones(
    faked: PackStage, world: FakeWorld
) -> None:
    """The root of the new archive was not verified."""
    workspace_id, old, kept = await faked.superseded("demo")
    await faked.collect()
    await faked.grace_passes()

    async def archive_meanwhile(verb: str, _workspace_id: str) -> None:
        if verb == "root_packs":
            world.interfere = FakeWorld().interfere
            await faked.archive(workspace_id, b"meanwhile", hours=0)

    world.interfere = archive_meanwhile
    assert (await faked.gc.collect())["removed"] == 0
    await faked.require_whole(old, *kept)
    assert (await faked.gc.collect())["removed"] == 1


class LateListing(FakeArchives):
    """A store whose listing is late: it lacks new objects and has some that are gone."""

    def __init__(self, world: FakeWorld) -> None:
        super().__init__(world)
        self.hidden: set[str] = set()
        self.ghosts: list[ListedPack] = []

    async def listing(self) -> AsyncIterator[ListedArchive | ListedPack]:
        async for found in super().listing():
            if not (isinstance(found, ListedPack) and found.name in self.hidden):
                yield found
        for ghost in self.ghosts:
            yield ghost


async def test_a_late_listing_neither_hides_packs_nor_invents_them(database_url: str, world: FakeWorld) -> None:
    archives = LateListing(world)
    async with gc_stage(database_url, archives) as made:
        here = PackStage(made, FakePacks(world))
        workspace_id, orphan, kept = await ripe(here)
        archives.hidden = {name for one in kept for name in one.packs}
        gone = f"{uuid.uuid4()}-{'0' * 64}"
        archives.ghosts = [ListedPack(workspace_id, gone, 7)]
        report = await here.collect()
        assert (report["missing"], report["unknown"], report["removed"]) == ([], [], 1)
        assert orphan not in await here.stored()
        archives.hidden = set()
        await here.require_whole(*kept)
        # One that is really gone is reported.
        del world.packs[workspace_id, kept[0].packs[0]]
        assert (await here.collect())["missing"] == [f"{workspace_id}/packs/{kept[0].packs[0]}"]


async def test_a_store_of_which_too_many_packs_are_missing_is_not_touched(faked: PackStage, world: FakeWorld) -> None:
    workspace_id, orphan, kept = await ripe(faked)
    for name in {name for one in kept for name in one.packs}:
        del world.packs[workspace_id, name]
    with pytest.raises(Unavailable, match="3 of 4 packs are missing in the store"):
        await faked.gc.collector().collect(TERM)
    assert (workspace_id, orphan) in world.packs


async def test_an_archive_that_is_written_while_roots_are_verified_postpones_the_removal(
    faked: PackStage, world: FakeWorld
) -> None:
    workspace_id, orphan, kept = await ripe(faked)

    async def archive_meanwhile(verb: str, _workspace_id: str) -> None:
        if verb == "root_packs":
            world.interfere = FakeWorld().interfere
            await faked.archive(workspace_id, b"meanwhile", taken_over=(orphan,), hours=0)

    world.interfere = archive_meanwhile
    assert (await faked.collect())["removed"] == 0
    await faked.require_whole(*kept)
    assert (workspace_id, orphan) in world.packs
    assert (await faked.collect())["orphans"] == 0, "it is needed again"


async def test_an_operation_that_begins_while_roots_are_verified_postpones_the_removal(
    faked: PackStage, world: FakeWorld
) -> None:
    workspace_id, orphan, _ = await ripe(faked)

    async def begin(verb: str, _workspace_id: str) -> None:
        if verb == "root_packs":
            await faked.gc.change(workspace_id, **ARCHIVING)

    world.interfere = begin
    assert (await faked.collect())["removed"] == 0
    assert (await faked.rows())[orphan] == (True, False)


async def test_no_row_is_locked_while_the_store_is_asked(faked: PackStage, world: FakeWorld) -> None:
    workspace_id, _, _ = await ripe(faked)
    asked = set()

    async def lock(verb: str, _workspace_id: str) -> None:
        asked.add(verb)
        await faked.gc.owner.fetch("SELECT FROM workspaces WHERE id = $1 FOR UPDATE NOWAIT", uuid.UUID(workspace_id))

    world.interfere = lock
    assert (await faked.collect())["removed"] == 1
    assert {"listing", "root_packs", "remove_pack"} <= asked


# ── crashes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Crash(BaseException):
    """The process ends here."""


class CrashPoints:
    """Ends the process at the n-th step: before or after a call to the store or the database, or before a commit."""

    def __init__(self, at: int) -> None:
        self.left = at

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash

    def around(self, real: Any, *verbs: str) -> Any:
        return _Crashing(real, self, frozenset(verbs))


class _Crashing:
    def __init__(self, real: Any, points: CrashPoints, verbs: frozenset[str]) -> None:
        self._real = real
        self._points = points
        self._verbs = verbs

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name == "holding":
            return self._holding
        return self._call(found) if name in self._verbs else found

    def _call(self, found: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            self._points.step()
            answer = await found(*arguments, **named)
            self._points.step()
            return answer

        return call

    @contextlib.asynccontextmanager
    async def _holding(self, *arguments: Any) -> AsyncIterator[Any]:
        async with self._real.holding(*arguments) as locked:
            yield locked
            self._points.step()  # before the commit
        self._points.step()


async def crashes(collecting: Awaitable[None]) -> bool:
    try:
        await collecting
    except Crash:
        return True
    except BaseExceptionGroup as group:
        if group.subgroup(Crash) is None:
            raise
        return True
    return False


async def test_a_crash_at_any_point_loses_nothing_and_leaves_only_orphans(faked: PackStage) -> None:
    stage, archives = faked.gc, faked.gc.archives
    for at in range(1, 200):
        workspace_id, orphan, kept = await ripe(faked, f"demo-{at}")
        failed = ArchiveKey(workspace_id, str(uuid.uuid4()))
        await stage.operation(str(failed))
        left = await faked.writer.write(failed, b"left over")
        points = CrashPoints(at)
        collector = GarbageCollector(
            stage.store,
            points.around(stage.packs, "forget", "going"),
            points.around(archives, "remove_pack", "root_packs"),
            retention=RETENTION,
            every_s=3600,
        )
        has_crashed = await crashes(collector.collect(TERM))
        await faked.require_whole(*kept)
        # The next collections finish it.
        for _ in range(2):
            await faked.collect()
            await faked.grace_passes()
        await faked.collect()
        needed = {name for one in kept for name in one.packs}
        assert {orphan, left}.isdisjoint(await faked.rows())
        assert {orphan, left}.isdisjoint(await faked.stored())
        assert needed <= await faked.stored()
        if not has_crashed:
            assert at > 10
            return
    pytest.fail("there is always another point")


# ── the database refuses ──────────────────────────────────────────────────────────────────────────────────────────────


async def refused(doing: Awaitable[object]) -> str:
    with pytest.raises(asyncpg.IntegrityConstraintViolationError) as caught:
        await doing
    return str(caught.value.constraint_name)


async def test_the_database_refuses_to_lose_a_pack(here: PackStage) -> None:
    workspace_id, orphan, kept = await ripe(here)
    owner, key = here.gc.owner, uuid.UUID(workspace_id)
    needed = kept[0].packs[0]
    delete = "DELETE FROM packs WHERE name = $1"
    assert await refused(owner.execute(delete, orphan)) == "only_marked_packs_are_forgotten"
    assert await refused(here.change_packs(needed, removing_since="now()")) == "a_pack_with_an_archive_is_not_removed"
    assert await refused(here.change_packs(orphan, orphan_since="NULL", removing_since="now()")) == (
        "only_orphan_packs_are_removed"
    )
    await here.change_packs(orphan, removing_since="now()")
    assert await refused(here.change_packs(orphan, removing_since="NULL")) == "a_removal_of_a_pack_is_not_taken_back"
    name = "INSERT INTO archive_packs VALUES ($1, $2, $3)"
    assert await refused(owner.execute(name, str(kept[0].key), key, orphan)) == "a_pack_that_is_removed_is_not_named"
    await owner.execute(delete, orphan)
    assert "fkey" in await refused(owner.execute(name, str(kept[0].key), key, orphan))
    other = await here.gc.workspace("other")
    assert await refused(owner.execute(name, str(kept[0].key), uuid.UUID(other), needed)) == "packs_are_of_the_same_workspace"
    assert await refused(here.change_packs(needed, store_version="NULL")) == "a_proof_has_a_version"


async def test_marks_and_archives_that_are_written_at_the_same_time_do_not_wait_in_a_circle(here: PackStage) -> None:
    """A controller holds the row of the workspace: the collection goes on without this workspace."""
    workspace_id, orphan, _ = await ripe(here)
    async with here.gc.owner.transaction():
        await here.gc.owner.fetch("SELECT FROM workspaces WHERE id = $1 FOR UPDATE", uuid.UUID(workspace_id))
        async with asyncio.timeout(20):
            await here.gc.collector().collect(TERM)
    assert (await here.rows())[orphan] == (True, False)
    assert (await here.collect())["removed"] == 1
