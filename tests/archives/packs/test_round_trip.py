"""Every kind of entry survives an archive of format 2 and a restore, also from one archive to the next."""

import os
import stat
import struct
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.archives.nasty import make_nasty
from tests.archives.packs.stage import PackStage, base_of
from tests.support.archive_jobs import HOME, KEY, OTHER, ArchiveWorld, run
from torpor.archives.packs.hashes import BLOCK_BYTES
from torpor.archives.packs.write import ArchiveRequest, write_empty
from torpor.archives.reading import open_archive, skipped_below
from torpor.archives.tree import tree_root
from torpor.domain.errors import Code, Failed
from torpor.ports import ArchiveBase

IS_ROOT = os.geteuid() == 0


def make_own(home: Path) -> Path:
    """A nasty home in which all entries belong to its owner: foreign owners are not restored."""
    make_nasty(home)
    if IS_ROOT:
        os.removexattr(home / "links" / "dangling", "trusted.on.a.link", follow_symlinks=False)
        for name in ("big", "links/loop"):
            os.chown(home / name, 0, 0, follow_symlinks=False)
    return home


def test_a_nasty_home(stage: PackStage) -> None:
    home = make_own(stage.home())
    first = stage.archive(home)
    assert [(one.path, one.kind) for one in first.root.skipped] == [("socket", "socket")]
    again = stage.restore(first.root)
    assert tree_root(again) == tree_root(home)
    assert again.stat().st_mtime_ns == home.stat().st_mtime_ns
    assert not (again / "socket").exists()
    assert (again / "sparse").stat().st_blocks * 512 < 1_000_000
    assert (again / "zz hard").stat().st_ino == (again / "plain").stat().st_ino == (again / "links" / "hard").stat().st_ino


def test_hundred_unchanged_cycles(stage: PackStage) -> None:
    home = make_own(stage.home())
    for large in ("big", "sparse"):
        (home / large).unlink()
    root = tree_root(home)
    first = last = stage.archive(home)
    for _ in range(100):
        home = stage.restore(last.root)
        last = stage.archive(home, base_of(last))
        assert last.root.manifest_root == first.root.manifest_root
        assert {pack.name for pack in last.packs} == {pack.name for pack in first.packs}, "no pack is written"
    assert tree_root(stage.restore(last.root)) == root


def test_an_empty_home(stage: PackStage) -> None:
    home = stage.home()
    home.chmod(0o700)
    empty = write_empty(stage.place, ArchiveRequest(stage.key(), 3, 7), mode=0o700)
    assert stage.archive(home).root.manifest_root == empty.root.manifest_root
    assert tree_root(stage.restore(empty.root)) == tree_root(home)


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 1])
def test_sizes_around_a_block(stage: PackStage, size: int) -> None:
    home = stage.home()
    pattern = bytes(range(1, 250))
    (home / "file").write_bytes((pattern * (size // len(pattern) + 1))[:size])
    first = stage.archive(home)
    again = stage.restore(first.root)
    assert tree_root(again) == tree_root(home)
    with (again / "file").open("ab") as file:
        file.write(b"more")
    second = stage.archive(again, base_of(first))
    assert second.root.manifest_root == stage.archive(again).root.manifest_root
    assert tree_root(stage.restore(second.root)) == tree_root(again)


def test_one_changed_block_of_a_large_file_is_stored(stage: PackStage) -> None:
    home = stage.home()
    (home / "file").write_bytes(os.urandom(3 * BLOCK_BYTES + 100))
    first = stage.archive(home)
    again = stage.restore(first.root)
    with (again / "file").open("r+b") as file:
        file.seek(BLOCK_BYTES + 7)
        file.write(b"in place")
    second = stage.archive(again, base_of(first))
    assert BLOCK_BYTES < second.new_bytes < BLOCK_BYTES + 100_000
    assert tree_root(stage.restore(second.root)) == tree_root(again)


def test_holes_are_not_stored_and_come_back(stage: PackStage) -> None:
    home = stage.home()
    with (home / "sparse").open("wb") as file:
        file.truncate(40 << 30)
        file.seek(5 * BLOCK_BYTES + 3)
        file.write(b"island")
    with (home / "zeros").open("wb") as file:
        file.write(bytes(2 * BLOCK_BYTES))
    first = stage.archive(home)
    assert first.size_bytes < 2_000_000
    again = stage.restore(first.root)
    shown = (again / "sparse").stat()
    assert (shown.st_size, shown.st_blocks * 512 <= BLOCK_BYTES) == (40 << 30, True)
    with (again / "sparse").open("rb") as file:
        file.seek(5 * BLOCK_BYTES)
        assert file.read(12) == bytes(3) + b"island" + bytes(3)
    assert (again / "zeros").read_bytes() == bytes(2 * BLOCK_BYTES)
    assert stage.archive(again, base_of(first)).root.manifest_root == first.root.manifest_root


def test_more_holes_than_an_archive_can_have_are_refused(stage: PackStage) -> None:
    home = stage.home()
    with (home / "sparse").open("wb") as file:
        file.truncate(1 << 50)
    with pytest.raises(Failed) as caught:
        stage.archive(home)
    assert caught.value.code is Code.HOME_TOO_LARGE
    assert "'sparse'" in caught.value.message


def test_a_large_file_is_restored_in_parts(stage: PackStage) -> None:
    """A long part would report no progress."""
    home = stage.home()
    size = 35 * BLOCK_BYTES + 17
    (home / "large").write_bytes(os.urandom(1000) * (size // 1000) + bytes(size % 1000))
    (home / "large").chmod(0o400)
    first = stage.archive(home)
    heard: list[int] = []
    again = stage.restore(first.root, hook=heard.append)
    assert [count for count in heard if count] == [16 * BLOCK_BYTES, 16 * BLOCK_BYTES, 3 * BLOCK_BYTES + 17]
    assert tree_root(again) == tree_root(home)


def test_paths_longer_than_path_max(stage: PackStage) -> None:
    home = stage.home()
    fd = os.open(home, os.O_RDONLY)
    for level in range(25):
        name = f"{level:02}{'d' * 200}"
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    file = os.open("file", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=fd)
    os.write(file, b"deep")
    os.close(file)
    os.link("file", "link", src_dir_fd=fd, dst_dir_fd=fd)
    os.symlink("nowhere", "symlink", dir_fd=fd)
    os.close(fd)
    first = stage.archive(home)
    again = stage.restore(first.root)
    assert tree_root(again) == tree_root(home)
    assert stage.archive(again, base_of(first)).root.manifest_root == first.root.manifest_root


def test_equal_contents_are_stored_once(stage: PackStage) -> None:
    home = stage.home()
    noise = os.urandom(100_000)
    (home / "a").write_bytes(noise)
    first = stage.archive(home)
    again = stage.restore(first.root)
    (again / "folder").mkdir()
    (again / "a").rename(again / "folder" / "b")
    (again / "c").write_bytes(noise)
    second = stage.archive(again, base_of(first))
    assert second.new_bytes < 10_000
    assert tree_root(stage.restore(second.root)) == tree_root(again)


def test_a_file_that_got_the_content_of_another_beside_a_new_file(stage: PackStage) -> None:
    """The new path makes all contents of the base known, while one of them is being stored again."""
    home = stage.home()
    for name in "ab":
        (home / name).write_bytes(name.encode() * 1000)
    first = stage.archive(home)
    again = stage.restore(first.root)
    (again / "b").write_bytes((again / "a").read_bytes())
    (again / "c").write_bytes(b"new")
    second = stage.archive(again, base_of(first))
    assert tree_root(stage.restore(second.root)) == tree_root(again)


def acl(*entries: tuple[int, int, int]) -> bytes:
    """An access control list as the kernel has it: version 2, then tag, permissions and id of each entry."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NO_ID = 0xFFFFFFFF
ACCESS = acl((1, 7, NO_ID), (2, 5, 12345), (4, 5, NO_ID), (0x10, 5, NO_ID), (0x20, 0, NO_ID))
DEFAULT = acl((1, 7, NO_ID), (4, 5, NO_ID), (8, 6, 54321), (0x10, 7, NO_ID), (0x20, 0, NO_ID))
CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
"""CAP_NET_BIND_SERVICE, permitted and effective."""


@pytest.mark.skipif(not IS_ROOT, reason="only root can set capabilities")
def test_access_lists_capabilities_and_special_modes(world: ArchiveWorld) -> None:
    """With the real job, from archive to archive."""
    homes = [world.home(name) for name in ("home", "again", "third")]
    home = homes[0]
    (home / "folder").mkdir()
    (home / "folder" / "server").write_bytes(b"program")
    (home / "folder" / "server").chmod(0o4751)
    os.setxattr(home / "folder" / "server", "security.capability", CAPABILITY)
    (home / "empty").touch()
    (home / "read only").write_bytes(b"x")
    (home / "read only").chmod(0o440)
    try:
        for name in ("folder", "empty", "read only"):
            os.setxattr(home / name, "system.posix_acl_access", ACCESS)
        os.setxattr(home / "folder", "system.posix_acl_default", DEFAULT)
    except OSError:
        pytest.skip("this file system has no access control lists")
    (home / "folder").chmod(0o3770)
    os.link(home / "folder" / "server", home / "server")
    first = world.archives.proven(KEY, HOME, 7, run(world.archives.pack_job(KEY, HOME, 7, format=2), home).result)
    run(world.archives.unpack_job(KEY, first.archive.manifest_root), homes[1]).result  # noqa: B018
    trusted = {pack.name: pack.store_version for pack in first.packs}
    base = ArchiveBase(KEY, first.archive.manifest_root, trusted, frozenset())
    job = world.archives.pack_job(OTHER, HOME, 7, format=2, base=base)
    second = world.archives.proven(OTHER, HOME, 7, run(job, homes[1]).result)
    assert second.archive.manifest_root == first.archive.manifest_root
    run(world.archives.unpack_job(OTHER, second.archive.manifest_root), homes[2]).result  # noqa: B018
    for again in homes[1:]:
        assert tree_root(again) == tree_root(home)
        assert os.getxattr(again / "folder" / "server", "security.capability") == CAPABILITY
        assert os.getxattr(again / "folder", "system.posix_acl_default") == DEFAULT
        for name in ("folder", "empty", "read only"):
            listed = os.getxattr(again / name, "system.posix_acl_access")
            assert listed == os.getxattr(home / name, "system.posix_acl_access"), name
        assert (again / "folder").stat().st_mode & 0o7777 == 0o3770
        assert (again / "server").stat().st_mode & 0o7777 == 0o4751
        assert (again / "server").samefile(again / "folder" / "server")


@pytest.mark.skipif(not IS_ROOT, reason="only root can create devices")
def test_sockets_and_devices_are_left_out_and_named(stage: PackStage) -> None:
    home = stage.home()
    (home / "folder").mkdir()
    for name, kind in (("folder/null", stat.S_IFCHR), ("folder/disk", stat.S_IFBLK), ("socket", stat.S_IFSOCK)):
        try:
            os.mknod(home / name, kind | 0o600, os.makedev(1, 3))
        except OSError:
            pytest.skip("devices cannot be created here")
    first = stage.archive(home)
    assert (first.root.entries, first.root.skipped_count) == (2, 3)
    archive = open_archive(stage.place, first.root.key)
    assert [(one.path, one.kind) for one in skipped_below(archive.skipped, ".")] == [("socket", "socket")]
    assert [(one.path, one.kind) for one in skipped_below(archive.skipped, "/folder/")] == [
        ("folder/disk", "block device"),
        ("folder/null", "character device"),
    ]


@pytest.mark.skipif(not IS_ROOT, reason="only root can give files to others")
def test_foreign_owners_become_the_homes(stage: PackStage) -> None:
    home = stage.home()
    for name, mode in (("own", 0o6755), ("foreign", 0o6755), ("folder", 0)):
        if name == "folder":
            (home / name).mkdir()
            os.chown(home / name, 12345, 12345)
            (home / name).chmod(0o2777)
        else:
            (home / name).write_bytes(b"x")
            os.chown(home / name, *((12345, 12345) if name == "foreign" else (0, 0)))
            (home / name).chmod(mode)
    os.setxattr(home / "own", "trusted.secret", b"x")
    os.setxattr(home / "foreign", "user.kept", b"x")
    again = stage.home()
    os.chown(again, 4321, 4321)
    first = stage.archive(home)
    stage.restore(first.root, again)
    for name, mode in (("own", 0o6755), ("foreign", 0o755), ("folder", 0o777)):
        seen = (again / name).stat()
        assert (seen.st_uid, seen.st_gid, seen.st_mode & 0o7777) == (4321, 4321, mode), name
    assert os.listxattr(again / "own") == []
    assert os.getxattr(again / "foreign", "user.kept") == b"x"
    # What was not restored as it was is read again, not taken over.
    second = stage.archive(again, base_of(first))
    assert second.root.manifest_root == stage.archive(again).root.manifest_root != first.root.manifest_root


@pytest.mark.skipif(not IS_ROOT, reason="only root can give files to others")
def test_a_home_that_gets_another_owner_after_it_was_restored(stage: PackStage) -> None:
    home = stage.home()
    (home / "file").write_bytes(b"x")
    first = stage.archive(home)
    again = stage.restore(first.root)
    os.chown(again, 4321, 4321)
    second = stage.archive(again, base_of(first))
    assert second.root.manifest_root == stage.archive(again).root.manifest_root, "the file now has a foreign owner"


def test_many_entries_and_few_changes_rewrite_few_sections(stage: PackStage) -> None:
    home = stage.home()
    for folder in range(10):
        (home / f"{folder:02}").mkdir()
        for number in range(250):
            (home / f"{folder:02}" / f"{number:03}").write_bytes(b"%d" % number if number < 110 else b"")
    first = stage.archive(home)
    assert len(first.root.sections) >= 3
    again = stage.restore(first.root)
    (again / "07" / "100").write_bytes(b"changed")
    (again / "07" / "101").unlink()
    (again / "07" / "101 new").write_bytes(b"new")
    second = stage.archive(again, base_of(first))
    kept = [section for section in second.root.sections if section in first.root.sections]
    assert len(second.root.sections) - len(kept) <= 2
    assert second.root.manifest_root == stage.archive(again).root.manifest_root
    assert tree_root(stage.restore(second.root)) == tree_root(again)


def test_the_same_operation_again_proves_and_writes_nothing(stage: PackStage) -> None:
    home = stage.home()
    (home / "file").write_bytes(b"x" * 1000)
    first = stage.archive(home)
    before = {path: path.stat().st_mtime_ns for path in stage.store.rglob("*")}
    (home / "file").write_bytes(b"changed")
    again = stage.archive(home, key=first.root.key)
    assert again.root.serialise() == first.root.serialise()
    assert all(pack.is_read_back for pack in again.packs)
    assert {path: path.stat().st_mtime_ns for path in stage.store.rglob("*")} == before


@pytest.mark.parametrize("year", [1902, 1969, 2262, 2263, 2300, 2445])
def test_times_of_all_centuries(stage: PackStage, year: int) -> None:
    """ext4 has times until 2446; nanoseconds since 1970 have more than 63 bits from 2262 on."""
    home = stage.home()
    (home / "folder").mkdir()
    (home / "folder" / "file").write_bytes(b"x")
    (home / "link").symlink_to("x")
    time_ns = int((datetime(year, 6, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 10**9 + 7
    for path in ("folder/file", "folder", "link", "."):
        os.utime(home / path, ns=(time_ns, time_ns), follow_symlinks=False)
    if (home / "link").lstat().st_mtime_ns != time_ns:
        pytest.skip("this file system does not have such times")
    first = stage.archive(home)
    again = stage.restore(first.root)
    assert tree_root(again) == tree_root(home)
    assert stage.archive(again, base_of(first)).root.manifest_root == first.root.manifest_root
