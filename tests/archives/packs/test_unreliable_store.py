"""A real S3 server behind a relay that damages, loses and delays answers. No home is lost, and no archive by mistake."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.archives.packs.stage import PackStage, base_of
from tests.support.archive_jobs import Meter, roomy, run
from tests.support.faulty_store import Fault, FaultyStore, cut, faulty_store, flip, shorten, silence, status, without
from tests.support.s3_server import S3Server, s3_server
from torpor.archives.archives import HomeArchives
from torpor.archives.pack import PackRequest, pack
from torpor.archives.packs.copy import copy_packed
from torpor.archives.packs.layout import pack_path, root_path
from torpor.archives.packs.write import WrittenArchive
from torpor.archives.reading import open_archive
from torpor.archives.store import ArchiveStore, StoreAddress
from torpor.archives.tree import tree_root
from torpor.archives.unpack import find, unpack
from torpor.domain.errors import Code, Failed, Unavailable
from torpor.domain.records import ArchiveKey

pytestmark = pytest.mark.long

TARGET = "0d1f8a3c-0000-4000-8000-000000000002"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def relay(server: S3Server) -> Iterator[FaultyStore]:
    with faulty_store(server) as relay:
        yield relay


class BucketStage(PackStage):
    """The store is a bucket behind the relay. `honest` goes around the relay."""

    relay: FaultyStore
    honest: ArchiveStore
    archives: HomeArchives

    def connect(self, server: S3Server, relay: FaultyStore) -> None:
        url = server.new_url()
        options = {**relay.server.options, "timeout": "2s"}
        self.relay = relay
        self.place = ArchiveStore(StoreAddress.parse(url), options, pauses_s=(0.01, 0.01))
        self.honest = ArchiveStore(StoreAddress.parse(url), server.options)
        self.archives = HomeArchives(url, options)

    def pack_of(self, written: WrittenArchive, number: int = 0) -> str:
        return pack_path(self.workspace_id, sorted(written.packs, key=lambda pack: -pack.size_bytes)[number].name)

    def contents(self) -> dict[str, bytes]:
        """All objects that the store has."""
        return {path: self.honest.content(path) for page in self.honest.listed() for path in page}


@pytest.fixture
def stage(server: S3Server, relay: FaultyStore) -> Iterator[BucketStage]:
    with TemporaryDirectory(dir=roomy(), prefix="torpor-test-") as directory:
        made = BucketStage(Path(directory))
        made.connect(server, relay)
        yield made


def fill(home: Path) -> Path:
    (home / "folder").mkdir()
    for number in range(20):
        (home / "folder" / f"file {number:02}").write_bytes(os.urandom(2000))
    (home / "large").write_bytes(os.urandom((4 << 20) + 1000))
    (home / "link").symlink_to("large")
    return home


def change(home: Path) -> Path:
    (home / "folder" / "file 10").write_bytes(os.urandom(3000))
    return home


# ── the first answer about each object is bad ─────────────────────────────────────────────────────────────────────────


def archive_first(stage: BucketStage) -> Callable[[], str]:
    home, key = fill(stage.home()), stage.key()

    def archive() -> str:
        return stage.archive(home, key=key).root.manifest_root

    return archive


def archive_second(stage: BucketStage) -> Callable[[], str]:
    first = stage.archive(fill(stage.home()))
    home, key = change(stage.restore(first.root)), stage.key()

    def archive() -> str:
        return stage.archive(home, base_of(first, is_trusted=False), key=key).root.manifest_root

    return archive


def restore(stage: BucketStage) -> Callable[[], str]:
    home = fill(stage.home())
    written = stage.archive(home)
    again = stage.home()

    def restore() -> str:
        assert tree_root(stage.restore(written.root, again)) == tree_root(home)
        return written.root.manifest_root

    return restore


def copy(stage: BucketStage) -> Callable[[], str]:
    written = stage.archive(fill(stage.home()))
    target = ArchiveKey(TARGET, stage.key().op_id)

    def copy() -> str:
        copied = copy_packed(stage.place, written.root.key, target, lambda _count: None)
        assert copied is not None
        return copied.root.manifest_root

    return copy


def read_files(stage: BucketStage) -> Callable[[], str]:
    home = fill(stage.home())
    written = stage.archive(home)

    def read() -> str:
        archive = open_archive(stage.place, written.root.key)
        for name in ("large", "folder/file 07"):
            assert b"".join(archive.content(name)) == (home / name).read_bytes()
        return written.root.manifest_root

    return read


def archive_as_tar(stage: BucketStage) -> Callable[[], str]:
    """In format 1."""
    home, request = fill(stage.home()), PackRequest(stage.key(), 3, 7)

    def archive() -> str:
        return pack(stage.place, request, home, Meter()).head.manifest_root

    return archive


def restore_tar(stage: BucketStage) -> Callable[[], str]:
    home, request = fill(stage.home()), PackRequest(stage.key(), 3, 7)
    pack(stage.place, request, home, Meter())
    again = stage.home()

    def restore() -> str:
        unpack(stage.place, find(stage.place, request.key), again, Meter())
        assert tree_root(again) == tree_root(home)
        return "restored"

    return restore


OPERATIONS: dict[str, Callable[[BucketStage], Callable[[], str]]] = {
    "archive": archive_first,
    "second archive": archive_second,
    "restore": restore,
    "copy": copy,
    "read": read_files,
    "archive of format 1": archive_as_tar,
    "restore of format 1": restore_tar,
}
ONCE: dict[str, Fault] = {"503": status(503), "cut": cut, "shortened": shorten, "flipped": flip}


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, id=name) for name, fault in ONCE.items()],
)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_the_first_answer_about_each_object_is_bad(
    stage: BucketStage, operation: Callable[[BucketStage], Callable[[], str]], fault: Fault
) -> None:
    """Nothing fails, and what is stored in the end is intact."""
    act = operation(stage)
    stage.relay.requests.clear()
    stage.relay.break_first(fault)
    done = act()
    stage.relay.mend()
    assert len(stage.relay.requests) > 3
    assert act() == done, "what was written is proven again without faults"


@pytest.mark.parametrize("operation", [restore, copy, read_files])
def test_an_object_that_is_not_found_once(stage: BucketStage, operation: Callable[[BucketStage], Callable[[], str]]) -> None:
    act = operation(stage)
    stage.relay.break_first(status(404), lambda request: request.is_read)
    act()


def test_a_root_that_is_not_found_once_by_the_job(stage: BucketStage) -> None:
    """Without a root it would be an archive of format 1, which does not exist."""
    home = fill(stage.home())
    root = stage.archive(home).root
    stage.relay.break_first(status(404), lambda request: request.method == "HEAD")
    again = stage.home()
    assert run(stage.archives.unpack_job(root.key, root.manifest_root), again).result["files"] == root.files
    assert tree_root(again) == tree_root(home)


def test_a_request_that_is_not_answered_once(stage: BucketStage) -> None:
    act = restore(stage)
    stage.relay.break_first(silence, lambda request: request.is_read and "/packs/" in request.path)
    act()


# ── a store that fails for a while ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("operation", [archive_first, archive_second, restore, copy])
def test_a_store_that_fails_in_the_middle(
    stage: BucketStage, operation: Callable[[BucketStage], Callable[[], str]], count: int
) -> None:
    """The error is one that is retried, and the retry with the same key succeeds."""
    act = operation(stage)
    stage.place.pauses_s = ()
    stage.relay.break_after(count, status(500))
    with pytest.raises(Failed) as caught:
        act()
    assert caught.value.code is Code.S3_ACCESS_ERROR
    assert caught.value.context["endpoint"] == stage.place.address.url
    stage.relay.mend()
    act()


@pytest.mark.anyio
@pytest.mark.parametrize("fault", [status(503), silence])
async def test_calls_of_the_controller_are_unavailable(
    stage: BucketStage, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = await asyncio.to_thread(lambda: stage.archive(fill(stage.home())))
    key, pack = written.root.key, written.packs[0]
    archives = HomeArchives(stage.place.address.url, {**stage.place.options, "timeout": "300ms"})

    def calls() -> list[Awaitable[object]]:
        return [
            archives.manifest_root(key),
            archives.prove_pack(key.workspace_id, pack.name, pack.size_bytes),
            archives.root_packs(key),
            archives.copy(key, ArchiveKey(TARGET, key.op_id), lambda _done, _total: None),
        ]

    await archives.world()
    stage.relay.break_with(fault)
    failed = await asyncio.gather(*calls(), return_exceptions=True)
    assert [type(error) for error in failed] == [Unavailable] * 4, failed
    stage.relay.mend()
    manifest_root, proven, _, copied = await asyncio.gather(*calls())
    assert manifest_root == written.root.manifest_root
    assert proven == pack
    assert copied is not None


# ── damage that stays ─────────────────────────────────────────────────────────────────────────────────────────────────


def lose(stage: BucketStage, path: str) -> None:
    stage.honest.remove_one(path)


def halve(stage: BucketStage, path: str) -> None:
    content = stage.honest.content(path)
    stage.honest.replace(path, content[: len(content) // 2])


def spoil(stage: BucketStage, path: str) -> None:
    content = bytearray(stage.honest.content(path))
    content[len(content) // 2] ^= 1
    stage.honest.replace(path, content)


@pytest.mark.parametrize(
    ("damage", "code"),
    [(lose, Code.ARCHIVE_NOT_FOUND), (halve, Code.CHECKSUM_MISMATCH), (spoil, Code.CHECKSUM_MISMATCH)],
)
@pytest.mark.parametrize("which", ["contents", "documents", "root"])
def test_the_damaged_object_is_named(
    stage: BucketStage, which: str, damage: Callable[[BucketStage, str], None], code: Code
) -> None:
    written = stage.archive(fill(stage.home()))
    path = root_path(written.root.key) if which == "root" else stage.pack_of(written, 0 if which == "contents" else -1)
    damage(stage, path)
    with pytest.raises(Failed) as caught:
        stage.restore(written.root)
    assert caught.value.code is code
    if which != "root" or damage is not lose:
        assert path in caught.value.message
        assert caught.value.context["object"] == path


def test_an_answer_that_is_always_damaged_names_its_pack(stage: BucketStage) -> None:
    written = stage.archive(fill(stage.home()))
    path = stage.pack_of(written)
    stage.relay.break_with(flip, lambda request: request.is_read and path in request.path)
    with pytest.raises(Failed) as caught:
        stage.restore(written.root)
    assert caught.value.code is Code.CHECKSUM_MISMATCH
    assert path in caught.value.message


def test_truncated_packs_of_an_earlier_try_are_replaced(stage: BucketStage) -> None:
    home = fill(stage.home())
    first = stage.archive(home)
    before = stage.contents()
    lose(stage, root_path(first.root.key))
    for one in first.packs:
        halve(stage, pack_path(stage.workspace_id, one.name))
    again = stage.archive(home, key=first.root.key)
    assert stage.contents() == before
    assert tree_root(stage.restore(again.root)) == tree_root(home)


@pytest.mark.parametrize("damage", [lose, halve, spoil])
@pytest.mark.parametrize("number", [0, -1], ids=["contents", "documents"])
def test_a_damaged_pack_of_the_base_is_read_from_the_home(
    stage: BucketStage, damage: Callable[[BucketStage, str], None], number: int
) -> None:
    first = stage.archive(fill(stage.home()))
    home = change(stage.restore(first.root))
    damage(stage, stage.pack_of(first, number))
    second = stage.archive(home, base_of(first))
    assert tree_root(stage.restore(second.root)) == tree_root(home)


def test_objects_are_created_only_once(stage: BucketStage) -> None:
    assert stage.place.write_once("a/b", b"first")
    assert not stage.place.write_once("a/b", b"second")
    assert stage.honest.content("a/b") == b"first"


# ── late listings ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_listing_that_lacks_the_newest_packs(stage: BucketStage) -> None:
    """A request for each pack confirms what is missing: nothing is written again."""
    first = stage.archive(fill(stage.home()))
    home = stage.restore(first.root)
    stage.relay.break_with(without(*(pack.name for pack in first.packs)), lambda request: request.is_listing)
    second = stage.archive(home, base_of(first))
    assert set(second.root.packs) == set(first.root.packs)
    assert tree_root(stage.restore(second.root)) == tree_root(home)


@pytest.mark.parametrize("is_changed", [False, True], ids=["unchanged", "changed"])
def test_a_listing_that_still_has_a_removed_pack(stage: BucketStage, is_changed: bool) -> None:
    """The home is removed after it was archived, so a listing alone does not show that a pack exists."""
    first = stage.archive(fill(stage.home()))
    home = stage.restore(first.root)
    if is_changed:
        change(home)
    stage.relay.list_as_now()
    assert list(stage.place.listed(f"{stage.workspace_id}/packs"))
    lose(stage, stage.pack_of(first))
    second = stage.archive(home, base_of(first))
    stage.relay.mend()
    assert tree_root(stage.restore(second.root)) == tree_root(home)


@pytest.mark.anyio
async def test_a_late_listing_does_not_hide_an_archive(stage: BucketStage) -> None:
    written = await asyncio.to_thread(lambda: stage.archive(fill(stage.home())))
    stage.relay.break_with(without(*(pack.name for pack in written.packs)), lambda request: request.is_listing)
    assert await stage.archives.manifest_root(written.root.key) == written.root.manifest_root
