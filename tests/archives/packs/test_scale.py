"""Large homes: many entries, many links, large holes. Memory and time do not grow with them without a limit."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.archives.packs.stage import PackStage, base_of
from tests.support.archive_jobs import HOME, KEY, OTHER, ArchiveWorld, run
from torpor.archives.packs import home_pass, pack_writer, restore, side_file
from torpor.archives.packs.content_places import ContentPlaces
from torpor.archives.packs.hashes import BLOCK_BYTES
from torpor.archives.packs.link_table import LinkTable
from torpor.archives.packs.side_file import SideFile, zeros
from torpor.archives.tree import sorted_names, tree_root
from torpor.domain.records import ProvenArchive
from torpor.ports import ArchiveBase, HomeJob

MOST_MEMORY_MB = 300


def many_files(home: Path, count: int) -> None:
    folder = home / "many"
    folder.mkdir()
    directory = os.open(folder, os.O_RDONLY)
    for number in range(count):
        file = os.open(f"file-number-{number:07}.txt", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=directory)
        os.write(file, b"content of file number %d\n" % number)
        os.close(file)
    os.close(directory)


def memory_mb(pid: int) -> float:
    """What a process and its children have for themselves; shared pages are divided."""
    total = 0.0
    try:
        for one in (pid, *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()[1:])
            total += sum(int(lines[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem")) / 1024
    except (OSError, KeyError):
        pass  # it ends
    return total


def run_watched(job: HomeJob, home: Path) -> tuple[dict[str, object], float]:
    """The result, and the peak of the memory."""
    with subprocess.Popen([*job.argv, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        peak = 0.0
        is_over = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not is_over.wait(0.1):
                peak = max(peak, memory_mb(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            process.stdin.write(job.stdin)
            process.stdin.close()
            last = process.stdout.read().splitlines()[-1]
        finally:
            is_over.set()
            watcher.join()
            process.kill()
    result: dict[str, object] = json.loads(last)["result"]
    return result, peak


def base_for(archive: ProvenArchive) -> ArchiveBase:
    trusted = {pack.name: pack.store_version for pack in archive.packs}
    return ArchiveBase(archive.archive.key, archive.archive.manifest_root, trusted, frozenset())


@pytest.mark.parametrize("count", [10_000, pytest.param(1_000_000, marks=pytest.mark.deep)])
def test_many_files_in_one_directory(world: ArchiveWorld, count: int) -> None:
    home, again = world.home(), world.home("again")
    many_files(home, count)
    result, peak_mb = run_watched(world.archives.pack_job(KEY, HOME, 7, format=2), home)
    assert peak_mb < MOST_MEMORY_MB
    first = world.archives.proven(KEY, HOME, 7, result)
    assert first.files == count
    _, peak_mb = run_watched(world.archives.unpack_job(KEY, first.archive.manifest_root), again)
    assert peak_mb < MOST_MEMORY_MB
    last = again / "many" / f"file-number-{count - 1:07}.txt"
    assert last.read_text() == f"content of file number {count - 1}\n"
    result, peak_mb = run_watched(world.archives.pack_job(OTHER, HOME, 7, format=2, base=base_for(first)), again)
    assert peak_mb < MOST_MEMORY_MB
    second = world.archives.proven(OTHER, HOME, 7, result)
    assert second.archive.manifest_root == first.archive.manifest_root


def test_a_large_sparse_file_takes_seconds_and_no_space(world: ArchiveWorld) -> None:
    home, again = world.home(), world.home("again")
    with (home / "disk").open("wb") as file:
        file.truncate(20 << 30)
        file.seek(10 << 30)
        file.write(b"island")
    began_s = time.monotonic()
    first = world.archives.proven(KEY, HOME, 7, run(world.archives.pack_job(KEY, HOME, 7, format=2), home).result)
    run(world.archives.unpack_job(KEY, first.archive.manifest_root), again).result  # noqa: B018
    assert time.monotonic() - began_s < 30
    shown = (again / "disk").stat()
    assert (shown.st_size, shown.st_blocks * 512 <= BLOCK_BYTES) == (20 << 30, True)
    with (again / "disk").open("rb") as file:
        file.seek((10 << 30) - 1)
        assert file.read(8) == b"\0island\0"
    assert first.size_bytes < 10_000_000


def test_names_are_listed_in_order_in_parts(tmp_path: Path) -> None:
    names = [f"{number * 7919 % 100:02}{'é' * (number % 3)}" for number in range(100)]
    for name in [*names, os.fsdecode(b"\xff\xfe"), "a\nb"]:
        (tmp_path / name).touch()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        expected = sorted((path.name for path in tmp_path.iterdir()), key=os.fsencode)
        for at_once in (1, 2, 7, 50, 51, 101, 102, 103, 1000):
            assert list(sorted_names(fd, at_once)) == expected, at_once
    finally:
        os.close(fd)


def test_a_directory_that_is_listed_in_parts(stage: PackStage, monkeypatch: pytest.MonkeyPatch) -> None:
    home = stage.home()
    many_files(home, 300)
    monkeypatch.setattr("torpor.archives.tree.MOST_NAMES", 17)
    first = stage.archive(home)
    assert first.root.files == 300
    monkeypatch.undo()
    assert tree_root(stage.restore(first.root)) == tree_root(home)


def longest_queue(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    longest = 0
    drain = home_pass.HomePass._drain

    def watched(one: home_pass.HomePass) -> None:
        nonlocal longest
        longest = max(longest, len(one._queue))
        drain(one)

    monkeypatch.setattr(home_pass.HomePass, "_drain", watched)
    return lambda: longest


def test_entries_without_content_do_not_wait_without_end_for_a_file(stage: PackStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first file waits in a batch that is not full, and all entries after it wait for the file."""
    home = stage.home()
    (home / "000").write_text("content")
    for number in range(1, 300):
        (home / f"{number:03}").touch()
    monkeypatch.setattr(home_pass, "MOST_QUEUED", 20)
    longest = longest_queue(monkeypatch)
    first = stage.archive(home)
    assert longest() <= 20
    assert tree_root(stage.restore(first.root)) == tree_root(home)


def test_equal_files_are_restored_in_parts(stage: PackStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them have their content in one frame."""
    home = stage.home()
    for number in range(1000):
        (home / f"{number:04}").write_text("the same")
    first = stage.archive(home)
    assert len(first.root.sections) > 1
    monkeypatch.setattr(restore, "FILES_AT_ONCE", 100)
    most = 0
    send = restore._HomeFiller._send

    def watched(one: restore._HomeFiller, verb: str, *arguments: Any) -> None:
        nonlocal most
        if verb == "small_files":
            (frames,) = arguments
            most = max(most, sum(len(frame.files) for frame in frames))
        send(one, verb, *arguments)

    monkeypatch.setattr(restore._HomeFiller, "_send", watched)
    again = stage.restore(first.root)
    assert tree_root(again) == tree_root(home)
    assert most <= max(section.entries for section in first.root.sections) + 100 < 1000


def test_packs_and_frames_have_a_limited_number_of_contents(stage: PackStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_writer, "MOST_CONTENTS", 100)
    monkeypatch.setattr(pack_writer, "MOST_CONTENTS_OF_FRAME", 10)
    home = stage.home()
    many_files(home, 1000)
    first = stage.archive(home)
    assert len(first.packs) >= 10
    again = stage.restore(first.root)
    assert tree_root(again) == tree_root(home)
    assert stage.archive(again, base_of(first)).root.manifest_root == first.root.manifest_root


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are put into files at once."""
    monkeypatch.setattr(side_file, "MOST_BYTES_IN_MEMORY", 0)
    monkeypatch.setattr(side_file, "BUFFER_BYTES", 100)


@pytest.mark.usefixtures("on_disk")
def test_tables_on_disk(stage: PackStage) -> None:
    home = stage.home()
    many_files(home, 500)
    for number in range(500):
        os.link(home / "many" / f"file-number-{number:07}.txt", home / f"link {number}")
    first = stage.archive(home)
    again = stage.restore(first.root)
    assert tree_root(again) == tree_root(home)
    (again / "many" / "file-number-0000007.txt").write_text("changed")
    second = stage.archive(again, base_of(first))
    assert second.root.manifest_root == stage.archive(again).root.manifest_root
    assert [path.name for path in home.parent.iterdir()] == ["home"], "files of tables have no names"


@pytest.mark.usefixtures("on_disk")
def test_tables_without_a_place_on_disk(tmp_path: Path) -> None:
    nowhere = (tmp_path / "missing",)
    table = zeros("q", 1000, nowhere)
    table[999] = -5
    assert list(table[997:]) == [0, 0, -5]
    side = SideFile(nowhere)
    starts = [side.add(b"%04d" % number) for number in range(1000)]
    assert [side.read(start, 4) for start in starts] == [b"%04d" % number for number in range(1000)]


@pytest.mark.usefixtures("on_disk")
def test_pieces_across_the_end_of_the_file(tmp_path: Path) -> None:
    side = SideFile((tmp_path,))
    for number in range(50):
        side.add(b"%03d" % number)
    whole = b"".join(b"%03d" % number for number in range(50))
    for start in range(len(whole)):
        assert side.read(start, 40) == whole[start : start + 40]


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_first_paths_of_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on_disk: bool) -> None:
    if is_on_disk:
        monkeypatch.setattr(side_file, "MOST_BYTES_IN_MEMORY", 0)
    links = LinkTable((tmp_path,))
    for device in (1, 2):
        for inode in range(1, 20_000, 7):
            assert links.first_path(device, inode << 20, b"%d/%d" % (device, inode)) == b"%d/%d" % (device, inode)
    for device in (1, 2):
        for inode in range(1, 20_000, 7):
            assert links.first_path(device, inode << 20, b"later") == b"%d/%d" % (device, inode)


@pytest.mark.usefixtures("on_disk")
def test_places_of_contents_on_disk(tmp_path: Path) -> None:
    places = ContentPlaces((tmp_path,), slots=4)
    for number in range(5000):
        places.add(b"file", number, b"%d" % number, number - 1)
    assert [places.find(b"file", number, b"%d" % number) for number in range(5000)] == list(range(-1, 4999))
