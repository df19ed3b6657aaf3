"""The extractor restores an archive without Torpor, checks all of it, and names what is damaged."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.archives.nasty import make_nasty
from tests.support.archive_jobs import HOME, KEY, OTHER, ArchiveWorld, Meter, as_nobody
from torpor.archives import extract
from torpor.archives.entries import HomeFacts
from torpor.archives.frames import compressor, decompressed
from torpor.archives.packs.crew import InlineCrew
from torpor.archives.packs.pack_numbers import PackNumbers
from torpor.archives.packs.pack_writer import PackWriter
from torpor.archives.packs.root import PackUse, Root, fetch_root
from torpor.archives.packs.rows import DIRECTORY, FILE, HARDLINK, OWN, SYMLINK, Row
from torpor.archives.packs.section_builder import SectionBuilder
from torpor.archives.packs.sections import is_cut_after
from torpor.archives.packs.write import ArchiveRequest, BaseRequest, handlers_of, write
from torpor.archives.store import ArchiveStore, StoreAddress
from torpor.archives.tree import tree_root
from torpor.domain.records import ArchiveKey

NOBODY = 65534
DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "archive-format.md"
LARGE = 5 * extract.BLOCK_BYTES + 4321


def open_store(world: ArchiveWorld) -> ArchiveStore:
    return ArchiveStore(StoreAddress.parse(f"file://{world.store}"))


def archive(world: ArchiveWorld, home: Path, key: ArchiveKey = KEY, base: Root | None = None) -> Root:
    """An archive of format 2."""
    request = None if base is None else BaseRequest(base.key, base.manifest_root, {}, frozenset())
    home_fd = os.open(home, os.O_RDONLY)
    try:
        with contextlib.closing(InlineCrew(handlers_of(lambda: open_store(world), key, home_fd))) as crew:
            wanted = ArchiveRequest(key, HOME.generation, 7, request)
            return write(open_store(world), wanted, home, home_fd, crew, Meter()).root
    finally:
        os.close(home_fd)


def own_everything(home: Path) -> None:
    """Foreign owners and trusted attributes are not restored: remove them for a comparison."""
    if os.geteuid() == 0:
        for name in ("big", "links/loop"):
            os.chown(home / name, home.stat().st_uid, home.stat().st_gid, follow_symlinks=False)
        os.removexattr(home / "links" / "dangling", "trusted.on.a.link", follow_symlinks=False)


def target_of(world: ArchiveWorld) -> Path:
    """A directory that does not belong to root, which would lose setuid bits."""
    target = world.path / "target"
    target.mkdir()
    if os.geteuid() == 0:
        os.chown(target, NOBODY, NOBODY)
    return target


@dataclass(frozen=True)
class Extracted:
    code: int
    said: str


@pytest.fixture
def run(world: ArchiveWorld, capsys: pytest.CaptureFixture[str]) -> Callable[..., Extracted]:
    def run(*options: str, key: ArchiveKey = KEY, target: str = "target") -> Extracted:
        code = extract.main([f"file://{world.store}", str(key), str(world.path / target), *options])
        return Extracted(code, capsys.readouterr().err)

    return run


def packs(world: ArchiveWorld) -> list[Path]:
    return sorted((world.store / KEY.workspace_id / "packs").iterdir())


def root_object(world: ArchiveWorld) -> Path:
    return world.store / KEY.workspace_id / "archives" / f"{KEY.op_id}.json.zst"


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def small_home(world: ArchiveWorld) -> Path:
    """The contents are in one pack, the documents in another."""
    home = world.home()
    (home / "a").mkdir()
    (home / "a" / "noise").write_bytes(os.urandom(2_000_000))
    (home / "more").write_bytes(os.urandom(3_000_000))
    (home / "z").hardlink_to(home / "more")
    (home / "link").symlink_to("a")
    return home


def frames_of(world: ArchiveWorld, pack: Path) -> list[tuple[int, int]]:
    """The documents of the only section in this pack: where they begin, and how long they are."""
    root = fetch_root(open_store(world), KEY)
    assert root is not None
    (section,) = root.sections
    found = [stored.frame for stored in (section.tree, section.refs)]
    return [(frame.start, frame.stored) for frame in found if frame.pack == pack.name]


def content_and_documents(world: ArchiveWorld) -> tuple[Path, Path]:
    documents = [pack for pack in packs(world) if frames_of(world, pack)]
    (content,) = set(packs(world)) - set(documents)
    return content, documents[0]


def test_a_difficult_home_is_equal_after_it(world: ArchiveWorld, run: Callable[..., Extracted]) -> None:
    home = make_nasty(world.path / "home")
    own_everything(home)
    with (home / "large").open("wb") as file:
        file.seek(2 * extract.BLOCK_BYTES + 99)
        file.write(b"island")
        file.truncate(LARGE)
    expected = tree_root(home)
    archive(world, home)
    target = target_of(world)
    assert run() == Extracted(0, "")
    assert tree_root(target) == expected
    assert (target / "large").stat().st_size == LARGE
    assert (target / "large").stat().st_blocks * 512 <= extract.HOLE_BYTES
    assert target.stat().st_mtime_ns == home.stat().st_mtime_ns


def test_entries_of_the_base_are_found_in_its_packs(world: ArchiveWorld, run: Callable[..., Extracted]) -> None:
    home = small_home(world)
    first = archive(world, home)
    (home / "new").write_bytes(b"new")
    second = archive(world, home, OTHER, first)
    assert set(first.packs) & set(second.packs)
    assert run(key=OTHER) == Extracted(0, "")
    assert tree_root(world.path / "target") == tree_root(home)


def test_foreign_owners_and_what_belongs_to_them_become_the_directorys(
    world: ArchiveWorld, run: Callable[..., Extracted]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make files of other users")
    home = world.home()
    (home / "foreign").write_bytes(b"x")
    os.chown(home / "foreign", 12345, 12345)
    (home / "foreign").chmod(0o4755)
    os.setxattr(home / "foreign", "trusted.secret", b"1")
    archive(world, home)
    target = target_of(world)
    done = run()
    assert done.code == 0
    assert "setuid" in done.said
    assert "trusted.secret was left out" in done.said
    seen = (target / "foreign").stat()
    assert (seen.st_uid, seen.st_gid, seen.st_mode & 0o7777) == (NOBODY, NOBODY, 0o755)
    assert not os.listxattr(target / "foreign")


def test_a_directory_of_root_gets_no_setuid_programs(world: ArchiveWorld, run: Callable[..., Extracted]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only for root")
    home = world.home()
    (home / "program").write_bytes(b"x")
    (home / "program").chmod(0o4755)
    archive(world, home)
    assert "setuid" in run().said
    assert (world.path / "target" / "program").stat().st_mode & 0o7777 == 0o755


def test_it_runs_as_a_single_file(world: ArchiveWorld) -> None:
    home = small_home(world)
    archive(world, home)
    copied = world.path / "copy" / "extract.py"
    copied.parent.mkdir()
    shutil.copy(extract.__file__, copied)
    target = world.path / "target"
    argv = [sys.executable, "-I", "-X", "importtime", str(copied), str(world.store), str(KEY), str(target)]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "torpor" not in ended.stderr
    assert tree_root(target) == tree_root(home)


def test_another_user_than_root_gets_an_equal_home(reachable_for_all: ArchiveWorld) -> None:
    """Some directories of this home are unreadable even for their owner."""
    world = reachable_for_all
    home = make_nasty(world.path / "home")
    own_everything(home)
    archive(world, home)
    (world.path / "target").mkdir()
    if os.geteuid() == 0:
        for path in (world.path / "target", world.store, *world.store.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        script = "sys.exit(torpor.archives.extract.main(sys.argv[1:]))"
        assert as_nobody(script, str(world.store), str(KEY), str(world.path / "target")).returncode == 0
    else:
        assert extract.main([str(world.store), str(KEY), str(world.path / "target")]) == 0
    assert tree_root(world.path / "target") == tree_root(home)


def test_the_example_of_the_documentation(world: ArchiveWorld) -> None:
    """Not the bytes of packs: they depend on the version of zstd."""
    home = world.home()
    (home / "a").mkdir()
    for name in ("a/note", "copy"):
        (home / name).write_bytes(b"hello\n")
    (home / "a-b").symlink_to("a/note")
    (home / "link").hardlink_to(home / "copy")
    os.setxattr(home / "copy", "user.k", b"v")
    for name, mode in (("a/note", 0o644), ("copy", 0o600), ("a", 0o755), (".", 0o750)):
        (home / name).chmod(mode)
    for name in ("a/note", "a-b", "copy", "a"):
        os.utime(home / name, ns=(1_700_000_000_000_000_001,) * 2, follow_symlinks=False)
    root = archive(world, home)
    (section,) = root.sections
    page = DOCUMENT.read_text(encoding="utf-8")
    assert root.manifest_root in page
    assert section.tree.digest.hex() in page
    assert extract.digest_of(extract.FILE, b"hello\n") in page
    assert extract.digest_of_zeros(extract.BLOCK_BYTES) in page
    head, *columns = page.split("after each column:\n\n```\n")[1].split("\n```")[0].replace("·", "\0").split("\n")
    document = f"{head}\n{''.join(columns)}".encode()
    assert extract.digest_of(extract.TREE, document) == section.tree.digest.hex()


# ── damage ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_flipped_bit_in_a_content(world: ArchiveWorld, run: Callable[..., Extracted]) -> None:
    archive(world, small_home(world))
    content, _ = content_and_documents(world)
    flip(content, 1_000_000)
    stopped = run()
    assert stopped.code == 1
    assert content.name in stopped.said
    assert "'a/noise'" in stopped.said
    assert "--keep-going" in stopped.said
    kept = run("--keep-going", target="kept")
    assert kept.code == 1
    assert "'a/noise' was not extracted" in kept.said
    assert "'more'" not in kept.said
    assert (world.path / "kept" / "more").read_bytes() == (world.path / "home" / "more").read_bytes()
    assert (world.path / "kept" / "z").samefile(world.path / "kept" / "more")
    assert not list((world.path / "kept" / "a").iterdir())
    assert (world.path / "kept" / "link").is_symlink()


def test_a_missing_pack_with_contents(world: ArchiveWorld, run: Callable[..., Extracted]) -> None:
    archive(world, small_home(world))
    content, _ = content_and_documents(world)
    content.unlink()
    stopped = run()
    assert stopped.code == 1
    assert f"{content} is missing" in stopped.said
    kept = run("--keep-going", target="kept")
    assert kept.code == 1
    for path in ("a/noise", "more", "z"):
        assert f"'{path}' was not extracted" in kept.said
    assert sorted(found.name for found in (world.path / "kept").iterdir()) == ["a", "link"]


def test_a_damaged_tree_document_stops_it_before_anything_is_created(
    world: ArchiveWorld, run: Callable[..., Extracted]
) -> None:
    archive(world, small_home(world))
    _, documents = content_and_documents(world)
    start, length = frames_of(world, documents)[0]
    flip(documents, start + length // 2)
    stopped = run()
    assert stopped.code == 1
    assert documents.name in stopped.said
    assert not (world.path / "target").exists()
    kept = run("--keep-going", target="kept")
    assert kept.code == 1
    assert "6 entries after the beginning were not extracted" in kept.said


def test_a_damaged_section_costs_only_its_own_entries(world: ArchiveWorld, run: Callable[..., Extracted]) -> None:
    """The directory of the other entries is in the damaged one."""
    home = world.home()
    (home / "d").mkdir()
    cut = next(number for number in range(100_000) if is_cut_after(b"d/0300-%d" % number))
    for number in range(400):
        (home / "d" / f"{number:04}-{cut}").write_bytes(b"%d" % number)
    root = archive(world, home)
    assert len(root.sections) == 2
    frame = root.sections[0].tree.frame
    lost = root.sections[0].entries
    flip(world.store / KEY.workspace_id / "packs" / frame.pack, frame.start + frame.stored // 2)
    kept = run("--keep-going")
    assert kept.code == 1
    assert f"{lost} entries after the beginning were not extracted" in kept.said
    found = sorted((world.path / "target" / "d").iterdir())
    assert len(found) == root.entries - lost
    assert all(path.read_bytes() == b"%d" % int(path.name[:4]) for path in found)


def test_damaged_refs_cost_the_contents(world: ArchiveWorld, run: Callable[..., Extracted]) -> None:
    home = small_home(world)
    (home / "empty").touch()
    archive(world, home)
    _, documents = content_and_documents(world)
    start, length = frames_of(world, documents)[1]
    flip(documents, start + length // 2)
    kept = run("--keep-going")
    assert kept.code == 1
    assert "'more' was not extracted" in kept.said
    assert documents.name in kept.said
    assert sorted(found.name for found in (world.path / "target").iterdir()) == ["a", "empty", "link"]


def rewritten(world: ArchiveWorld, change: Callable[[bytes], bytes]) -> None:
    text = change(b"".join(decompressed([root_object(world).read_bytes()])))
    frame = compressor()
    root_object(world).write_bytes(frame.compress(text) + frame.flush())


def sealed(text: bytes) -> bytes:
    """The same document with the right checksum."""
    said = {**json.loads(text), "checksum": ""}
    bare = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    said["checksum"] = hashlib.sha256(bare).hexdigest()
    return json.dumps(said, sort_keys=True, separators=(",", ":")).encode()


def test_a_wrong_checksum_of_the_root(world: ArchiveWorld, run: Callable[..., Extracted]) -> None:
    archive(world, small_home(world))
    rewritten(world, lambda text: text.replace(b'"revision":7', b'"revision":8'))
    for options in ((), ("--keep-going",)):
        stopped = run(*options)
        assert stopped.code == 1
        assert str(root_object(world)) in stopped.said
        assert "checksum" in stopped.said
        assert not (world.path / "target").exists()


def test_another_home_root(world: ArchiveWorld, run: Callable[..., Extracted]) -> None:
    root = archive(world, small_home(world))
    rewritten(world, lambda text: sealed(text.replace(root.manifest_root.encode(), b"0" * 64)))
    stopped = run()
    assert stopped.code == 1
    assert root.manifest_root in stopped.said
    assert not (world.path / "target").exists()


def test_the_root_of_another_archive(world: ArchiveWorld, run: Callable[..., Extracted]) -> None:
    archive(world, small_home(world))
    shutil.copy(root_object(world), root_object(world).with_name(f"{OTHER.op_id}.json.zst"))
    stopped = run(key=OTHER)
    assert stopped.code == 1
    assert "another archive" in stopped.said


# ── maliciously made archives ─────────────────────────────────────────────────────────────────────────────────────────


def entry(path: bytes, kind: bytes, target: bytes = b"") -> Row:
    return Row(path, kind, b"644", OWN, OWN, b"0", b"0", target, b"", b"")


def forge(world: ArchiveWorld, *rows: Row) -> None:
    """An archive in which every hash is right."""
    writer, numbers = PackWriter(open_store(world), KEY.workspace_id, KEY.op_id), PackNumbers()
    builder = SectionBuilder(numbers, writer)
    for row in (Row(b".", DIRECTORY, b"755", OWN, OWN, b"", b"0", b"", b"", b""), *rows):
        builder.add(row, (), ())
    builder.finish()
    sections = builder.sections()
    uses = {pack.proven.name: PackUse(pack.proven.size_bytes, 0, 0) for pack in numbers.written}
    root, facts = builder.home_root, HomeFacts(0, 0, 0)
    ids = KEY.workspace_id, KEY.op_id
    forged = Root(*ids, 1, 7, root.hex(), facts, root.entries, root.files, root.home_bytes, uses, sections)
    root_object(world).parent.mkdir(parents=True)
    root_object(world).write_bytes(forged.serialise())


def test_a_harmless_forged_archive_is_extracted(world: ArchiveWorld, run: Callable[..., Extracted]) -> None:
    forge(world, entry(b"a", DIRECTORY), entry(b"a/b", FILE), entry(b"c", HARDLINK, b"a/b"), entry(b"d", SYMLINK, b"/etc"))
    assert run() == Extracted(0, "")
    assert (world.path / "target" / "c").samefile(world.path / "target" / "a" / "b")


@pytest.mark.parametrize("options", [(), ("--keep-going",)], ids=["", "keep going"])
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([entry(b"../evil", FILE)], id="dot dot"),
        pytest.param([entry(b"a", DIRECTORY), entry(b"a/../../evil", FILE)], id="dot dot inside"),
        pytest.param([entry(b"/tmp/torpor-evil", FILE)], id="absolute"),
        pytest.param([entry(b"a", SYMLINK, b".."), entry(b"a/evil", FILE)], id="through a symlink"),
        pytest.param([entry(b"a", FILE), entry(b"a", FILE)], id="twice"),
        pytest.param([entry(b"a", HARDLINK, b"../outside")], id="hard link out"),
        pytest.param([entry(b"a", SYMLINK, b".."), entry(b"b", HARDLINK, b"a/outside")], id="hard link through a symlink"),
    ],
)
def test_nothing_is_written_outside(
    world: ArchiveWorld, run: Callable[..., Extracted], rows: list[Row], options: tuple[str, ...]
) -> None:
    (world.path / "outside").write_bytes(b"mine")
    forge(world, *rows)
    assert run(*options).code == 1
    assert not (world.path / "evil").exists()
    assert not Path("/tmp/torpor-evil").exists()
    assert (world.path / "outside").stat().st_nlink == 1


# ── arguments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_directory_that_is_not_empty_is_refused(world: ArchiveWorld, run: Callable[..., Extracted]) -> None:
    archive(world, small_home(world))
    (world.path / "target").mkdir()
    (world.path / "target" / "mine").write_text("mine")
    stopped = run()
    assert stopped.code == 1
    assert "is not empty" in stopped.said
    assert [path.name for path in (world.path / "target").iterdir()] == ["mine"]


def test_an_unknown_archive(world: ArchiveWorld, run: Callable[..., Extracted]) -> None:
    stopped = run()
    assert stopped.code == 1
    assert f"there is no archive {KEY}" in stopped.said


def test_format_1_is_verified_and_explained(world: ArchiveWorld, run: Callable[..., Extracted]) -> None:
    world.pack(small_home(world)).result  # noqa: B018
    explained = run()
    assert explained.code == 1
    assert "intact" in explained.said
    assert f"zstd -dc {world.object('home.tar.zst')} | tar -x" in explained.said
    flip(world.object("home.tar.zst"), 1000)
    assert "damaged" in run().said


@pytest.mark.parametrize(
    "arguments",
    [["s3://bucket", str(KEY), "target"], ["store", "no-key", "target"], ["store", str(KEY)]],
    ids=["another store", "another key", "too few"],
)
def test_bad_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        extract.main(arguments)
    assert ended.value.code == 2
    assert "usage: extract" in capsys.readouterr().err
