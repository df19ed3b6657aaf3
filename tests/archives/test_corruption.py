"""Every kind of damage is found, both by the proof and by the restore."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.archive_jobs import DATA, HOME, KEY, MANIFEST, OTHER, ArchiveWorld
from torpor.archives.entries import HOME as ROOT
from torpor.archives.entries import ArchiveMismatch, Entry, EntryKind, EntryOrder, HomeFacts
from torpor.archives.frames import compressed
from torpor.archives.manifest import ArchivePart, ManifestBuilder, ManifestHead
from torpor.archives.store import new_digest
from torpor.archives.tarheader import END, header, padding
from torpor.domain.errors import Code, Failed

Damage = Callable[[Path], None]


def flip(position: float) -> Damage:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[min(int(len(content) * position), len(content) - 1)] ^= 0x10
        path.write_bytes(content)

    return damage


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 5)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def swap(path: Path) -> None:
    shutil.copy(path.parent.parent / OTHER.op_id / path.name, path)


DAMAGES: dict[str, Damage] = {
    **{f"flip at {position}": flip(position) for position in (0.0, 0.02, 0.3, 0.6, 1.0)},
    "truncate": truncate,
    "halve": halve,
    "empty": empty,
    "lengthen": lengthen,
    "swap": swap,
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> ArchiveWorld:
    """Two archives of one home, made once and copied for each test."""
    world = ArchiveWorld(tmp_path_factory.mktemp("pristine") / "world")
    home = world.home()
    (home / "noise").write_bytes(os.urandom(20_000))
    (home / "text").write_bytes(b"word " * 5000)
    (home / "dir").mkdir()
    world.pack(home).result  # noqa: B018
    (home / "text").write_bytes(b"Word " * 5000)
    world.pack(home, OTHER).result  # noqa: B018
    return world


@pytest.fixture
def packed(world: ArchiveWorld, pristine: ArchiveWorld) -> ArchiveWorld:
    shutil.copytree(pristine.path, world.path, dirs_exist_ok=True)
    return world


@pytest.mark.parametrize("name", [DATA, MANIFEST])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(packed: ArchiveWorld, name: str, damage: str) -> None:
    DAMAGES[damage](packed.object(name))
    packed.pack(packed.home()).failed_with(Code.READBACK_MISMATCH)
    packed.unpack(packed.home("again")).failed_with(Code.CHECKSUM_MISMATCH)


def test_a_lost_data_object(packed: ArchiveWorld) -> None:
    packed.object(DATA).unlink()
    packed.pack(packed.home()).failed_with(Code.READBACK_MISMATCH)
    packed.unpack(packed.home("again")).failed_with(Code.ARCHIVE_NOT_FOUND)


def test_a_lost_manifest(packed: ArchiveWorld) -> None:
    """Without a manifest there is no archive: a restore fails, and packing writes it again."""
    packed.object(MANIFEST).unlink()
    packed.unpack(packed.home("again")).failed_with(Code.ARCHIVE_NOT_FOUND)
    packed.pack(packed.home()).result  # noqa: B018
    packed.unpack(packed.home("again")).result  # noqa: B018


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("damage", "name", "code"),
    [
        (halve, DATA, Code.CHECKSUM_MISMATCH),
        (Path.unlink, DATA, Code.ARCHIVE_NOT_FOUND),
        (Path.unlink, MANIFEST, Code.ARCHIVE_NOT_FOUND),
        (flip(0.0), MANIFEST, Code.CHECKSUM_MISMATCH),
        (swap, MANIFEST, Code.CHECKSUM_MISMATCH),
    ],
)
async def test_reading_the_manifest_root_detects_damage(packed: ArchiveWorld, damage: Damage, name: str, code: Code) -> None:
    damage(packed.object(name))
    with pytest.raises(Failed) as caught:
        await packed.archives.manifest_root(KEY)
    assert caught.value.code is code


def test_another_generation_is_another_archive(packed: ArchiveWorld) -> None:
    assert "revision 7" in packed.pack(packed.home(), revision=8).failed_with(Code.READBACK_MISMATCH)


# ── maliciously made archives ─────────────────────────────────────────────────────────────────────────────────────────

FACTS = HomeFacts(0, 0, 0)
TOP = Entry(ROOT, EntryKind.DIRECTORY, 0o755, "home", "home", None)
EVIL = b"evil"


def forge(world: ArchiveWorld, *entries: Entry) -> None:
    """An archive in which every checksum is right."""
    tar = b""
    listing = ManifestBuilder()
    for entry in (TOP, *entries):
        tar += header(entry, FACTS)
        if entry.kind is EntryKind.FILE:
            digest = new_digest()
            digest.update(memoryview(EVIL))
            tar += EVIL + padding(len(EVIL))
            entry = replace(entry, sha256=digest.hexdigest())
        listing.add(entry)
    squeezed = b"".join(compressed([tar + END]))
    digest = new_digest()
    digest.update(memoryview(squeezed))
    head = ManifestHead(
        KEY.workspace_id,
        KEY.op_id,
        HOME.generation,
        7,
        FACTS,
        listing.root.hex(),
        listing.root.files,
        listing.root.home_bytes,
        (ArchivePart(DATA, len(squeezed), digest.hexdigest()),),
    )
    world.object(DATA).parent.mkdir(parents=True)
    world.object(DATA).write_bytes(squeezed)
    world.object(MANIFEST).write_bytes(listing.manifest(head))


def file(path: str) -> Entry:
    return Entry(path, EntryKind.FILE, 0o644, "home", "home", 0, size=len(EVIL))


def link(path: str, target: str, kind: EntryKind = EntryKind.SYMLINK) -> Entry:
    return Entry(path, kind, 0o777, "home", "home", 0, target=target)


def directory(path: str) -> Entry:
    return Entry(path, EntryKind.DIRECTORY, 0o755, "home", "home", 0)


def test_a_harmless_forged_archive_is_restored(world: ArchiveWorld) -> None:
    forge(world, directory("a"), file("a/b"), link("c", "/etc"))
    world.unpack(world.home()).result  # noqa: B018
    assert (world.home() / "a" / "b").read_bytes() == EVIL


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([file("../evil")], id="dot dot"),
        pytest.param([directory("a"), file("a/../../evil")], id="dot dot inside"),
        pytest.param([file("/tmp/torpor-evil")], id="absolute"),
        pytest.param([link("a", ".."), file("a/evil")], id="through a symlink"),
        pytest.param([directory("a"), link("b", ".."), file("b/evil")], id="through a symlink beside a directory"),
        pytest.param([file("a"), file("a")], id="twice"),
        pytest.param([link("a", "../evil"), file("a")], id="a link and then a file of its name"),
        pytest.param([file("b"), file("a")], id="out of order"),
        pytest.param([file("a/b")], id="no parent"),
        pytest.param([directory("a"), file("a//b")], id="empty name"),
        pytest.param([directory(".")], id="the home again"),
        pytest.param([link("a", "../outside", EntryKind.HARDLINK)], id="hard link out"),
        pytest.param([link("a", "/etc/passwd", EntryKind.HARDLINK)], id="hard link absolute"),
        pytest.param([replace(link("a", "b"), size=4)], id="a link with a content"),
        pytest.param([replace(directory("a"), mode=0o100644)], id="a mode that says more"),
    ],
)
def test_no_entry_is_written_outside_of_the_home(world: ArchiveWorld, entries: list[Entry]) -> None:
    (world.path / "outside").write_bytes(b"mine")
    forge(world, *entries)
    home = world.home()
    world.unpack(home).failed_with(Code.CHECKSUM_MISMATCH)
    assert not (world.path / "evil").exists()
    assert not Path("/tmp/torpor-evil").exists()
    assert (world.path / "outside").stat().st_nlink == 1


def test_a_hard_link_through_a_symlink_is_not_followed(world: ArchiveWorld) -> None:
    (world.path / "outside").write_bytes(b"mine")
    forge(world, link("a", ".."), link("b", "a/outside", EntryKind.HARDLINK))
    world.unpack(world.home()).failed_with(Code.TAR_EXTRACT_FAILED)
    assert (world.path / "outside").stat().st_nlink == 1


def test_a_line_in_another_spelling_is_refused() -> None:
    line = file("a").line()
    assert Entry.parse(line) == file("a")
    for other in (
        line.replace(b":", b": ", 1),
        b"[]",
        b"{}",
        b"nonsense",
        json.dumps({"path": 1}).encode(),
        line.replace(b"420", b"true"),
    ):
        with pytest.raises(ArchiveMismatch):
            Entry.parse(other)


def test_the_order_is_that_of_paths_not_of_text() -> None:
    order = EntryOrder()
    for entry in (TOP, directory("a"), file("a/b"), file("a-b")):
        order.check(entry)
