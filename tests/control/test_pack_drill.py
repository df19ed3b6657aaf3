"""The oldest proofs are renewed at a bounded rate, and a damaged pack is marked, never removed."""

from collections.abc import AsyncIterator

import pytest

from tests.support.gc_stage import TERM, gc_stage
from tests.support.pack_stage import PackStage
from tests.support.stored_packs import FakePacks
from torpor import metrics
from torpor.control.pack_drill import AGAIN_S, PackDrill
from torpor.domain.errors import Code, Deposed, Failed, Unavailable
from torpor.domain.records import ProvenPack
from torpor.ports import Archives
from torpor.testing.fake_runtime import FakeArchives, FakeWorld

pytestmark = pytest.mark.anyio

WEEK_S = 7 * 86_400.0


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld()


@pytest.fixture
async def here(database_url: str, world: FakeWorld) -> AsyncIterator[PackStage]:
    async with gc_stage(database_url, FakeArchives(world)) as made:
        yield PackStage(made, FakePacks(world))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def drill(here: PackStage, archives: Archives | None = None, clock: Clock | None = None) -> PackDrill:
    return PackDrill(
        here.gc.packs._database,
        archives or here.gc.archives,
        proof_age_s=WEEK_S,
        bytes_per_s=4.0,
        monotonic=clock or Clock(),
    )


async def aged(here: PackStage, *names: str, days: float) -> None:
    await here.change_packs(*names, proven_at=f"now() - interval '{days} days'")


async def ages(here: PackStage) -> dict[str, tuple[int, bool]]:
    """(age of the proof in days, is damaged) of each pack."""
    rows = await here.gc.owner.fetch(
        "SELECT name, floor(extract(epoch FROM now() - proven_at) / 86400)::int, damaged_at IS NOT NULL FROM packs"
    )
    return {row[0]: (max(0, row[1]), row[2]) for row in rows}


async def test_the_oldest_proofs_are_renewed_first_and_young_ones_not_at_all(here: PackStage) -> None:
    archive = await here.archive(await here.gc.workspace("demo"), b"12 bytes, so", b"old", b"young")
    oldest, old, young = archive.packs
    await aged(here, oldest, days=6)
    await aged(here, old, days=5)
    await aged(here, young, days=3)
    duty = drill(here)
    assert await duty.do(TERM) == 3.0, "12 bytes at 4 bytes per second"
    assert await ages(here) == {oldest: (0, False), old: (5, False), young: (3, False)}
    assert await duty.do(TERM) == 0.75
    assert await duty.do(TERM) is None
    assert await ages(here) == {oldest: (0, False), old: (0, False), young: (3, False)}
    assert await here.gc.owner.fetchval("SELECT count(*) FROM archive_leases") == 0


async def test_a_damaged_or_missing_pack_is_marked_and_nothing_is_removed(here: PackStage, world: FakeWorld) -> None:
    workspace_id = await here.gc.workspace("demo")
    first = await here.archive(workspace_id, b"damaged", b"missing", b"good")
    second = await here.archive(workspace_id, taken_over=first.packs[2:])
    damaged, missing, good = first.packs
    await here.writer.damage(workspace_id, damaged, b"DAMAGED")
    del world.packs[workspace_id, missing]
    await aged(here, *first.packs, days=6)
    before = metrics.pack_proofs_total.labels("damaged")._value.get()
    duty = drill(here)
    while await duty.do(TERM) is not None:
        pass
    assert await ages(here) == {damaged: (6, True), missing: (6, True), good: (0, False)}
    assert metrics.pack_proofs_total.labels("damaged")._value.get() == before + 2
    derived = await here.gc.owner.fetch("SELECT key FROM archives WHERE is_damaged(archives)")
    assert [row["key"] for row in derived] == [str(first.key)]
    assert str(second.key) in await here.gc.objects()
    assert (workspace_id, damaged) in world.packs

    # It is tried again later: the store was repaired.
    await here.writer.damage(workspace_id, damaged, b"damaged")
    assert await duty.do(TERM) is None
    await here.change_packs(damaged, damaged_at="now() - interval '4 days'")
    await duty.do(TERM)
    assert (await ages(here))[damaged] == (0, False)


async def test_a_single_wrong_answer_is_no_damage(here: PackStage, world: FakeWorld) -> None:
    archive = await here.archive(await here.gc.workspace("demo"), b"content")
    await aged(here, *archive.packs, days=6)

    class Flaky(FakeArchives):
        is_first = True

        async def prove_pack(self, workspace_id: str, name: str, size_bytes: int) -> ProvenPack:
            if self.is_first:
                self.is_first = False
                raise Failed(Code.CHECKSUM_MISMATCH, "a bit fell over")
            return await super().prove_pack(workspace_id, name, size_bytes)

    await drill(here, Flaky(world)).do(TERM)
    assert await ages(here) == {archive.packs[0]: (0, False)}


async def test_a_store_that_does_not_answer_marks_nothing(here: PackStage, world: FakeWorld) -> None:
    archive = await here.archive(await here.gc.workspace("demo"), b"content", b"other")
    await aged(here, archive.packs[0], days=6)
    await aged(here, archive.packs[1], days=5)
    before = await ages(here)
    world.archives_out = True
    with pytest.raises(Unavailable):
        await drill(here).do(TERM)
    assert await ages(here) == before
    assert await here.gc.owner.fetchval("SELECT count(*) FROM archive_leases") == 0
    world.archives_out = False

    # One pack that cannot be read does not hold up the others.
    async def refuse(verb: str, _workspace_id: str) -> None:
        if verb == "prove_pack":
            world.interfere = FakeWorld().interfere
            raise Failed(Code.S3_ACCESS_ERROR, "access denied")

    clock = Clock()
    world.interfere = refuse
    duty = drill(here, clock=clock)
    assert await duty.do(TERM) is not None
    assert await ages(here) == before
    await duty.do(TERM)
    assert await ages(here) == {archive.packs[0]: (6, False), archive.packs[1]: (0, False)}
    assert await duty.do(TERM) is None
    clock.now_s += AGAIN_S + 1
    await duty.do(TERM)
    assert (await ages(here))[archive.packs[0]] == (0, False)


async def test_a_proof_holds_the_packs_of_its_workspace(here: PackStage, world: FakeWorld) -> None:
    workspace_id = await here.gc.workspace("demo")
    archive = await here.archive(workspace_id, b"content", b"orphan")
    await aged(here, archive.packs[0], days=6)
    await here.gc.owner.execute("DELETE FROM archive_packs WHERE name = $1", archive.packs[1])
    await here.change_packs(archive.packs[1], orphan_since="now() - interval '3 hours'")
    removed = None

    async def collect(verb: str, _workspace_id: str) -> None:
        nonlocal removed
        if verb == "prove_pack":
            world.interfere = FakeWorld().interfere
            removed = (await here.collect())["removed"]

    world.interfere = collect
    await drill(here).do(TERM)
    assert removed == 0
    assert await ages(here) == {archive.packs[0]: (0, False), archive.packs[1]: (0, False)}


async def test_a_deposed_leader_writes_no_proof(here: PackStage) -> None:
    archive = await here.archive(await here.gc.workspace("demo"), b"content")
    await aged(here, *archive.packs, days=6)
    await here.gc.depose()
    with pytest.raises(Deposed):
        await drill(here).do(TERM)
    assert await ages(here) == {archive.packs[0]: (6, False)}


async def test_packs_that_are_orphans_are_not_proven(here: PackStage) -> None:
    archive = await here.archive(await here.gc.workspace("demo"), b"content")
    await aged(here, *archive.packs, days=6)
    await here.change_packs(*archive.packs, orphan_since="now()")
    assert await drill(here).do(TERM) is None


async def test_a_damaged_or_missing_root_is_marked_and_its_packs_are_not(here: PackStage, world: FakeWorld) -> None:
    workspace_id = await here.gc.workspace("demo")
    lost = await here.archive(workspace_id, b"of the lost one", b"shared")
    good = await here.archive(workspace_id, taken_over=lost.packs[1:])
    young = await here.archive(workspace_id, taken_over=lost.packs[1:])
    await here.gc.mark(str(lost.key), str(good.key), proven_at="now() - interval '6 days'")
    root = world.archive_packs.pop(str(lost.key))
    before = metrics.root_proofs_total.labels("damaged")._value.get()
    duty = drill(here)
    while await duty.do(TERM) is not None:
        pass

    async def roots() -> dict[str, tuple[bool, bool, bool]]:
        """(proven again, damaged, the archive is damaged) of each archive."""
        rows = await here.gc.owner.fetch(
            "SELECT key, root_proven_at IS NOT NULL, root_damaged_at IS NOT NULL, is_damaged(archives) FROM archives"
        )
        return {row[0]: (row[1], row[2], row[3]) for row in rows}

    intact = {str(good.key): (True, False, False), str(young.key): (False, False, False)}
    assert await roots() == {str(lost.key): (False, True, True), **intact}
    assert metrics.root_proofs_total.labels("damaged")._value.get() == before + 1
    assert not any(is_damaged for _, is_damaged in (await ages(here)).values())

    # It is tried again later: the store was repaired.
    world.archive_packs[str(lost.key)] = root
    await here.gc.mark(str(lost.key), root_damaged_at="now() - interval '4 days'")
    await drill(here).do(TERM)
    assert await roots() == {str(lost.key): (True, False, False), **intact}


async def test_a_root_that_names_other_packs_is_tried_again_and_is_not_damaged(here: PackStage, world: FakeWorld) -> None:
    """The database may be wrong. The archive itself can be restored."""
    archive = await here.archive(await here.gc.workspace("demo"), b"content", b"other")
    await here.gc.mark(str(archive.key), proven_at="now() - interval '6 days'")
    del world.archive_packs[str(archive.key)][archive.packs[0]]
    clock = Clock()
    duty = drill(here, clock=clock)
    assert await duty.do(TERM) is not None
    assert await duty.do(TERM) is None
    assert await here.gc.owner.fetchval("SELECT bool_or(is_damaged(archives)) FROM archives") is False
    clock.now_s += AGAIN_S + 1
    assert await duty.do(TERM) is not None
