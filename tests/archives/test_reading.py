"""Archives are listed, read, compared, exported and copied where they are stored, and damage is noticed."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.archives.packs.stage import PackStage
from tests.support.archive_jobs import Meter
from tests.support.hanging_object import hanging
from torpor.archives import file_lookup
from torpor.archives import reader as reader_module
from torpor.archives.archives import HomeArchives
from torpor.archives.copying import copy_archive
from torpor.archives.frames import decompressed
from torpor.archives.manifest import HOME_NAME, fetch
from torpor.archives.pack import PackRequest, pack
from torpor.archives.reader import MOST_STREAMS, ArchiveReader
from torpor.archives.reading import ChangedPath, Difference, ReadableArchive, below, differences, open_archive
from torpor.archives.store import ArchiveStore, StoreAddress
from torpor.domain.errors import Code, Failed, Refused
from torpor.domain.records import ArchiveKey

pytestmark = pytest.mark.anyio

WORKSPACE, OTHER = "0190c0de-0000-7000-8000-000000000001", "0190c0de-0000-7000-8000-000000000002"
FIRST = ArchiveKey(WORKSPACE, "a0000000-0000-4000-8000-000000000001")
SECOND = ArchiveKey(WORKSPACE, "a0000000-0000-4000-8000-000000000002")
COPY = ArchiveKey(OTHER, "a0000000-0000-4000-8000-000000000003")
Item = TypeVar("Item")


@pytest.fixture
def place(tmp_path: Path) -> ArchiveStore:
    """A store with two archives of a home."""
    (tmp_path / "store").mkdir()
    store = ArchiveStore(StoreAddress.parse(f"file://{tmp_path / 'store'}"), pauses_s=())
    home = tmp_path / "home"
    (home / "folder").mkdir(parents=True)
    (home / "folder" / "note").write_text("first")
    (home / "folder" / "linked").hardlink_to(home / "folder" / "note")
    (home / "gone").write_text("")
    (home / "same").write_text("the same")
    (home / "link").symlink_to("folder")
    pack(store, PackRequest(FIRST, 1, 1), home, Meter())
    (home / "gone").unlink()
    (home / "folder" / "note").write_text("second")
    (home / "folder-new").mkdir()
    (home / "same").touch()
    pack(store, PackRequest(SECOND, 1, 2), home, Meter())
    return store


async def collected(items: AsyncIterable[Item]) -> list[Item]:
    return [item async for item in items]


def listed(archive: ReadableArchive, folder: str) -> list[str]:
    return [one.path for one in below(archive.entries(), folder) if one is not None]


def differing(before: ReadableArchive, after: ReadableArchive) -> set[ChangedPath]:
    return {one for one in differences(before, after) if one is not None}


def test_a_folder_is_listed(place: ArchiveStore) -> None:
    archive = open_archive(place, FIRST)
    assert listed(archive, ".") == ["folder", "gone", "link", "same"]
    assert listed(archive, "/folder/") == ["folder/linked", "folder/note"]
    assert listed(archive, "gone") == ["gone"]
    assert listed(open_archive(place, SECOND), "folder-new") == []
    with pytest.raises(Refused, match="has no 'fold'"):
        list(below(archive.entries(), "fold"))


def test_a_file_is_read_also_by_the_name_of_a_hard_link(place: ArchiveStore) -> None:
    for path in ("folder/note", "folder/linked"):
        assert b"".join(open_archive(place, FIRST).content(path)) == b"first"
    for path in ("folder", "link", "nothing", "../etc/passwd"):
        with pytest.raises(Refused) as refused:
            list(open_archive(place, FIRST).content(path))
        assert refused.value.code == "no_such_file"


def test_differences_are_paths_with_another_content(place: ArchiveStore) -> None:
    first, second = open_archive(place, FIRST), open_archive(place, SECOND)
    there = differing(first, second)
    assert there == {
        ChangedPath(Difference.CHANGED, "folder/linked"),
        ChangedPath(Difference.ADDED, "folder-new"),
        ChangedPath(Difference.REMOVED, "gone"),
    }
    back = {Difference.ADDED: Difference.REMOVED, Difference.REMOVED: Difference.ADDED, Difference.CHANGED: Difference.CHANGED}
    assert {ChangedPath(back[one.change], one.path) for one in differing(second, first)} == there
    assert differing(first, open_archive(place, FIRST)) == set()


def test_an_export_is_a_tar_stream(place: ArchiveStore) -> None:
    stream = b"".join(decompressed(open_archive(place, SECOND).export()))
    with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
        assert {"folder/note", "link", "same"} <= set(tar.getnames())


def test_damage_is_noticed_by_every_way_to_read(place: ArchiveStore) -> None:
    file = Path(place.address.directory or "") / str(FIRST) / HOME_NAME
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(bytes(damaged))
    for pieces in (open_archive(place, FIRST).export(), open_archive(place, FIRST).content("same")):
        with pytest.raises(Failed) as failed:
            list(pieces)
        assert failed.value.code is Code.CHECKSUM_MISMATCH
    with pytest.raises(Failed, match=f"archive {FIRST}") as failed:
        copy_archive(place, FIRST, COPY, lambda _count: None)
    assert failed.value.code is Code.CHECKSUM_MISMATCH


def test_a_damaged_copy_is_not_an_error_of_the_source(place: ArchiveStore) -> None:
    copy_archive(place, FIRST, COPY, lambda _count: None)
    (Path(place.address.directory or "") / str(COPY) / HOME_NAME).write_bytes(b"damaged")
    with pytest.raises(Failed, match=f"read back {COPY}") as failed:
        copy_archive(place, FIRST, COPY, lambda _count: None)
    assert failed.value.code is Code.READBACK_MISMATCH


def test_a_copy_shares_no_file_with_its_source(place: ArchiveStore) -> None:
    counted: list[int] = []
    copied = copy_archive(place, FIRST, COPY, counted.append)
    source = fetch(place, FIRST)
    assert source is not None
    assert (copied.head.generation, copied.head.revision, copied.head.key) == (0, 0, COPY)
    assert copied.head.manifest_root == source.head.manifest_root
    assert sum(counted) > 0
    root = Path(place.address.directory or "")
    assert not (root / str(FIRST) / HOME_NAME).samefile(root / str(COPY) / HOME_NAME)


async def test_a_copy_does_not_wait_for_copies_that_take_long(place: ArchiveStore) -> None:
    """Its deadline has begun. (The controller limits how many copies begin.)"""
    archives = HomeArchives(place.address.url)
    with hanging(Path(place.address.directory or "") / str(FIRST) / HOME_NAME):
        others = [ArchiveKey(OTHER, f"a0000000-0000-4000-8000-00000000001{number}") for number in range(8)]
        waiting = [asyncio.create_task(archives.copy(FIRST, other, lambda _done, _total: None)) for other in others]
        copied = await asyncio.wait_for(archives.copy(SECOND, COPY, lambda _done, _total: None), 20)
        assert copied.archive.key == COPY
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    await archives.close()


async def test_streams_are_limited_and_end_with_their_reader(place: ArchiveStore) -> None:
    reader = ArchiveReader(place.address.url)
    open_streams = [reader.export(FIRST) for _ in range(MOST_STREAMS)]
    for stream in open_streams:
        assert await anext(stream)
    with pytest.raises(Refused) as refused:
        await anext(reader.export(FIRST))
    assert refused.value.code == "too_many_streams"
    await asyncio.gather(*(stream.aclose() for stream in open_streams))
    assert [one.path for batch in await collected(reader.files(FIRST, "folder")) for one in batch] == [
        "folder/linked",
        "folder/note",
    ]
    assert b"".join(await collected(reader.content(SECOND, "folder/note"))) == b"second"
    with pytest.raises(Failed) as failed:
        await collected(reader.export(COPY))
    assert failed.value.code is Code.ARCHIVE_NOT_FOUND
    await reader.close()


@pytest.fixture(params=[1, 2])
def many(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ArchiveStore, ArchiveKey]:
    """An archive with 240 files, of each format."""
    stage = PackStage(tmp_path)
    home = stage.home()
    for number in range(240):
        (home / f"file {number:03}").write_text("")
    (home / "last").write_text("found")
    if request.param == 1:
        pack(stage.place, PackRequest(FIRST, 1, 1), home, Meter())
        return stage.place, FIRST
    return stage.place, stage.archive(home).root.key


async def test_a_read_of_many_entries_can_be_cancelled_after_a_few(
    many: tuple[ArchiveStore, ArchiveKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (reader_module, file_lookup):
        monkeypatch.setattr(module, "ENTRIES_AT_ONCE", 20)
    place, key = many
    reader = ArchiveReader(place.address.url)
    batches = await collected(reader.files(key, "last"))
    assert batches.count([]) > 10
    assert [one.path for batch in batches for one in batch] == ["last"]
    same = await collected(reader.differences(key, key))
    assert len(same) > 10
    assert not any(same)
    content = await collected(reader.content(key, "last"))
    assert content.count(b"") > 10
    assert b"".join(content) == b"found"
    await reader.close()
