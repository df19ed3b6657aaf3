"""Packs are stored together with the archive that names them, and an archive with an unusable pack is refused."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from tests.support.control_plane import ControlPlane, control_plane
from torpor.domain.errors import Failed
from torpor.domain.records import Archive, ArchiveKey, Change, ProvenArchive, ProvenPack, Workspace
from torpor.domain.states import Phase, Wish
from torpor.ports import ArchiveBase, Home
from torpor.store.archive_bases import ArchiveBases
from torpor.store.database import Database, Role

pytestmark = pytest.mark.anyio

PROOF_AGE_S = 3600.0


@pytest.fixture
async def here(database_url: str) -> AsyncIterator[ControlPlane]:
    async with control_plane(database_url, archive_format=2) as made:
        yield made


@pytest.fixture
async def owner(database_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def stopped(here: ControlPlane, name: str, **files: bytes) -> Workspace:
    """A workspace with these files, stopped."""
    await here.wishes.wish(here.user, name, Wish.STANDBY)
    seen = await here.until_phase(name, Phase.STANDBY)
    here.world.volumes[Home(seen.id, seen.generation)].files = dict(files)
    return seen


async def archived(here: ControlPlane, name: str) -> Archive:
    await here.wishes.wish(here.user, name, Wish.ARCHIVED)
    seen = await here.until_phase(name, Phase.ARCHIVED)
    assert seen.archive is not None
    return seen.archive


async def packs_of(owner: Any, archive: Archive) -> set[str]:
    rows = await owner.fetch("SELECT name FROM archive_packs WHERE archive_key = $1", str(archive.key))
    return {row["name"] for row in rows}


def bases(here: ControlPlane, *, proof_age_s: float = PROOF_AGE_S) -> ArchiveBases:
    return ArchiveBases(here.controller_store._database, newest=2, proof_age_s=proof_age_s)


async def base_of(here: ControlPlane, archive: Archive, *, proof_age_s: float = PROOF_AGE_S) -> ArchiveBase:
    found = await bases(here, proof_age_s=proof_age_s).base(archive)
    assert found is not None
    return found


async def test_the_second_archive_of_a_home_takes_packs_of_the_first_over(here: ControlPlane, owner: Any) -> None:
    await here.wishes.create(here.user, name="demo", desired_state=Wish.STANDBY)
    await stopped(here, "demo", same=b"the same in both", note=b"first")
    first = await archived(here, "demo")
    row = await owner.fetchrow("SELECT format, new_bytes, size_bytes FROM archives")
    assert row["format"] == 2
    assert row["new_bytes"] == row["size_bytes"] == await owner.fetchval("SELECT sum(size_bytes) FROM packs")
    before = {one["name"]: one["proven_at"] for one in await owner.fetch("SELECT name, proven_at FROM packs")}
    assert before.keys() == await packs_of(owner, first)

    await stopped(here, "demo", same=b"the same in both", note=b"second")
    second = await archived(here, "demo")
    assert second.key != first.key
    shared = await packs_of(owner, first) & await packs_of(owner, second)
    assert len(shared) == 2, "the file that did not change, and the list of names"
    new_bytes = await owner.fetchval("SELECT new_bytes FROM archives WHERE key = $1", str(second.key))
    assert new_bytes == len(b"second")
    after = {one["name"]: one["proven_at"] for one in await owner.fetch("SELECT name, proven_at FROM packs")}
    assert all(after[name] == before[name] for name in shared), "they were not read back again"
    seen = await stopped(here, "demo", same=b"")
    assert seen.archive == second


async def test_a_proof_counts_from_the_begin_of_the_attempt_that_read_the_pack_back(here: ControlPlane, owner: Any) -> None:
    """A job can take hours, and a pack may be damaged after it was read back."""
    await here.wishes.create(here.user, name="demo", desired_state=Wish.STANDBY)
    await stopped(here, "demo", note=b"first")
    archive = await archived(here, "demo")
    began_at = await owner.fetchval(
        "SELECT max(started_at) FROM operations WHERE kind = 'ARCHIVING' AND op_id = $1", uuid.UUID(archive.key.op_id)
    )
    rows = await owner.fetch("SELECT proven_at, known_since FROM packs")
    assert {row["proven_at"] for row in rows} == {began_at}
    # A listing that began during the operation does not have to contain the pack.
    assert all(row["known_since"] > began_at for row in rows)
    assert await owner.fetchval("SELECT proven_at FROM archives") > began_at


async def test_a_base_says_what_can_be_trusted(here: ControlPlane, owner: Any) -> None:
    await here.wishes.create(here.user, name="demo", desired_state=Wish.STANDBY)
    await stopped(here, "demo", a=b"a", b=b"b", c=b"c")
    archive = await archived(here, "demo")
    names = sorted(await packs_of(owner, archive))
    assert (await base_of(here, archive)).trusted == dict.fromkeys(names, "1")
    old, damaged, *fresh = names
    await owner.execute("UPDATE packs SET proven_at = now() - interval '2 hours' WHERE name = $1", old)
    await owner.execute("UPDATE packs SET damaged_at = now() WHERE name = $1", damaged)
    base = await base_of(here, archive)
    assert (base.key, base.manifest_root) == (archive.key, archive.manifest_root)
    assert base.trusted.keys() == set(fresh)
    assert base.unusable == {damaged}
    assert (await base_of(here, archive, proof_age_s=0)).trusted == {}
    assert await bases(here).base(None) is None

    # The next archive stores the content of the damaged pack again.
    await stopped(here, "demo", a=b"a", b=b"b", c=b"c")
    again = await packs_of(owner, await archived(here, "demo"))
    assert again & set(names) == set(names) - {damaged}
    assert {name.rpartition("-")[2] for name in again} == {name.rpartition("-")[2] for name in names}


async def test_no_content_is_taken_over_from_an_archive_of_format_1_or_one_that_is_removed(
    here: ControlPlane, owner: Any
) -> None:
    await here.wishes.create(here.user, name="demo", desired_state=Wish.ARCHIVED)
    seen = await here.until_phase("demo", Phase.ARCHIVED)
    assert seen.archive is not None
    assert await bases(here).base(seen.archive) is not None
    await owner.execute("UPDATE archives SET format = 1")
    assert await bases(here).base(seen.archive) is None


@pytest.mark.parametrize("change", ["orphan_since = now(), removing_since = now()", "damaged_at = now()"])
async def test_an_archive_of_a_paused_controller_with_an_unusable_pack_is_refused(
    here: ControlPlane, owner: Any, change: str
) -> None:
    """It read the row, was stopped, and goes on after a collection has given the pack up. The home stays."""
    await here.wishes.create(here.user, name="demo", desired_state=Wish.STANDBY)
    seen = await stopped(here, "demo", note=b"precious")
    (row,) = (await here.controller_store.load_due(here.hold(), also=[seen.id])).workspaces
    key = ArchiveKey(seen.id, str(uuid.uuid4()))
    stale, new = f"{uuid.uuid4()}-{'0' * 64}", f"{key.op_id}-{'1' * 64}"
    await owner.execute(
        "INSERT INTO packs (workspace_id, name, size_bytes, proven_at, store_version) VALUES ($1, $2, 7, now(), '1')",
        uuid.UUID(seen.id), stale,
    )  # fmt: skip
    packs = (ProvenPack(stale, 7, "1", is_read_back=False), ProvenPack(new, 8, "1", is_read_back=True))
    proven = ProvenArchive(Archive(key, row.generation, row.revision, "root"), 15, 8, 1, 2, 8, packs)
    late = Change(row, replace(row, op_id=key.op_id, archive=proven.archive), proved=proven)
    await bases(here).refuse_unusable(proven)

    await owner.execute(f"UPDATE packs SET {change} WHERE name = $1", stale)
    with pytest.raises(Failed, match="is damaged or was removed meanwhile"):
        await bases(here).refuse_unusable(proven)
    assert await here.controller_store.persist([late], life=here.life.life) == frozenset()
    assert (await here.show("demo")).archive == row.archive
    assert Home(seen.id, seen.generation) in here.world.volumes
    assert await owner.fetchval("SELECT count(*) FROM archives WHERE key = $1", str(key)) == 0
    assert await owner.fetchval("SELECT count(*) FROM packs WHERE name = $1", new) == 0, "all or nothing"

    # A pack that does not exist any more is refused, too.
    await owner.execute(
        "UPDATE packs SET orphan_since = now(), removing_since = coalesce(removing_since, now()) WHERE name = $1", stale
    )
    await owner.execute("DELETE FROM packs WHERE name = $1", stale)
    assert await here.controller_store.persist([late], life=here.life.life) == frozenset()
    # Read back now, it can be used.
    good = replace(proven, packs=tuple(replace(pack, is_read_back=True) for pack in packs))
    assert await here.controller_store.persist([replace(late, proved=good)], life=here.life.life) == {seen.id}
    assert await packs_of(owner, proven.archive) == {stale, new}


async def test_a_pack_that_is_marked_just_before_its_archive_is_stored_does_not_stop_the_workspace(
    here: ControlPlane, owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database refuses the archive. The controller does not write the same again and again: it archives again."""
    await here.wishes.create(here.user, name="demo", desired_state=Wish.STANDBY)
    await stopped(here, "demo", note=b"precious")
    await archived(here, "demo")
    await stopped(here, "demo", note=b"precious", more=b"more")
    real, calls = ArchiveBases.refuse_unusable, 0

    async def mark_after(self: ArchiveBases, proven: ProvenArchive) -> None:
        nonlocal calls
        await real(self, proven)
        calls += 1
        if calls == 1:
            assert any(not pack.is_read_back for pack in proven.packs)
            await owner.execute("UPDATE packs SET damaged_at = now()")

    monkeypatch.setattr(ArchiveBases, "refuse_unusable", mark_after)
    second = await archived(here, "demo")
    assert calls == 2
    assert await packs_of(owner, second)


async def test_a_damaged_pack_that_was_read_back_counts_as_proven(here: ControlPlane, owner: Any) -> None:
    await here.wishes.create(here.user, name="demo", desired_state=Wish.STANDBY)
    await stopped(here, "demo", a=b"a")
    archive = await archived(here, "demo")
    key = str(archive.key)
    is_damaged, last = "SELECT is_damaged(archives) FROM archives WHERE key = $1", "last_proven_at(archives)"
    name = sorted(await packs_of(owner, archive))[0]
    await owner.execute("UPDATE packs SET proven_at = now() - interval '2 days' WHERE name = $1", name)
    assert not await owner.fetchval(is_damaged, key)
    assert await owner.fetchval(f"SELECT now() - {last} > interval '1 day' FROM archives WHERE key = $1", key)
    await owner.execute("UPDATE packs SET damaged_at = now() WHERE name = $1", name)
    assert await owner.fetchval(is_damaged, key)


async def test_the_format_follows_the_living_controllers(here: ControlPlane, owner: Any) -> None:
    assert await bases(here).format() == 2
    older = await here.controller_store.join("older", "fake:of this test", expiry_s=60, archive_formats=(1,))
    assert await bases(here).format() == 1
    await here.controller_store.leave(older)
    assert await bases(here).format() == 2
    # The row of a controller of a version that does not know the column.
    await owner.execute("INSERT INTO controllers (node_id, world, expires_at) VALUES ('old', 'w', now() + interval '1 hour')")
    assert await bases(here).format() == 1


async def test_only_controllers_write_packs(database_url: str) -> None:
    service, controller = [await Database.open(database_url, role) for role in (Role.SERVICE, Role.CONTROLLER)]
    for statement in (
        "UPDATE packs SET orphan_since = now()",
        "DELETE FROM packs",
        "INSERT INTO archive_packs VALUES ('', gen_random_uuid(), '')",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await service.execute(statement)
    for statement in ("UPDATE packs SET name = ''", "UPDATE packs SET size_bytes = 0", "DELETE FROM archive_packs"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await controller.execute(statement)
    for database in (service, controller):
        await database.fetch("SELECT * FROM packs JOIN archive_packs USING (workspace_id, name)")
        await database.close()
