"""Forged archives of format 2, whose hashes are all right, are refused."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.archives.packs.forge import ForgedSection, Forgery, store_pack, store_root
from tests.archives.packs.stage import PackStage
from torpor.archives.packs import hashes
from torpor.archives.packs import root as roots
from torpor.archives.packs.compression import compress
from torpor.archives.packs.hashes import BLOCK_BYTES
from torpor.archives.packs.layout import root_path
from torpor.archives.packs.root import PackUse, Root
from torpor.archives.packs.rows import Row
from torpor.archives.packs.sections import Frame, Refs
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ArchiveKey

IS_ROOT = os.geteuid() == 0
LARGE_BYTES = 2 * BLOCK_BYTES + 10


@pytest.fixture
def forgery(stage: PackStage) -> Forgery:
    """An archive with one entry of each kind, in one section."""
    home = stage.home()
    (home / "a").mkdir()
    (home / "a" / "file").write_bytes(b"a secret")
    (home / "a" / "link").symlink_to("file")
    os.mkfifo(home / "a" / "pipe")
    (home / "b").write_bytes(b"another content")
    (home / "c").hardlink_to(home / "b")
    (home / "large").write_bytes(b"x" * LARGE_BYTES)
    (home / "z").write_bytes(b"")
    (stage.path / "outside").mkdir()
    (stage.path / "outside" / "file").write_bytes(b"not ours")
    return Forgery.of(stage, stage.archive(home).root.key)


def refused(stage: PackStage, root: Root, code: Code = Code.CHECKSUM_MISMATCH) -> Path:
    """The restore fails, and changes nothing outside of the home. Returns the home."""
    home = stage.home()
    with pytest.raises(Failed) as caught:
        stage.restore(root, home)
    assert caught.value.code is code, caught.value
    assert [path.name for path in stage.path.glob("outside/*")] == ["file"]
    assert (stage.path / "outside" / "file").read_bytes() == b"not ours"
    assert (stage.path / "outside" / "file").stat().st_nlink == 1
    return home


def refused_unread(stage: PackStage, root: Root) -> None:
    """The same, before anything is created."""
    home = stage.home()
    (home / "earlier").write_bytes(b"left by an earlier try")
    with pytest.raises(Failed) as caught:
        stage.restore(root, home)
    assert caught.value.code is Code.CHECKSUM_MISMATCH, caught.value
    assert [path.name for path in home.iterdir()] == ["earlier"]


def test_a_forgery_that_changes_nothing_is_restored(stage: PackStage, forgery: Forgery) -> None:
    """Otherwise the tests below could pass for another reason."""
    home = stage.restore(forgery.write(stage))
    assert (home / "a" / "file").read_bytes() == b"a secret"
    assert (home / "c").stat().st_ino == (home / "b").stat().st_ino


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

PATHS = {
    "absolute": b"/etc/z",
    "upwards": b"../z",
    "upwards in the middle": b"a/../../z",
    "the directory above": b"..",
    "the home again": b".",
    "a dot in the middle": b"large/./z",
    "an empty name": b"large//z",
    "a slash at the end": b"z/",
    "empty": b"",
    "in no directory": b"nowhere/z",
    "in a file": b"b/z",
    "before the others": b"Z",
    "one that exists": b"large",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_bad_paths(stage: PackStage, forgery: Forgery, path: bytes) -> None:
    forgery.change(b"z", path=path)
    refused_unread(stage, forgery.write(stage))


def test_a_file_below_a_symlink(stage: PackStage, forgery: Forgery) -> None:
    outside = os.fsencode(stage.path / "outside")
    forgery.change(b"large", path=b"y", kind=b"l", mode=b"777", size=b"0", target=outside, digest=b"")
    forgery.change(b"z", path=b"y/planted")
    section = forgery.sections[0]
    section.refs = replace(section.refs, frame=section.refs.frame[:2], offset=section.refs.offset[:2], digests=())
    refused_unread(stage, forgery.write(stage))


FIELDS: dict[str, dict[str, bytes]] = {
    "a device": {"kind": b"c"},
    "a block device": {"kind": b"b"},
    "a socket": {"kind": b"s"},
    "no kind": {"kind": b""},
    "a mode that is not octal": {"mode": b"9"},
    "a mode with the kind in it": {"mode": b"100644"},
    "a negative mode": {"mode": b"-1"},
    "an owner that is not a number": {"uid": b"root"},
    "a time that is not a number": {"mtime_ns": b"now"},
    "no time": {"mtime_ns": b""},
    "minus zero": {"mtime_ns": b"-0"},
    "a number with zeros before it": {"mtime_ns": b"007"},
    "a negative size": {"size": b"-1"},
    "a size without content": {"size": b"5"},
    "content without a size": {"digest": b"00" * 32},
    "a target of a file": {"target": b"x"},
    "attributes that are not hexadecimal": {"xattrs": b"user.x=1"},
    "an attribute without a name": {"xattrs": b"=00"},
    "a time that no file system has": {"mtime_ns": b"9" * 30},
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_bad_fields(stage: PackStage, forgery: Forgery, fields: dict[str, bytes]) -> None:
    forgery.change(b"z", **fields)
    refused_unread(stage, forgery.write(stage))


def test_fields_that_contradict_the_kind(stage: PackStage, forgery: Forgery) -> None:
    for path, fields in {
        b"a": {"target": b"x"},
        b"a/link": {"target": b""},
        b"a/pipe": {"size": b"1"},
        b"c": {"xattrs": b"757365722e78=00"},
        b".": {"kind": b"l", "target": b"x"},
    }.items():
        before = forgery.row(path)
        forgery.change(path, **fields)
        refused_unread(stage, forgery.write(stage))
        forgery.change(path, **before._asdict())
    stage.restore(forgery.write(stage))


LINKS = {
    "absolute": b"/etc/passwd",
    "upwards": b"../../outside/file",
    "upwards in the middle": b"a/../../../outside/file",
    "through a symlink": b"a/out/file",
    "a later entry": b"large",
    "an entry that does not exist": b"nowhere",
    "a directory": b"a",
    "the home": b".",
    "itself": b"c",
}


@pytest.mark.parametrize("target", LINKS.values(), ids=LINKS)
def test_bad_hard_links(stage: PackStage, forgery: Forgery, target: bytes) -> None:
    # The symlink leads to the directory outside.
    forgery.change(b"a/link", path=b"a/out", target=os.fsencode(stage.path / "outside"))
    rows = forgery.sections[0].rows
    rows.sort(key=lambda row: b"" if row.path == b"." else row.path.replace(b"/", b"\0"))
    forgery.change(b"c", target=target)
    home = stage.home()
    with pytest.raises(Failed) as caught:
        stage.restore(forgery.write(stage), home)
    assert caught.value.code in (Code.CHECKSUM_MISMATCH, Code.TAR_EXTRACT_FAILED)
    assert (stage.path / "outside" / "file").stat().st_nlink == 1


def test_no_entries_and_no_home(stage: PackStage, forgery: Forgery) -> None:
    rows, refs = forgery.sections[0].rows, forgery.sections[0].refs
    forgery.sections[0].rows = rows[1:]
    refused_unread(stage, forgery.write(stage))
    forgery.sections = [ForgedSection(rows, refs), ForgedSection(rows[:1], Refs((), (), (), ()))]
    refused_unread(stage, forgery.write(stage))
    forgery.sections = []
    refused_unread(stage, forgery.write(stage))


@pytest.mark.skipif(not IS_ROOT, reason="only root could create such files at all")
def test_setuid_of_others_is_not_restored(stage: PackStage, forgery: Forgery) -> None:
    capability = b"security.capability".hex().encode() + b"=" + (b"\x01\x00\x00\x02" + b"\xff" * 16).hex().encode()
    forgery.change(b"z", mode=b"6755", uid=b"0", gid=b"0", xattrs=capability)
    home = stage.home()
    os.chown(home, 4321, 4321)
    stage.restore(forgery.write(stage), home)
    seen = (home / "z").stat()
    assert (seen.st_mode & 0o7777, seen.st_uid, seen.st_gid) == (0o755, 4321, 4321)
    assert os.listxattr(home / "z") == []


# ── contents ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def with_refs(forgery: Forgery, **fields: object) -> Forgery:
    section = forgery.sections[0]
    section.refs = replace(section.refs, **fields)  # type: ignore[arg-type]
    return forgery


def test_contents_that_are_swapped(stage: PackStage, forgery: Forgery) -> None:
    refs = forgery.sections[0].refs
    first, second, *rest = refs.offset
    assert not refused(stage, with_refs(forgery, offset=[second, first, *rest]).write(stage)).joinpath("a/file").exists()


def test_another_digest(stage: PackStage, forgery: Forgery) -> None:
    forgery.change(b"b", digest=forgery.row(b"a/file").digest)
    refused(stage, forgery.write(stage))


def test_a_file_does_not_become_the_blocks_of_another(stage: PackStage, forgery: Forgery) -> None:
    """A file that contains the block hashes of a large file does not have its hash (an attack on the first prototype)."""
    refs = forgery.sections[0].refs
    listed = hashes.BLOCKS + LARGE_BYTES.to_bytes(8, "big") + b"".join(refs.digests)
    large = forgery.row(b"large")
    assert hashlib.sha256(listed).hexdigest().encode() == large.digest, "this is what the hash is computed from"
    home = stage.home()
    (home / "blocks").write_bytes(listed)
    (home / "large").write_bytes(b"x" * LARGE_BYTES)
    again = stage.restore(stage.archive(home).root)
    assert (again / "blocks").read_bytes() == listed
    assert (again / "large").read_bytes() == b"x" * LARGE_BYTES
    # The content of one cannot be given as that of the other.
    other = Forgery.of(stage, stage.archive(home).root.key)
    other.change(b"blocks", digest=large.digest)
    refused(stage, other.write(stage))


def test_a_block_of_a_large_file_that_is_given_as_zeros(stage: PackStage, forgery: Forgery) -> None:
    frame, offset = list(forgery.sections[0].refs.frame), list(forgery.sections[0].refs.offset)
    frame[-1], offset[-1] = -1, 0
    refused(stage, with_refs(forgery, frame=frame, offset=offset).write(stage))


def test_a_small_file_that_is_given_as_zeros(stage: PackStage, forgery: Forgery) -> None:
    frame, offset = list(forgery.sections[0].refs.frame), list(forgery.sections[0].refs.offset)
    frame[0], offset[0] = -1, 0
    refused(stage, with_refs(forgery, frame=frame, offset=offset).write(stage))


def test_block_digests_of_another_file(stage: PackStage, forgery: Forgery) -> None:
    refs = forgery.sections[0].refs
    refused(stage, with_refs(forgery, digests=tuple(reversed(refs.digests))).write(stage))


REFS: dict[str, Callable[[Refs], Refs]] = {
    "too few blocks": lambda refs: replace(refs, frame=refs.frame[:-1], offset=refs.offset[:-1]),
    "too many blocks": lambda refs: replace(refs, frame=[*refs.frame, 0], offset=[*refs.offset, 0]),
    "columns of different lengths": lambda refs: replace(refs, offset=refs.offset[:-1]),
    "a frame that does not exist": lambda refs: replace(refs, frame=[len(refs.frames), *refs.frame[1:]]),
    "another negative frame": lambda refs: replace(refs, frame=[-2, *refs.frame[1:]]),
    "an offset behind the frame": lambda refs: replace(refs, offset=[BLOCK_BYTES, *refs.offset[1:]]),
    "a negative offset": lambda refs: replace(refs, offset=[-1, *refs.offset[1:]]),
    "an offset of zeros": lambda refs: replace(refs, frame=[*refs.frame[:-1], -1], offset=[*refs.offset[:-1], 1]),
    "too few digests": lambda refs: replace(refs, digests=refs.digests[:-1]),
    "a short digest": lambda refs: replace(refs, digests=(refs.digests[0][:-1], *refs.digests[1:])),
    "a frame outside of its pack": lambda refs: with_frame(refs, start=1 << 40),
    "a frame that is too long": lambda refs: with_frame(refs, stored=1 << 40),
    "a negative start": lambda refs: with_frame(refs, start=-1),
    "an empty frame": lambda refs: with_frame(refs, stored=0),
    "a frame that claims to be huge": lambda refs: with_frame(refs, raw=1 << 50),
    "an unknown pack": lambda refs: with_frame(refs, pack=f"{'0' * 8}-{'0' * 4}-4000-8000-{'0' * 12}-{'0' * 64}"),
    "a path as a pack": lambda refs: with_frame(refs, pack="../../outside/file"),
}


def with_frame(refs: Refs, **fields: object) -> Refs:
    return replace(refs, frames=(replace(refs.frames[0], **fields), *refs.frames[1:]))  # type: ignore[arg-type]


@pytest.mark.parametrize("change", REFS.values(), ids=REFS)
def test_bad_refs(stage: PackStage, forgery: Forgery, change: Callable[[Refs], Refs]) -> None:
    forgery.sections[0].refs = change(forgery.sections[0].refs)
    refused(stage, forgery.write(stage))


FRAMES: dict[str, Callable[[bytes], tuple[bytes, int]]] = {
    "a frame that produces more": lambda data: (compress(data + bytes(1 << 26)), len(data)),
    "a frame that produces less": lambda data: (compress(data[:-1]), len(data)),
    "two frames": lambda data: (compress(data) + compress(b"more"), len(data)),
    "bytes after the frame": lambda data: (compress(data) + b"more", len(data)),
    "a frame without its end": lambda data: (compress(data)[:-5], len(data)),
    "no zstd": lambda data: (b"0" * 50, len(data)),
}


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
def test_bad_frames(stage: PackStage, forgery: Forgery, make: Callable[[bytes], tuple[bytes, int]]) -> None:
    """The content of the first file, in a pack of its own."""
    refs = forgery.sections[0].refs
    (frame,) = store_pack(stage, stage.key(), [make(b"a secret")])
    forgery.root = replace(forgery.root, uses={**forgery.root.uses, frame.pack: PackUse(frame.stored, frame.raw, frame.raw)})
    changed = replace(
        refs, frames=(*refs.frames, frame), frame=[len(refs.frames), *refs.frame[1:]], offset=[0, *refs.offset[1:]]
    )
    forgery.sections[0].refs = changed
    refused(stage, forgery.write(stage))


def test_a_good_frame_in_a_pack_of_its_own(stage: PackStage, forgery: Forgery) -> None:
    """The test above would fail for such a frame."""
    refs = forgery.sections[0].refs
    (frame,) = store_pack(stage, stage.key(), [(compress(b"a secret"), 8)])
    forgery.root = replace(forgery.root, uses={**forgery.root.uses, frame.pack: PackUse(frame.stored, frame.raw, frame.raw)})
    forgery.sections[0].refs = replace(
        refs, frames=(*refs.frames, frame), frame=[len(refs.frames), *refs.frame[1:]], offset=[0, *refs.offset[1:]]
    )
    assert (stage.restore(forgery.write(stage)) / "a" / "file").read_bytes() == b"a secret"


# ── sections and roots ────────────────────────────────────────────────────────────────────────────────────────────────


def in_three(forgery: Forgery) -> Forgery:
    """The same rows in three sections: files of the first two have one block each."""
    rows, refs = forgery.sections[0].rows, forgery.sections[0].refs
    cuts = (0, 3, 6, len(rows))
    assert [row.path for row in rows] == [b".", b"a", b"a/file", b"a/link", b"a/pipe", b"b", b"c", b"large", b"z"]
    blocks = (0, 1, 2, len(refs.frame))
    forgery.sections = [
        ForgedSection(
            rows[cuts[part] : cuts[part + 1]],
            replace(
                refs,
                frame=list(refs.frame[blocks[part] : blocks[part + 1]]),
                offset=list(refs.offset[blocks[part] : blocks[part + 1]]),
                digests=refs.digests if part == 2 else (),
            ),
        )
        for part in range(3)
    ]
    return forgery


def test_the_cuts_do_not_change_the_root(stage: PackStage, forgery: Forgery) -> None:
    before = forgery.root.manifest_root
    root = in_three(forgery).write(stage)
    assert (root.manifest_root, len(root.sections)) == (before, 3)
    stage.restore(root)


SECTIONS: dict[str, tuple[int, ...]] = {
    "missing at the end": (0, 1),
    "missing in the middle": (0, 2),
    "missing at the beginning": (1, 2),
    "reordered": (0, 2, 1),
    "twice": (0, 1, 1, 2),
    "reversed": (2, 1, 0),
}


@pytest.mark.parametrize("order", SECTIONS.values(), ids=SECTIONS)
def test_sections_that_do_not_have_the_root(stage: PackStage, forgery: Forgery, order: tuple[int, ...]) -> None:
    """The root hash that the controller knows is that of the whole home."""
    whole = forgery.root.manifest_root
    pieces = in_three(forgery).sections
    forgery.sections = [pieces[number] for number in order]
    refused_unread(stage, forgery.write(stage, manifest_root=whole))


@pytest.mark.parametrize("order", [(0, 2, 1), (0, 1, 1, 2), (2, 1, 0), (1, 2)])
def test_sections_that_are_out_of_order(stage: PackStage, forgery: Forgery, order: tuple[int, ...]) -> None:
    """Even if the controller knows this root hash."""
    pieces = in_three(forgery).sections
    forgery.sections = [pieces[number] for number in order]
    refused_unread(stage, forgery.write(stage))


@pytest.mark.parametrize("field", ["entries", "files", "home_bytes"])
def test_wrong_counts(stage: PackStage, forgery: Forgery, field: str) -> None:
    right = getattr(forgery.root, field)
    for wrong in (right + 1, right - 1):
        refused_unread(stage, forgery.write(stage, **{field: wrong}))


def test_a_section_with_another_number_of_entries(stage: PackStage, forgery: Forgery) -> None:
    root = forgery.write(stage)
    (section,) = root.sections
    root = replace(root, sections=[replace(section, entries=section.entries + 1)], entries=root.entries + 1)
    store_root(stage, root)
    refused_unread(stage, root)


DOCUMENTS: dict[str, Callable[[Frame], Frame]] = {
    "outside of its pack": lambda frame: replace(frame, start=1 << 40),
    "longer than its pack": lambda frame: replace(frame, stored=1 << 40),
    "one that claims to be huge": lambda frame: replace(frame, raw=1 << 40),
    "one that claims to be longer": lambda frame: replace(frame, raw=frame.raw + 1),
    "one that claims to be shorter": lambda frame: replace(frame, raw=frame.raw - 1),
    "empty": lambda frame: replace(frame, raw=0),
    "another part of the pack": lambda frame: replace(frame, start=frame.start + 1, stored=frame.stored - 1),
}


@pytest.mark.parametrize("change", DOCUMENTS.values(), ids=DOCUMENTS)
@pytest.mark.parametrize("which", ["tree", "refs"])
def test_bad_documents(stage: PackStage, forgery: Forgery, change: Callable[[Frame], Frame], which: str) -> None:
    root = forgery.write(stage)
    (section,) = root.sections
    stored = getattr(section, which)
    changed = replace(stored, frame=change(stored.frame))
    root = replace(root, sections=[replace(section, **{which: changed})])
    store_root(stage, root)
    refused(stage, root)


def test_a_tree_in_place_of_refs(stage: PackStage, forgery: Forgery) -> None:
    root = forgery.write(stage)
    (section,) = root.sections
    root = replace(root, sections=[replace(section, tree=section.refs, refs=section.tree)])
    store_root(stage, root)
    refused_unread(stage, root)


def test_a_document_bomb(stage: PackStage, forgery: Forgery) -> None:
    root = forgery.write(stage)
    (section,) = root.sections
    (frame,) = store_pack(stage, stage.key(), [(compress(bytes(1 << 26)), section.tree.frame.raw)])
    bomb = replace(section.tree, frame=frame)
    root = replace(
        root,
        sections=[replace(section, tree=bomb)],
        uses={**root.uses, frame.pack: PackUse(frame.stored, frame.raw, frame.raw)},
    )
    store_root(stage, root)
    refused_unread(stage, root)


def test_the_root_of_another_archive(stage: PackStage, forgery: Forgery) -> None:
    """An old archive cannot be put in the place of a new one: its key is in it."""
    old, new = forgery.write(stage), forgery.write(stage)
    stage.root(new.key).write_bytes(stage.root(old.key).read_bytes())
    refused_unread(stage, new)


def test_another_home_under_the_right_key(stage: PackStage, forgery: Forgery) -> None:
    """The controller knows the root hash, so a whole other archive is refused, too."""
    right = forgery.write(stage)
    forgery.change(b"z", mode=b"777")
    wrong = forgery.write(stage)
    store_root(stage, replace(wrong, op_id=right.op_id))
    refused_unread(stage, right)


def test_packs_of_another_workspace(stage: PackStage, forgery: Forgery) -> None:
    """Packs are only looked for in the workspace of the archive."""
    foreign = PackStage(stage.path / "foreign", workspace_id="0d1f8a3c-0000-4000-8000-000000000002")
    foreign.store.rmdir()
    foreign.store.symlink_to(stage.store)
    root = replace(forgery.write(stage), workspace_id=foreign.workspace_id)
    store_root(foreign, root)
    home = foreign.home()
    with pytest.raises(Failed) as caught:
        foreign.restore(root, home)
    assert caught.value.code in (Code.ARCHIVE_NOT_FOUND, Code.CHECKSUM_MISMATCH)
    assert not list(home.iterdir())


def test_the_root_of_another_workspace(stage: PackStage, forgery: Forgery) -> None:
    root = forgery.write(stage)
    key = ArchiveKey("0d1f8a3c-0000-4000-8000-000000000002", root.op_id)
    target = stage.store / root_path(key)
    target.parent.mkdir(parents=True)
    target.write_bytes(stage.root(root.key).read_bytes())
    refused_unread(stage, _named(root, key))


def _named(root: Root, key: ArchiveKey) -> Root:
    """Only the key and the manifest root of it are used."""
    return replace(root, workspace_id=key.workspace_id, op_id=key.op_id)


def test_a_root_bomb(stage: PackStage, forgery: Forgery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "MOST_ROOT_BYTES", 1 << 20)
    root = forgery.write(stage)
    stage.root(root.key).write_bytes(compress(b" " * (1 << 26) + b"{}"))
    home = stage.home()
    with pytest.raises(Failed, match="longer than"):
        stage.restore(root, home)


def test_a_row_of_a_tree_with_another_number_of_columns(stage: PackStage, forgery: Forgery) -> None:
    """A field with a NUL byte would move the fields after it."""
    forgery.change(b"z", target=b"x\0y")
    refused_unread(stage, forgery.write(stage))
    assert len(Row._fields) == 10
