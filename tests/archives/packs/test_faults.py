"""Stores that lose or damage objects, and stat caches that must not be used."""

import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.archives.packs.stage import PackStage, base_of, many_files, rot
from torpor.archives.packs import home_pass, stat_cache
from torpor.archives.packs.copy import copy_packed
from torpor.archives.packs.hashes import BLOCK_BYTES
from torpor.archives.packs.layout import pack_path
from torpor.archives.packs.stat_cache import CHECKSUM_BYTES, cache_file
from torpor.archives.packs.write import WrittenArchive
from torpor.archives.tree import tree_root
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ArchiveKey

OTHER = "0d1f8a3c-0000-4000-8000-000000000002"


def fill(home: Path) -> Path:
    (home / "folder").mkdir()
    for number in range(20):
        (home / "folder" / f"file {number:02}").write_bytes(os.urandom(2000))
    (home / "large").write_bytes(os.urandom(BLOCK_BYTES + 1000))
    (home / "link").symlink_to("large")
    return home


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def content_pack(stage: PackStage, written: WrittenArchive) -> Path:
    """The pack with the contents: it is the largest."""
    return max((stage.pack(pack.name) for pack in written.packs), key=lambda path: path.stat().st_size)


def document_pack(stage: PackStage, written: WrittenArchive) -> Path:
    return stage.pack(written.root.sections[0].tree.frame.pack)


# ── restore ───────────────────────────────────────────────────────────────────────────────────────────────────────────

DAMAGES: dict[str, tuple[Callable[[Path], None], tuple[Code, ...]]] = {
    "lost": (Path.unlink, (Code.ARCHIVE_NOT_FOUND,)),
    "truncated": (truncate, (Code.CHECKSUM_MISMATCH,)),
    "empty": (lambda path: os.truncate(path, 0), (Code.CHECKSUM_MISMATCH,)),
    "flipped at the beginning": (lambda path: flip(path, 0), (Code.CHECKSUM_MISMATCH,)),
    "flipped in the middle": (lambda path: flip(path, path.stat().st_size // 2), (Code.CHECKSUM_MISMATCH,)),
    "flipped at the end": (lambda path: flip(path, -1), (Code.CHECKSUM_MISMATCH,)),
}


@pytest.mark.parametrize(("damage", "codes"), DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("which", ["contents", "documents", "root"])
def test_a_damaged_archive_is_not_restored(
    stage: PackStage, which: str, damage: Callable[[Path], None], codes: tuple[Code, ...]
) -> None:
    written = stage.archive(fill(stage.home()))
    found = {
        "contents": content_pack(stage, written),
        "documents": document_pack(stage, written),
        "root": stage.root(written.root.key),
    }
    assert len(set(found.values())) == 3
    damage(found[which])
    home = stage.home()
    with pytest.raises(Failed) as caught:
        stage.restore(written.root, home)
    assert caught.value.code in codes
    assert not cache_file(home).exists()
    if which != "contents":
        assert not list(home.iterdir()), "nothing is created before the entries are verified"


def test_a_restore_after_a_failed_one(stage: PackStage) -> None:
    home = fill(stage.home())
    written = stage.archive(home)
    pack = content_pack(stage, written)
    intact = pack.read_bytes()
    flip(pack, -1)
    again = stage.home()
    with pytest.raises(Failed):
        stage.restore(written.root, again)
    pack.write_bytes(intact)
    assert tree_root(stage.restore(written.root, again)) == tree_root(home)


# ── archive ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_truncated_pack_of_an_earlier_try_is_replaced(stage: PackStage) -> None:
    """The operation was killed after its packs, and the store has kept half of them."""
    home = fill(stage.home())
    first = stage.archive(home)
    stage.root(first.root.key).unlink()
    for pack in first.packs:
        truncate(stage.pack(pack.name))
    again = stage.archive(home, key=first.root.key)
    assert {pack.name for pack in again.packs} == {pack.name for pack in first.packs}
    assert tree_root(stage.restore(again.root)) == tree_root(home)


def test_an_intact_pack_of_an_earlier_try_is_kept(stage: PackStage) -> None:
    home = fill(stage.home())
    first = stage.archive(home)
    stage.root(first.root.key).unlink()
    before = {pack.name: stage.pack(pack.name).stat().st_mtime_ns for pack in first.packs}
    again = stage.archive(home, key=first.root.key)
    assert {pack.name: stage.pack(pack.name).stat().st_mtime_ns for pack in again.packs} == before


@pytest.mark.parametrize("damage", [Path.unlink, truncate, lambda path: flip(path, -1)], ids=["lost", "truncated", "flipped"])
def test_a_finished_archive_that_is_damaged_is_not_proven_again(stage: PackStage, damage: Callable[[Path], None]) -> None:
    home = fill(stage.home())
    first = stage.archive(home)
    damage(content_pack(stage, first))
    with pytest.raises(Failed) as caught:
        stage.archive(home, key=first.root.key)
    assert caught.value.code is Code.READBACK_MISMATCH


@pytest.mark.parametrize("damage", [truncate, lambda path: flip(path, -1)], ids=["truncated", "flipped"])
def test_a_damaged_root_is_never_written_again(stage: PackStage, damage: Callable[[Path], None]) -> None:
    home = fill(stage.home())
    first = stage.archive(home)
    damage(stage.root(first.root.key))
    damaged = stage.root(first.root.key).read_bytes()
    with pytest.raises(Failed) as caught:
        stage.archive(home, key=first.root.key)
    assert caught.value.code is Code.READBACK_MISMATCH
    assert stage.root(first.root.key).read_bytes() == damaged


BASE_DAMAGES: dict[str, Callable[[PackStage, WrittenArchive], None]] = {
    "contents are lost": lambda stage, first: content_pack(stage, first).unlink(),
    "contents are truncated": lambda stage, first: truncate(content_pack(stage, first)),
    "contents are flipped": lambda stage, first: flip(content_pack(stage, first), 5000),
    "documents are lost": lambda stage, first: document_pack(stage, first).unlink(),
    "documents are truncated": lambda stage, first: truncate(document_pack(stage, first)),
    "the tree is flipped": lambda stage, first: flip(
        document_pack(stage, first), first.root.sections[0].tree.frame.start + first.root.sections[0].tree.frame.stored // 2
    ),
    "the refs are flipped": lambda stage, first: flip(
        document_pack(stage, first), first.root.sections[0].refs.frame.start + first.root.sections[0].refs.frame.stored // 2
    ),
    "the root is lost": lambda stage, first: stage.root(first.root.key).unlink(),
    "the root is flipped": lambda stage, first: flip(stage.root(first.root.key), -1),
    "everything is lost": lambda stage, first: shutil.rmtree(stage.store / first.root.workspace_id),
}


@pytest.mark.parametrize("damage", BASE_DAMAGES.values(), ids=BASE_DAMAGES)
@pytest.mark.parametrize("is_changed", [False, True], ids=["unchanged", "changed"])
def test_a_base_with_damage_is_read_from_the_home(
    stage: PackStage, damage: Callable[[PackStage, WrittenArchive], None], is_changed: bool
) -> None:
    first = stage.archive(fill(stage.home()))
    home = stage.restore(first.root)
    if is_changed:
        (home / "folder" / "file 10").write_bytes(b"changed")
    damage(stage, first)
    second = stage.archive(home, base_of(first))
    assert set(second.lost) <= set(first.root.packs) - set(second.root.packs)
    assert tree_root(stage.restore(second.root)) == tree_root(home)


def test_a_pack_with_a_damaged_document_is_not_trusted_for_the_others(stage: PackStage) -> None:
    first = stage.archive(many_files(stage.home()))
    home = stage.restore(first.root)
    sections, pack = first.root.sections, document_pack(stage, first)
    assert len(sections) > 2
    for frame in (sections[0].tree.frame, sections[2].refs.frame):
        rot(pack, frame.start + frame.stored // 2)
    second = stage.archive(home, base_of(first))
    assert pack.name not in second.root.packs
    assert second.lost == (pack.name,)
    assert tree_root(stage.restore(second.root)) == tree_root(home)


def test_a_missing_pack_of_the_base_is_reported(stage: PackStage) -> None:
    first = stage.archive(fill(stage.home()))
    home = stage.restore(first.root)
    gone = content_pack(stage, first)
    gone.unlink()
    assert stage.archive(home, base_of(first)).lost == (gone.name,)


def test_packs_that_the_controller_calls_unusable_are_not_used(stage: PackStage) -> None:
    first = stage.archive(fill(stage.home()))
    home = stage.restore(first.root)
    lost = frozenset({content_pack(stage, first).name})
    second = stage.archive(home, base_of(first, unusable=lost))
    assert second.lost == (), "the controller knows it already"
    assert lost.isdisjoint(second.root.packs)
    for name in lost:
        stage.pack(name).unlink()
    assert tree_root(stage.restore(second.root)) == tree_root(home)


def test_packs_that_were_not_proven_lately_are_read_back(stage: PackStage) -> None:
    first = stage.archive(fill(stage.home()))
    home = stage.restore(first.root)
    trusting = stage.archive(home, base_of(first))
    assert not any(pack.is_read_back for pack in trusting.packs)
    again = stage.archive(home, base_of(first, is_trusted=False))
    assert all(pack.is_read_back for pack in again.packs)
    pack = content_pack(stage, first)
    pack.write_bytes(pack.read_bytes())  # another version of the same content
    os.utime(pack, ns=(0, 0))
    third = stage.archive(home, base_of(first))
    assert {one.name for one in third.packs if one.is_read_back} == {pack.name}


def test_a_base_with_another_manifest_root_is_not_used(stage: PackStage) -> None:
    first = stage.archive(fill(stage.home()))
    home = stage.restore(first.root)
    other = stage.archive(home, replace(base_of(first), manifest_root="0" * 64))
    assert set(other.root.packs).isdisjoint(first.root.packs)
    assert tree_root(stage.restore(other.root)) == tree_root(home)


def test_little_used_packs_are_given_up(stage: PackStage) -> None:
    """What is left of a pack is stored again when most of it is not needed any more."""
    home = stage.home()
    for number in range(10):
        (home / f"{number}").write_bytes(os.urandom(100_000))
    (home / "large").write_bytes(os.urandom(3_000_000))
    last = stage.archive(home)
    old = content_pack(stage, last).name
    home = stage.restore(last.root)
    (home / "large").write_bytes(os.urandom(3_000_000))
    for number in range(8):
        (home / f"{number}").unlink()
    for _ in range(2):
        last = stage.archive(home, base_of(last))
        home = stage.restore(last.root)
    assert old not in last.root.packs
    stage.pack(old).unlink()
    assert tree_root(stage.restore(last.root)) == tree_root(home)


# ── a home that changes ───────────────────────────────────────────────────────────────────────────────────────────────


class Once:
    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self.is_done = False

    def __call__(self, _count: int) -> None:
        if not self.is_done:
            self.is_done = True
            self._action()


def test_a_file_that_changes_once_is_read_again(stage: PackStage) -> None:
    """Contents that were read before the change must not be taken for those of the second pass."""
    home = stage.home()
    (home / "a").write_bytes(os.urandom(BLOCK_BYTES))
    for name in "bcd":
        (home / name).write_bytes(name.encode() * 1000)
    (home / "e").write_bytes(os.urandom(BLOCK_BYTES))
    # The first count comes when `a` is hashed: the next batch, with `b`, `c` and `d`, was walked but is not read yet.
    once = Once(lambda: (home / "d").write_bytes(b"changed"))
    written = stage.archive(home, hook=once)
    assert once.is_done
    assert tree_root(stage.restore(written.root)) == tree_root(home)


@pytest.mark.parametrize(
    "change",
    [
        lambda home: (home / "new").write_bytes(b"new"),
        lambda home: (home / "folder" / "file 03").unlink(),
        lambda home: (home / "folder").rename(home / "renamed"),
        lambda home: (home / "folder").chmod(0o711),
        lambda home: os.setxattr(home / "folder" / "file 05", "user.x", b"x"),
    ],
    ids=["created", "removed", "renamed", "mode", "attribute"],
)
def test_a_home_that_changes_once_is_read_again(stage: PackStage, change: Callable[[Path], object]) -> None:
    home = fill(stage.home())
    once = Once(lambda: change(home))
    written = stage.archive(home, hook=once)
    assert once.is_done
    assert tree_root(stage.restore(written.root)) == tree_root(home)


def test_a_home_that_always_changes_is_an_error_that_names_the_file(stage: PackStage) -> None:
    home = fill(stage.home())

    def write(_count: int) -> None:
        with (home / "folder" / "file 07").open("ab") as file:
            file.write(b"more")

    with pytest.raises(Failed, match="file 07") as caught:
        stage.archive(home, hook=write)
    assert caught.value.code is Code.HOME_CHANGED
    assert not list(stage.store.rglob("*.json.zst"))


# ── stat caches ───────────────────────────────────────────────────────────────────────────────────────────────────────


def restored(stage: PackStage) -> tuple[WrittenArchive, Path]:
    first = stage.archive(fill(stage.home()))
    return first, stage.restore(first.root)


def is_used(first: WrittenArchive, home: Path) -> bool:
    records = stat_cache.read_cache(home, first.root.key, first.root.manifest_root, first.root.entries)
    return records is not None


def test_a_cache_is_used(stage: PackStage) -> None:
    first, home = restored(stage)
    assert is_used(first, home)
    # Progress is counted once for each entry that is taken over, and twice for each content that is read.
    taken_over: list[int] = []
    stage.archive(home, base_of(first), hook=taken_over.append)
    cache_file(home).unlink()
    read: list[int] = []
    second = stage.archive(home, base_of(first), hook=read.append)
    assert second.root.manifest_root == first.root.manifest_root
    assert sum(read) == sum(taken_over) == 2 * first.root.home_bytes
    assert len(taken_over) < len(read)


def rewritten(cache: Path, **fields: object) -> None:
    """With another head and a right checksum."""
    head, _, data = cache.read_bytes()[:-CHECKSUM_BYTES].partition(b"\n")
    body = json.dumps({**json.loads(head), **fields}, sort_keys=True).encode() + b"\n" + data
    cache.write_bytes(body + hashlib.sha256(body).digest())


def become_directory(cache: Path) -> None:
    cache.unlink()
    cache.mkdir()


def become_fifo(cache: Path) -> None:
    cache.unlink()
    os.mkfifo(cache)


def become_link(cache: Path, target: Path | None = None) -> None:
    """By default to the cache itself, under another name."""
    elsewhere = cache.rename(cache.with_name("elsewhere"))
    cache.symlink_to(target or elsewhere)


CACHES: dict[str, Callable[[Path], None]] = {
    "lost": Path.unlink,
    "empty": lambda cache: os.truncate(cache, 0),
    "truncated": truncate,
    "flipped": lambda cache: flip(cache, cache.stat().st_size // 2),
    "flipped in the checksum": lambda cache: flip(cache, -1),
    "of another archive": lambda cache: rewritten(
        cache, key="0d1f8a3c-0000-4000-8000-000000000001/a0000000-0000-4000-8000-000000000009"
    ),
    "of another root": lambda cache: rewritten(cache, root="0" * 64),
    "of another format": lambda cache: rewritten(cache, format=99),
    "of another device": lambda cache: rewritten(cache, device=1),
    "of another home": lambda cache: rewritten(cache, inode=1),
    "of another file system": lambda cache: rewritten(cache, file_system=1),
    "with another count": lambda cache: rewritten(cache, count=1),
    "from the future": lambda cache: rewritten(cache, at_ns=time.time_ns() + 3_600_000_000_000),
    "older than its entries": lambda cache: rewritten(cache, at_ns=1),
    "without a time": lambda cache: rewritten(cache, at_ns=None),
    "with one more field": lambda cache: rewritten(cache, more=1),
    "a directory": become_directory,
    "a FIFO": become_fifo,
    "a link": become_link,
    "without end": lambda cache: become_link(cache, Path("/dev/zero")),
    "too long": lambda cache: rewritten(cache, more=" " * 5000),
}


@pytest.mark.parametrize("damage", CACHES.values(), ids=CACHES)
def test_a_cache_that_is_not_used(stage: PackStage, damage: Callable[[Path], None]) -> None:
    first, home = restored(stage)
    damage(cache_file(home))
    assert not is_used(first, home)
    (home / "folder" / "file 05").write_bytes(b"changed")
    second = stage.archive(home, base_of(first))
    assert second.root.manifest_root == stage.archive(home).root.manifest_root
    assert tree_root(stage.restore(second.root)) == tree_root(home)


def test_a_rewritten_cache_is_used(stage: PackStage) -> None:
    """Otherwise the test above could pass because of its own rewriting."""
    first, home = restored(stage)
    rewritten(cache_file(home))
    assert is_used(first, home)


def test_a_cache_on_another_kind_of_file_system(stage: PackStage, monkeypatch: pytest.MonkeyPatch) -> None:
    first, home = restored(stage)
    monkeypatch.setattr(stat_cache, "FILE_SYSTEMS", frozenset())
    assert not is_used(first, home)
    other = stage.restore(first.root)
    assert not cache_file(other).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_cache_on_a_mount_with_a_strange_name(stage: PackStage) -> None:
    home = stage.home()
    mount = Path(os.fsdecode(os.fsencode(home.parent) + b" \xc3\xbc\xff\\\n"))
    mount.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", mount], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        inside = mount / "home"
        inside.mkdir()
        first = stage.archive(fill(home))
        assert is_used(first, stage.restore(first.root, inside))
    finally:
        # Lazily: the restorer in this process keeps directories open, as a job does until it ends.
        subprocess.run(["umount", "--lazy", mount], check=True)


def test_a_clock_that_was_set_back(stage: PackStage, monkeypatch: pytest.MonkeyPatch) -> None:
    first, home = restored(stage)
    began_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: began_ns - 3_600_000_000_000)
    assert not is_used(first, home)


def test_a_cache_of_an_earlier_boot(stage: PackStage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After a power cut, a file can have new bytes and old times."""
    first, home = restored(stage)
    (tmp_path / "boot_id").write_text("another")
    monkeypatch.setattr(stat_cache, "BOOT_ID", tmp_path / "boot_id")
    assert not is_used(first, home)


def test_a_copy_of_a_home_and_its_cache(stage: PackStage) -> None:
    """A volume that was copied has other inodes: nothing is taken over unread."""
    first, home = restored(stage)
    copy = stage.home()
    shutil.copytree(home, copy, dirs_exist_ok=True, symlinks=True)
    shutil.copy(cache_file(home), cache_file(copy))
    assert not is_used(first, copy)
    (copy / "folder" / "file 05").write_bytes(os.urandom(2000))
    second = stage.archive(copy, base_of(first))
    assert tree_root(stage.restore(second.root)) == tree_root(copy)


def test_the_cache_of_the_archive_before(stage: PackStage) -> None:
    """After a second archive of the same home its cache belongs to the first, and must not be used with the second."""
    first, home = restored(stage)
    (home / "folder" / "file 05").write_bytes(b"changed")
    second = stage.archive(home, base_of(first))
    assert not is_used(second, home)
    third = stage.archive(home, base_of(second))
    assert third.root.manifest_root == second.root.manifest_root
    assert third.new_bytes < 5000


def test_a_moved_file_with_its_old_times(stage: PackStage) -> None:
    """`mv` keeps inode and mtime; a file that takes the place of another must be read."""
    first, home = restored(stage)
    old, new = home / "folder" / "file 05", home / "folder" / "file 06"
    seen = old.stat()
    new.rename(old)
    os.utime(old, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    second = stage.archive(home, base_of(first))
    assert tree_root(stage.restore(second.root)) == tree_root(home)


def test_a_renamed_directory_with_the_first_name_of_a_hard_link(stage: PackStage) -> None:
    """The entry that had the attributes is now a hard link to the other one (a failure of the first prototype)."""
    home = stage.home()
    for folder in ("a", "b"):
        (home / folder).mkdir()
    (home / "a" / "file").write_bytes(b"content")
    os.setxattr(home / "a" / "file", "user.kept", b"value")
    (home / "b" / "file").hardlink_to(home / "a" / "file")
    first = stage.archive(home)
    again = stage.restore(first.root)
    (again / "a").rename(again / "c")
    second = stage.archive(again, base_of(first))
    third = stage.restore(second.root)
    assert os.getxattr(third / "b" / "file", "user.kept") == b"value"
    assert tree_root(third) == tree_root(again)


# ── copies ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_damaged_pack_of_an_earlier_copy_is_replaced(stage: PackStage) -> None:
    first = stage.archive(fill(stage.home()))
    target = ArchiveKey(OTHER, stage.key().op_id)
    for pack in first.packs:
        left = stage.store / pack_path(target.workspace_id, pack.name)
        left.parent.mkdir(parents=True, exist_ok=True)
        left.write_bytes(bytes(pack.size_bytes))
    counted: list[int] = []
    copied = copy_packed(stage.place, first.root.key, target, counted.append)
    assert copied is not None
    assert copied.root.manifest_root == first.root.manifest_root
    assert len(counted) > len(first.packs), "copies and proofs are counted one by one"


@pytest.mark.parametrize("damage", [lambda path: flip(path, 5), truncate, Path.unlink], ids=["changed", "truncated", "missing"])
@pytest.mark.parametrize("part_of", [content_pack, document_pack])
def test_a_copy_of_a_damaged_archive_names_the_damaged_object_of_the_source(
    stage: PackStage, part_of: Callable[[PackStage, WrittenArchive], Path], damage: Callable[[Path], None]
) -> None:
    first = stage.archive(fill(stage.home()))
    damaged = part_of(stage, first)
    damage(damaged)
    for op_id in (stage.key().op_id, stage.key().op_id):  # what an earlier try left changes nothing
        with pytest.raises(Failed) as failed:
            copy_packed(stage.place, first.root.key, ArchiveKey(OTHER, op_id), lambda _count: None)
        assert failed.value.code in (Code.CHECKSUM_MISMATCH, Code.ARCHIVE_NOT_FOUND)
        assert failed.value.context["object"] == f"{stage.workspace_id}/packs/{damaged.name}"


@pytest.mark.parametrize("damage", [lambda path: flip(path, 50), truncate], ids=["changed", "truncated"])
def test_a_damaged_root_of_an_earlier_copy_is_not_an_error_of_the_source(
    stage: PackStage, damage: Callable[[Path], None]
) -> None:
    """The code lets the controller try again with a new op_id, so the copy gets another root."""
    first = stage.archive(fill(stage.home()))
    target = ArchiveKey(OTHER, stage.key().op_id)
    assert copy_packed(stage.place, first.root.key, target, lambda _count: None) is not None
    damage(stage.root(target))
    with pytest.raises(Failed) as failed:
        copy_packed(stage.place, first.root.key, target, lambda _count: None)
    assert failed.value.code is Code.READBACK_MISMATCH
    assert str(target) in failed.value.message


def test_a_damaged_pack_of_an_earlier_copy_is_not_an_error_of_the_source(stage: PackStage) -> None:
    first = stage.archive(fill(stage.home()))
    target = ArchiveKey(OTHER, stage.key().op_id)
    assert copy_packed(stage.place, first.root.key, target, lambda _count: None) is not None
    flip(stage.store / pack_path(OTHER, first.packs[0].name), 5)
    with pytest.raises(Failed) as failed:
        copy_packed(stage.place, first.root.key, target, lambda _count: None)
    assert failed.value.code is Code.READBACK_MISMATCH
    again = copy_packed(stage.place, first.root.key, ArchiveKey(OTHER, stage.key().op_id), lambda _count: None)
    assert again is not None
    assert again.root.manifest_root == first.root.manifest_root


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_do_not_wait_without_end_behind_a_changed_file(stage: PackStage, monkeypatch: pytest.MonkeyPatch) -> None:
    home = stage.home()
    for number in range(300):
        (home / f"{number:03}").write_text(str(number))
    first = stage.archive(home)
    again = stage.restore(first.root)
    (again / "000").write_text("changed")
    monkeypatch.setattr(home_pass, "MOST_QUEUED", 20)
    longest = 0
    drain = home_pass.HomePass._drain

    def watched(one: home_pass.HomePass) -> None:
        nonlocal longest
        longest = max(longest, len(one._queue))
        drain(one)

    monkeypatch.setattr(home_pass.HomePass, "_drain", watched)
    second = stage.archive(again, base_of(first))
    assert longest == 20
    assert tree_root(stage.restore(second.root)) == tree_root(again)
