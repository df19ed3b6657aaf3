"""Any home survives from archive to archive: restored, changed, and archived again with what did not change taken over."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.archives.packs.stage import PackStage, base_of
from tests.archives.test_round_trip import grow, names, times, trees
from tests.support.archive_jobs import roomy
from torpor.archives.packs import section_builder, sections
from torpor.archives.tree import tree_root

Change = tuple[str, int, int, bytes]
"""What is done, to which entry, with which other entry, and with which content."""


@pytest.fixture(params=["sections as they are", "tiny sections"], scope="module", autouse=True)
def cuts(request: pytest.FixtureRequest) -> Iterator[None]:
    """With tiny sections a small home has many, so changes meet their borders."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "tiny sections":
            patch.setattr(section_builder, "LEAST_ENTRIES", 2)
            patch.setattr(section_builder, "MOST_ENTRIES", 5)
            patch.setattr(sections, "CUT_ONE_IN", 3)
        yield


def entries_below(home: Path) -> list[Path]:
    found = [Path(above, name) for above, folders, files in os.walk(home) for name in (*folders, *files)]
    return sorted(found)


def apply(home: Path, change: Change) -> None:
    """Changes that are not possible with these entries do nothing."""
    verb, which, other, content = change
    found = [home, *entries_below(home)]
    path, second = found[which % len(found)], found[other % len(found)]
    folder = second if second.is_dir() and not second.is_symlink() else second.parent
    new = folder / f"new-{which % 7}"
    with contextlib.suppress(OSError):
        match verb:
            case "write" if path.is_file() and not path.is_symlink():
                path.write_bytes(content)
            case "sneak" if path.is_file() and not path.is_symlink():
                # Other content of the same length and with the same mtime: only the ctime tells.
                seen = path.stat()
                path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
                os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
            case "swap" if path.is_file() and second.is_file() and path != second:
                aside = home / "aside"
                path.rename(aside)
                second.rename(path)
                aside.rename(second)
            case "create" if not new.is_fifo():
                new.write_bytes(content)
            case "folder":
                new.mkdir()
            case "remove" if path != home:
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            case "rename" if path != home:
                path.rename(new)
            case "link":
                os.link(path, new, follow_symlinks=False)
            case "symlink":
                new.symlink_to(os.fsdecode(content.replace(b"\0", b"0")[:50] or b"x"))
            case "chmod" if not path.is_symlink():
                path.chmod(0o700 | which % 0o1000)
            case "time":
                os.utime(path, ns=(which, which * 1_000_003), follow_symlinks=False)
            case "attribute":
                os.setxattr(path, f"user.{which % 3}", content, follow_symlinks=False)
            case "no attribute":
                os.removexattr(path, f"user.{which % 3}", follow_symlinks=False)
            case "hole" if path.is_file() and not path.is_symlink():
                os.truncate(path, path.stat().st_size + 70_000)


VERBS = (
    "write",
    "sneak",
    "swap",
    "create",
    "folder",
    "remove",
    "rename",
    "link",
    "symlink",
    "chmod",
    "time",
    "attribute",
    "no attribute",
    "hole",
)
changes = st.tuples(st.sampled_from(VERBS), st.integers(0, 1000), st.integers(0, 1000), st.binary(max_size=300))
homes = st.tuples(st.just("dir"), st.dictionaries(names, trees, max_size=8), st.integers(0o700, 0o777), times)


@settings(max_examples=12)
@given(homes, st.lists(changes, max_size=12), st.lists(st.lists(changes, max_size=5), min_size=1, max_size=3))
def test_any_home_from_archive_to_archive(
    tree: tuple[str, object, int, int], before: list[Change], generations: list[list[Change]]
) -> None:
    with TemporaryDirectory(dir=roomy(), ignore_cleanup_errors=True) as directory:
        stage, whole = PackStage(Path(directory, "stage")), PackStage(Path(directory, "whole"))
        home = stage.home()
        home.rmdir()
        grow(home, tree)
        for change in before:
            apply(home, change)
        last = stage.archive(home)
        for generation in generations:
            again = stage.restore(last.root)
            assert tree_root(again) == tree_root(home)
            assert again.stat().st_mtime_ns == home.stat().st_mtime_ns
            home = again
            for change in generation:
                apply(home, change)
            last = stage.archive(home, base_of(last))
            # The archive of the same home without a base, in another store, is the same.
            assert last.root.manifest_root == whole.archive(home).root.manifest_root
        assert tree_root(stage.restore(last.root)) == tree_root(home)
