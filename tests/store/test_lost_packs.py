"""A pack or root that an operation finds damaged is marked with the end of its attempt, and proven again next."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tests.support.control_plane import ControlPlane, control_plane
from torpor.control.pack_drill import PackDrill
from torpor.domain.errors import Reason, Refused
from torpor.domain.records import Archive, Workspace
from torpor.domain.states import Phase, Wish
from torpor.ports import Home
from torpor.testing.fake_runtime import FakeArchives

pytestmark = pytest.mark.anyio

TERM = 7


@pytest.fixture
async def here(database_url: str) -> AsyncIterator[ControlPlane]:
    async with control_plane(database_url, archive_format=2) as made:
        await made.wishes.create(made.user, name="demo", desired_state=Wish.STANDBY)
        yield made


@pytest.fixture
async def owner(database_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database_url)
    await connection.execute("INSERT INTO system_locks (lock_name, holder_id, epoch) VALUES ('leader', 'test', $1)", TERM)
    yield connection
    await connection.close()


async def stopped(here: ControlPlane, **files: bytes) -> Workspace:
    await here.wishes.wish(here.user, "demo", Wish.STANDBY)
    seen = await here.until_phase("demo", Phase.STANDBY)
    here.world.volumes[Home(seen.id, seen.generation)].files = dict(files)
    return seen


async def archived(here: ControlPlane) -> Archive:
    await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
    seen = await here.until_phase("demo", Phase.ARCHIVED)
    assert seen.archive is not None
    return seen.archive


def pack_with(here: ControlPlane, content: bytes) -> tuple[str, str]:
    [found] = [pack for pack, stored in here.world.packs.items() if stored == content]
    return found


async def marks(owner: Any) -> dict[str, bool]:
    """Whether an operation alone found it damaged, of each damaged pack and root."""
    packs = await owner.fetch("SELECT name, is_suspect FROM packs WHERE damaged_at IS NOT NULL")
    roots = await owner.fetch("SELECT key, is_root_suspect FROM archives WHERE root_damaged_at IS NOT NULL")
    return {row[0]: row[1] for row in (*packs, *roots)}


async def damaged_archives(owner: Any) -> set[str]:
    return {row["key"] for row in await owner.fetch("SELECT key FROM archives WHERE is_damaged(archives)")}


async def prove(here: ControlPlane) -> None:
    """Only what operations found damaged."""
    database = here.controller_store._database
    duty = PackDrill(database, FakeArchives(here.world), proof_age_s=7 * 86_400.0, bytes_per_s=0)
    while await duty.do(TERM) is not None:
        pass


async def test_a_pack_of_the_base_that_archiving_finds_damaged_is_marked(here: ControlPlane, owner: Any) -> None:
    await stopped(here, same=b"precious", note=b"first")
    first = await archived(here)
    await stopped(here, same=b"precious", note=b"second")
    pack = pack_with(here, b"precious")
    here.world.packs[pack] = b"PRECIOUS"
    # It was proven too long ago, so the operation reads it back.
    await owner.execute("UPDATE packs SET proven_at = now() - interval '8 days' WHERE name = $1", pack[1])
    second = await archived(here)
    assert await marks(owner) == {pack[1]: True}
    assert await damaged_archives(owner) == {str(first.key)}
    named = await owner.fetchval(
        "SELECT count(*) FROM archive_packs WHERE archive_key = $1 AND name = $2", str(second.key), pack[1]
    )
    assert named == 0, "its content was stored again"
    await prove(here)
    assert await marks(owner) == {pack[1]: False}


async def test_a_pack_that_a_restore_finds_damaged_marks_all_archives_that_name_it(here: ControlPlane, owner: Any) -> None:
    await stopped(here, same=b"precious", note=b"first")
    first = await archived(here)
    shared = pack_with(here, b"precious")
    await stopped(here, same=b"of its own", note=b"second")
    other = await archived(here)
    await stopped(here, same=b"precious", note=b"third")
    last = await archived(here)
    # As if it had taken the pack over from the first one.
    await owner.execute("INSERT INTO archive_packs VALUES ($1, $2, $3)", str(last.key), uuid.UUID(shared[0]), shared[1])
    here.world.archive_packs[str(last.key)][shared[1]] = len(b"precious")
    here.world.packs[shared] = b"PRECIOUS"

    await here.wishes.wish(here.user, "demo", Wish.RUNNING)
    seen = await here.until("demo", lambda seen: seen.error is not None)
    assert seen.error is not None
    assert seen.error.reason is Reason.DATA_LOST
    assert await marks(owner) == {shared[1]: True}
    assert await damaged_archives(owner) == {str(first.key), str(last.key)}
    with pytest.raises(Refused) as asked:
        await here.wishes.recover(here.user, "demo")
    assert asked.value.context["archive_keys"] == [str(other.key)], "those with the damaged pack are not offered"

    # The leader reads it twice. Here the error did not come from the store.
    here.world.packs[shared] = b"precious"
    await prove(here)
    assert await marks(owner) == {}
    assert await damaged_archives(owner) == set()


async def test_a_root_that_a_restore_cannot_read_is_marked(here: ControlPlane, owner: Any) -> None:
    await stopped(here, note=b"first")
    archive = await archived(here)
    lost = here.world.archives.pop(str(archive.key)), here.world.archive_packs.pop(str(archive.key))
    await here.wishes.wish(here.user, "demo", Wish.RUNNING)
    await here.until("demo", lambda seen: seen.error is not None)
    assert await marks(owner) == {str(archive.key): True}
    await prove(here)
    assert await marks(owner) == {str(archive.key): False}
    here.world.archives[str(archive.key)], here.world.archive_packs[str(archive.key)] = lost
    await owner.execute("UPDATE archives SET is_root_suspect = true")
    await prove(here)
    assert await marks(owner) == {}


async def test_without_a_rate_only_what_operations_found_damaged_is_proven(here: ControlPlane, owner: Any) -> None:
    await stopped(here, note=b"first")
    await archived(here)
    await owner.execute("UPDATE packs SET proven_at = now() - interval '9 days'")
    await owner.execute("UPDATE archives SET proven_at = now() - interval '9 days'")
    await prove(here)
    assert await owner.fetchval("SELECT count(*) FROM packs WHERE proven_at > now() - interval '1 day'") == 0
    await owner.execute("UPDATE packs SET damaged_at = now(), is_suspect = true")
    await prove(here)
    assert await owner.fetchval("SELECT count(*) FROM packs WHERE proven_at < now() - interval '1 day'") == 0
