"""A home is the same after archive and restore."""

import io
import os
import random
import shutil
import stat
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.archives.nasty import NOT_UTF8, make_nasty
from tests.support.archive_jobs import (
    DATA,
    HOME,
    KEY,
    MANIFEST,
    OTHER,
    ArchiveWorld,
    Meter,
    as_nobody,
    roomy,
    run,
    run_as_nobody,
)
from torpor.archives import tree
from torpor.archives.archives import HomeArchives
from torpor.archives.frames import decompressed
from torpor.archives.manifest import MOST_HEAD_BYTES, Manifest, ManifestHead, fetch
from torpor.archives.pack import PackRequest, pack
from torpor.archives.store import ArchiveStore, StoreAddress
from torpor.archives.tree import tree_root
from torpor.archives.unpack import find, unpack
from torpor.domain.errors import Code, Failed

IS_ROOT = os.geteuid() == 0


def manifest_of(world: ArchiveWorld) -> Manifest:
    manifest = fetch(ArchiveStore(StoreAddress.parse(f"file://{world.store}")), KEY)
    assert manifest is not None
    return manifest


def test_a_difficult_home_survives_repeated_round_trips(world: ArchiveWorld) -> None:
    home = make_nasty(world.home())
    root = tree_root(home)
    packed = world.pack(home).result
    assert packed["manifest_root"] == root
    assert packed["skipped"] == 1  # the socket
    assert tree_root(home) == root, "reading a home leaves it as it was"
    again = world.home("again")
    assert world.unpack(again).result["manifest_root"] == root
    assert tree_root(again) == root
    assert world.pack(again, OTHER).result == {**packed, "skipped": 0}
    assert (again / "sparse").stat().st_blocks * 512 < 1_000_000, "holes stay holes"
    assert (again / "plain").stat().st_nlink == 3
    assert not (again / "socket").exists()


def test_the_manifest_root_changes_with_every_kind_of_change(tmp_path: Path) -> None:
    def changed(change: str) -> str:
        home = tmp_path / change
        home.mkdir()
        (home / "file").write_bytes(b"content")
        (home / "dir").mkdir()
        (home / "link").symlink_to("file")
        (home / "twin").hardlink_to(home / "file")
        match change:
            case "content":
                (home / "file").write_bytes(b"CONTENT")
            case "mode":
                (home / "file").chmod(0o600)
            case "home mode":
                home.chmod(0o700)
            case "link":
                (home / "link").unlink()
                (home / "link").symlink_to("File")
            case "hard link":
                (home / "twin").unlink()
                shutil.copy2(home / "file", home / "twin")
            case "xattr":
                os.setxattr(home / "file", "user.x", b"1")
            case "new":
                (home / "new").touch()
                os.utime(home / "new", ns=(1, 1))
        for name in ("file", "dir", "link", "twin"):
            os.utime(home / name, ns=(1, 1), follow_symlinks=False)
        if change == "time":
            os.utime(home / "dir", ns=(1, 2))
        if change == "owner" and IS_ROOT:
            os.chown(home / "dir", 4711, -1)
        return tree_root(home)

    changes = ["none", "content", "mode", "home mode", "link", "hard link", "xattr", "new", "time"] + ["owner"] * IS_ROOT
    roots = {change: changed(change) for change in changes}
    assert len(set(roots.values())) == len(roots)
    assert changed("none again") == roots["none"]


def test_an_empty_home(world: ArchiveWorld) -> None:
    home = world.home()
    packed = world.pack(home).result
    assert (packed["files"], packed["home_bytes"]) == (0, 0)
    again = world.home("again")
    world.unpack(again).result  # noqa: B018
    assert tree_root(again) == tree_root(home) == packed["manifest_root"]


def test_ten_thousand_files(world: ArchiveWorld) -> None:
    home = world.home()
    dice = random.Random(1)
    for directory in range(100):
        (home / f"d{directory}").mkdir()
        for number in range(100):
            (home / f"d{directory}" / f"f{number}").write_bytes(dice.randbytes(dice.randrange(3000)))
    packed = world.pack(home).result
    assert packed["files"] == 10_000
    again = world.home("again")
    assert world.unpack(again).result["files"] == 10_000
    assert tree_root(again) == packed["manifest_root"]


def test_a_tree_deeper_than_any_path(world: ArchiveWorld) -> None:
    """Deeper than PATH_MAX and Python's stack allow; leftovers of the same depth are removed."""
    home = world.home()
    depth = 1200
    fd = os.open(home, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("directory", dir_fd=fd)
        deeper = os.open("directory", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    try:
        root = world.pack(home).result["manifest_root"]
        again = world.home("again")
        for _ in range(2):
            assert world.unpack(again).result["manifest_root"] == root
    finally:
        for path in (home, world.home("again")):
            subprocess.run(["rm", "-rf", str(path)], check=True)


def test_files_of_an_earlier_attempt_are_removed(world: ArchiveWorld) -> None:
    home = world.home()
    (home / "a").write_bytes(b"a")
    root = world.pack(home).result["manifest_root"]
    again = make_nasty(world.home("again"))
    world.unpack(again).result  # noqa: B018
    assert tree_root(again) == root


def test_memory_stays_flat(world: ArchiveWorld) -> None:
    home = world.home()
    with (home / "huge").open("wb") as huge:
        huge.truncate(1 << 28)
    (home / "noise").write_bytes(os.urandom(100 << 20))
    watch = (
        "import re, runpy, sys; sys.argv[0] = 'job';\n"
        "try: runpy.run_module('torpor.archives.job', run_name='__main__')\n"
        # Not ru_maxrss, which starts with the value of the parent process.
        "finally: print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1], file=sys.stderr)"
    )
    again = world.home("again")
    for job, where in ((world.archives.pack_job(KEY, HOME, 7), home), (world.archives.unpack_job(KEY), again)):
        ended = subprocess.run([sys.executable, "-c", watch, where], input=job.stdin, capture_output=True, check=True)
        assert int(ended.stderr) < 240 << 10, f"{job.writes=}"
    assert (again / "huge").stat().st_blocks * 512 < 1 << 20
    assert (again / "noise").read_bytes() == (home / "noise").read_bytes()


def test_the_same_home_gives_the_same_bytes(world: ArchiveWorld) -> None:
    """So a late writer of the same archive does not change it."""
    home = make_nasty(world.home())
    world.pack(home).result  # noqa: B018
    before = {name: world.object(name).read_bytes() for name in (DATA, MANIFEST)}
    shutil.rmtree(world.store / HOME.workspace_id)
    world.pack(home).result  # noqa: B018
    assert before == {name: world.object(name).read_bytes() for name in (DATA, MANIFEST)}


# ── readable by GNU tar ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(not IS_ROOT, reason="tar restores owners and trusted attributes as root only")
def test_plain_tar_can_restore_it(world: ArchiveWorld) -> None:
    home = make_nasty(world.home())
    world.pack(home).result  # noqa: B018
    again = world.home("again")
    bare = b"".join(decompressed([world.object(DATA).read_bytes()]))
    command = ["tar", "--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpf", "-", "-C", str(again)]
    ended = subprocess.run(
        command, input=bare, capture_output=True, check=True, env={"PATH": os.environ["PATH"], "LC_ALL": "C"}
    )
    # GNU tar makes a second inode for a hard link to a symlink's twin in some versions; all other entries must be exact.
    assert b"Exiting with failure" not in ended.stderr
    assert tree_root(again) == tree_root(home)
    if shutil.which("zstd"):
        subprocess.run(["tar", "--zstd", "-tf", str(world.object(DATA))], check=True, capture_output=True)


def test_python_reads_the_same_tar(world: ArchiveWorld) -> None:
    home = make_nasty(world.home())
    world.pack(home).result  # noqa: B018
    bare = b"".join(decompressed([world.object(DATA).read_bytes()]))
    with tarfile.open(fileobj=io.BytesIO(bare), encoding="utf-8", errors="surrogateescape") as tar:
        members = {member.name: member for member in tar}
    manifest = manifest_of(world)
    entries = {entry.path: entry for entry in manifest.entries()}
    assert members.keys() == entries.keys()
    assert NOT_UTF8 in members
    for path, member in members.items():
        entry = entries[path]
        assert member.mode == entry.mode
        assert member.uid == (manifest.head.home.uid if entry.uid == "home" else entry.uid)
        assert member.gid == (manifest.head.home.gid if entry.gid == "home" else entry.gid)
        assert member.linkname == entry.target
        assert member.size == entry.size
        assert {name for name in member.pax_headers if name.startswith("SCHILY")} == {
            "SCHILY.xattr." + name.replace("%", "%25").replace("=", "%3D") for name in entry.xattrs
        }


# ── other users ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_a_home_restored_for_another_user_has_the_same_root(world: ArchiveWorld) -> None:
    home = world.home()
    (home / "mine").write_bytes(b"x")
    (home / "roots").write_bytes(b"x")
    os.chown(home, 4001, 4001)
    os.chown(home / "mine", 4001, 4001)
    root = world.pack(home).result["manifest_root"]
    again = world.home("again")
    os.chown(again, 4002, 4003)
    assert world.unpack(again).result["manifest_root"] == root == tree_root(again)
    assert ((again / "mine").stat().st_uid, (again / "mine").stat().st_gid) == (4002, 4003)
    assert (again / "roots").stat().st_uid == 0


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_not_root(reachable_for_all: ArchiveWorld) -> None:
    """A user without rights on files of others, with unreadable files and directories of its own."""
    world = reachable_for_all
    home, again = world.home(), world.home("again")
    for path in (home, again, world.path):
        os.chown(path, 65534, 65534)
    as_nobody(f"make_nasty(Path({str(home)!r}))")
    root = tree_root(home)
    assert run_as_nobody(world.archives.pack_job(KEY, HOME, 7), home).result["manifest_root"] == root
    assert tree_root(home) == root, "what was lent was given back"
    for _ in range(2):
        assert run_as_nobody(world.archives.unpack_job(KEY), again).result["manifest_root"] == root
    assert tree_root(again) == root
    assert (again / "secret").stat().st_uid == 65534
    assert stat.S_IMODE((again / "closed").stat().st_mode) == 0


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
@pytest.mark.parametrize("mode", [0o311, 0o411, 0])
def test_not_root_and_a_hard_link_out_of_a_closed_directory(reachable_for_all: ArchiveWorld, mode: int) -> None:
    world = reachable_for_all
    home, again = world.home(), world.home("again")
    deep = home / "closed" / "deeper"
    deep.mkdir(parents=True)
    (deep / "inside").write_bytes(b"x")
    (home / "twin").hardlink_to(deep / "inside")
    for path in (world.path, home, again, *home.rglob("*")):
        os.chown(path, 65534, 65534)
    for path in (deep, deep.parent):
        os.utime(path, ns=(1, 1))
        path.chmod(mode)
    root = run_as_nobody(world.archives.pack_job(KEY, HOME, 7), home).result["manifest_root"]
    assert run_as_nobody(world.archives.unpack_job(KEY), again).result["manifest_root"] == root == tree_root(again)
    assert (again / "twin").samefile(again / "closed" / "deeper" / "inside")
    assert stat.S_IMODE((again / "closed" / "deeper").stat().st_mode) == mode


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_files_of_other_users_cannot_be_restored_without_root(reachable_for_all: ArchiveWorld) -> None:
    world = reachable_for_all
    home, again = world.home(), world.home("again")
    os.chown(home, 65534, 65534)
    (home / "roots").write_bytes(b"x")
    world.pack(home).result  # noqa: B018
    for path in (again, world.store, *world.store.rglob("*")):
        os.chown(path, 65534, 65534)
    ended = run_as_nobody(world.archives.unpack_job(KEY), again)
    assert "roots" in ended.failed_with(Code.TAR_EXTRACT_FAILED)


# ── sparse files ──────────────────────────────────────────────────────────────────────────────────────────────────────


def sparse(path: Path, size: int) -> Path:
    path.touch()
    os.truncate(path, size)
    return path


def test_a_home_with_huge_sparse_files_is_refused_at_once(world: ArchiveWorld) -> None:
    (world.home() / "a").write_bytes(b"x")
    sparse(world.home() / "endless", 7 << 40)
    began = time.monotonic()
    assert "'endless'" in world.pack(world.home()).failed_with(Code.HOME_TOO_LARGE)
    assert time.monotonic() - began < 20
    assert not list(world.store.rglob("*.zst*"))


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_huge_sparse_files_in_a_closed_folder_are_refused(reachable_for_all: ArchiveWorld) -> None:
    world = reachable_for_all
    closed = world.home() / "closed"
    closed.mkdir()
    for path in (world.path, world.home(), closed, sparse(closed / "endless", 7 << 40)):
        os.chown(path, 65534, 65534)
    closed.chmod(0)
    run_as_nobody(world.archives.pack_job(KEY, HOME, 7), world.home()).failed_with(Code.HOME_TOO_LARGE)
    assert not list(world.store.rglob("*.zst*"))


def test_holes_are_counted_exactly_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two blocks of data. A second hard link does not count twice; many small holes count like a large one."""
    monkeypatch.setattr(tree, "MOST_HOLE_BYTES", 3 << 20)
    with sparse(tmp_path / "a", 4 << 20).open("r+b") as file:
        for island in (1 << 20, (4 << 20) - (512 << 10)):
            file.seek(island)
            file.write(b"x" * (512 << 10))
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    assert tree.rough_size(tmp_path).size == 8 << 20
    assert len(list(tree.refuse_holes(tree.Walk(tmp_path)))) == 3
    sparse(tmp_path / "c", 1 << 16)
    for look in (lambda: tree.rough_size(tmp_path), lambda: list(tree.refuse_holes(tree.Walk(tmp_path)))):
        with pytest.raises(Failed) as caught:
            look()
        assert caught.value.code is Code.HOME_TOO_LARGE


def islands(path: Path, size: int, *positions: int) -> Path:
    with sparse(path, size).open("r+b") as file:
        for position in positions:
            file.seek(position)
            file.write(b"island")
    return path


def in_one_piece(home: Path) -> bytes:
    return b"".join(b"".join(tree.content(found)) for found in tree.Walk(home) if found.entry.path != ".")


def bytes_read() -> int:
    """Bytes read by this process, from disk or cache."""
    said = Path("/proc/self/io").read_text(encoding="ascii")
    return int(dict(line.split(": ") for line in said.splitlines())["rchar"])


@settings(max_examples=30)
@given(st.integers(0, 3 << 20), st.lists(st.integers(0, 3 << 20), max_size=6))
def test_a_file_with_holes_is_read_as_it_is(size: int, positions: list[int]) -> None:
    with TemporaryDirectory() as folder:
        path = islands(Path(folder) / "sparse", size, *positions)
        assert in_one_piece(Path(folder)) == path.read_bytes()


def test_holes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    islands(tmp_path / "home" / "sparse", 256 << 20, 0, 100 << 20, (256 << 20) - 6)
    before = bytes_read()
    assert in_one_piece(tmp_path / "home").count(b"island") == 3
    assert bytes_read() - before < 4 << 20


def test_the_list_of_skipped_files_is_limited_and_the_count_is_not(world: ArchiveWorld) -> None:
    """Many long names: the list is limited, the count is not."""
    home = world.home()
    deep = home
    for _ in range(15):
        deep = deep / os.fsdecode(b"\xff" * 250)
    deep.mkdir(parents=True)
    here = os.open(deep, os.O_RDONLY)
    for number in range(1500):
        os.mknod(f"{number}", stat.S_IFSOCK | 0o600, dir_fd=here)
    os.close(here)
    assert world.pack(home).result["skipped"] == 1500
    head = manifest_of(world).head
    assert (head.skipped_count, len(head.skipped)) == (1500, tree.MOST_SKIPPED)
    longest = tuple(tree.SkippedEntry(os.fsdecode(b"\xff") * tree.MOST_SKIPPED_PATH, "character device") for _ in head.skipped)
    assert len(replace(head, skipped=longest).text()) < MOST_HEAD_BYTES
    world.unpack(world.home("again")).result  # noqa: B018


def test_a_manifest_without_the_skipped_count_is_read(world: ArchiveWorld) -> None:
    world.pack(make_nasty(world.home())).result  # noqa: B018
    head = manifest_of(world).head
    old = b"".join(line for line in head.text().splitlines(keepends=True) if b"skipped_count" not in line)
    assert ManifestHead.parse(old) == head


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    busy = home / "busy"
    busy.write_bytes(bytes(8 << 20))

    def somebody_writes(count: int) -> None:
        with busy.open("ab") as file:
            file.write(b"more")

    (tmp_path / "store").mkdir()
    place = ArchiveStore(StoreAddress.parse(f"file://{tmp_path}/store"))
    with pytest.raises(Failed, match="'busy' changed") as caught:
        pack(place, PackRequest(KEY, 3, 7), home, Meter(somebody_writes))
    assert caught.value.code is Code.HOME_CHANGED
    assert fetch(place, KEY) is None
    assert not list((tmp_path / "store").rglob("*#*"))


def test_a_directory_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "a").write_bytes(b"x")

    def somebody_writes(count: int) -> None:
        (home / "b").touch()

    (tmp_path / "store").mkdir()
    with pytest.raises(Failed, match="changed") as caught:
        pack(ArchiveStore(StoreAddress.parse(f"file://{tmp_path}/store")), PackRequest(KEY, 3, 7), home, Meter(somebody_writes))
    assert caught.value.code is Code.HOME_CHANGED


@pytest.mark.skipif(not IS_ROOT, reason="only root can mount")
def test_full_disks(world: ArchiveWorld) -> None:
    home = world.home()
    (home / "noise").write_bytes(os.urandom(6 << 20))
    small = world.home("small")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(small)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        (small / "store").mkdir()
        full = HomeArchives(f"file://{small}/store")
        run(full.pack_job(KEY, HOME, 7), home).failed_with(Code.DISK_FULL)
        assert not list((small / "store").rglob("*.zst*")), "nothing half-written stays"
        world.pack(home).result  # noqa: B018
        assert "noise" in world.unpack(small).failed_with(Code.DISK_FULL)
    finally:
        subprocess.run(["umount", str(small)], check=True)


# ── dice ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

names = (
    st.binary(min_size=1, max_size=12)
    .map(lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"0"))
    .filter(lambda raw: raw not in (b".", b".."))
)
times = st.integers(-(1 << 60), 7 * 10**18)
leaves = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=2000), st.integers(0, 0o7777), times),
    st.tuples(
        st.just("link"), st.binary(min_size=1, max_size=120).map(lambda raw: raw.replace(b"\0", b"0")), st.just(0), times
    ),
    st.tuples(st.just("fifo"), st.just(b""), st.integers(0, 0o777), times),
)
trees = st.recursive(
    leaves, lambda inner: st.tuples(st.just("dir"), st.dictionaries(names, inner, max_size=5), st.integers(0, 0o7777), times)
)


def grow(place: Path, tree: tuple[str, object, int, int]) -> None:
    kind, inside, mode, time_ns = tree
    if kind == "dir":
        assert isinstance(inside, dict)
        place.mkdir()
        for name, branch in inside.items():
            grow(place / os.fsdecode(name), branch)
    elif kind == "link":
        assert isinstance(inside, bytes)
        place.symlink_to(os.fsdecode(inside))
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        assert isinstance(inside, bytes)
        place.write_bytes(inside)
    if kind != "link":
        place.chmod(mode)
    os.utime(place, ns=(time_ns, time_ns), follow_symlinks=False)


@settings(max_examples=60)
@given(st.tuples(st.just("dir"), st.dictionaries(names, trees, max_size=6), st.integers(0o700, 0o777), times))
def test_any_tree_survives_a_round_trip(tree: tuple[str, object, int, int]) -> None:
    with TemporaryDirectory(dir=roomy(), ignore_cleanup_errors=True) as directory:
        home, again = Path(directory, "home"), Path(directory, "again")
        again.mkdir()
        Path(directory, "store").mkdir()
        grow(home, tree)
        place = ArchiveStore(StoreAddress.parse(f"file://{directory}/store"))
        root = tree_root(home)
        assert pack(place, PackRequest(KEY, 3, 7), home, Meter()).head.manifest_root == root
        unpack(place, find(place, KEY), again, Meter())
        assert tree_root(again) == root
        assert again.stat().st_mtime_ns == home.stat().st_mtime_ns
