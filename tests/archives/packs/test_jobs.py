"""Format 2 in real jobs: several processes, users without rights, and jobs that are stopped."""

import os
import signal
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.archives.packs.stage import many_files, rot
from tests.support.archive_jobs import (
    HOME,
    KEY,
    OTHER,
    ArchiveWorld,
    JobResult,
    as_nobody,
    as_nobody_argv,
    run,
    run_as_nobody,
    running,
)
from tests.support.waiting import wait_until
from torpor.archives.packs.layout import pack_path, root_path
from torpor.archives.packs.root import fetch_root
from torpor.archives.packs.stat_cache import cache_file
from torpor.archives.store import ArchiveStore, StoreAddress
from torpor.archives.tree import tree_root
from torpor.domain.errors import Code
from torpor.domain.records import ProvenArchive
from torpor.ports import ArchiveBase, HomeJob

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def packed(world: ArchiveWorld, result: JobResult) -> ProvenArchive:
    return world.archives.proven(KEY, HOME, 7, result.result)


def pack_job(world: ArchiveWorld, base: ProvenArchive | None = None) -> HomeJob:
    if base is None:
        return world.archives.pack_job(KEY, HOME, 7, format=2)
    trusted = {pack.name: pack.store_version for pack in base.packs}
    known = ArchiveBase(base.archive.key, base.archive.manifest_root, trusted, frozenset())
    return world.archives.pack_job(OTHER, HOME, 7, format=2, base=known)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def stop_in_the_middle(job: HomeJob, home: Path, stop: signal.Signals) -> None:
    """Its processes end with it."""
    with running(job, home) as process:
        children = children_of(process.pid)
        assert len(children) >= 2
        process.send_signal(stop)
        process.wait(10)
    wait_until(lambda: not any(map(is_running, children)), within_s=10)


@pytest.fixture
def large(world: ArchiveWorld) -> Path:
    home = world.home()
    for number in range(4):
        (home / f"big{number}").write_bytes(os.urandom(8 << 20))
    return home


def test_progress_counts_files(world: ArchiveWorld) -> None:
    """Also of a home without any content."""
    home, again = world.home(), world.home("again")
    for number in range(6000):
        (home / f"{number:04}").touch()
    (home / "link").hardlink_to(home / "0000")
    ended = run(pack_job(world), home)
    first = packed(world, ended)
    restored = run(world.archives.unpack_job(KEY, first.archive.manifest_root), again)
    for lines in (ended.lines[:-1], restored.lines[:-1]):
        steps = [line["files"] for line in lines]
        assert steps
        assert steps == sorted(steps)
        assert all(0 < done <= total == 6001 for done, total in steps)
        assert all(line["progress"] == [0, 0] for line in lines)


@needs_root
def test_not_root(reachable_for_all: ArchiveWorld) -> None:
    """A user without rights on files of others, with unreadable files and directories of its own."""
    world = reachable_for_all
    home = world.home()
    again, third = world.home("again"), world.home("third")
    for path in (home, again, third, world.path):
        os.chown(path, 65534, 65534)
    as_nobody(f"make_nasty(Path({str(home)!r}))")
    root = tree_root(home)
    first = packed(world, run_as_nobody(pack_job(world), home))
    assert tree_root(home) == root, "what was lent was given back"
    for _ in range(2):
        run_as_nobody(world.archives.unpack_job(KEY, first.archive.manifest_root), again).result  # noqa: B018
    assert tree_root(again) == root
    assert (again / "secret").stat().st_uid == 65534
    assert stat.S_IMODE((again / "closed").stat().st_mode) == 0
    second = packed(world, run_as_nobody(pack_job(world, first), again))
    assert second.archive.manifest_root == first.archive.manifest_root
    assert tree_root(again) == root
    run_as_nobody(world.archives.unpack_job(OTHER, second.archive.manifest_root), third).result  # noqa: B018
    assert tree_root(third) == root


@needs_root
@pytest.mark.parametrize("mode", [0o311, 0])
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
    first = packed(world, run_as_nobody(pack_job(world), home))
    run_as_nobody(world.archives.unpack_job(KEY, first.archive.manifest_root), again).result  # noqa: B018
    assert tree_root(again) == tree_root(home)
    assert (again / "twin").samefile(again / "closed" / "deeper" / "inside")


@needs_root
def test_not_root_and_holes_in_an_unreadable_file(reachable_for_all: ArchiveWorld) -> None:
    """They are not read: 100 GB of zeros would take minutes."""
    world = reachable_for_all
    home, again = world.home(), world.home("again")
    with (home / "sparse").open("wb") as file:
        file.truncate(100 << 30)
        file.seek(7 << 30)
        file.write(b"island")
    (home / "sparse").chmod(0)
    for path in (world.path, home, again, home / "sparse"):
        os.chown(path, 65534, 65534)
    first = packed(world, run_as_nobody(pack_job(world), home))
    run_as_nobody(world.archives.unpack_job(KEY, first.archive.manifest_root), again).result  # noqa: B018
    restored = (again / "sparse").stat()
    assert (restored.st_size, stat.S_IMODE(restored.st_mode)) == (100 << 30, 0)
    with (again / "sparse").open("rb") as file:
        file.seek(7 << 30)
        assert file.read(7) == b"island\0"


@needs_root
def test_a_stopped_job_restores_file_modes(reachable_for_all: ArchiveWorld) -> None:
    world = reachable_for_all
    closed = world.home() / "closed"
    closed.mkdir()
    (closed / "big").write_bytes(os.urandom(30 << 20))
    for path in (world.path, world.home(), closed, closed / "big"):
        os.chown(path, 65534, 65534)
    closed.chmod(0o100)
    job = as_nobody_argv("sys.exit(torpor.archives.job.main(sys.argv))")
    with running(replace(pack_job(world), argv=job), world.home()) as process:
        assert closed.stat().st_mode & 0o777 == 0o500
        process.terminate()
        assert process.wait(5) == 128 + signal.SIGTERM
    assert closed.stat().st_mode & 0o777 == 0o100


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM])
def test_stopped_in_the_middle_and_begun_again(world: ArchiveWorld, large: Path, stop: signal.Signals) -> None:
    stop_in_the_middle(pack_job(world), large, stop)
    assert not (world.store / root_path(KEY)).exists()
    (large / "big0").write_bytes(b"changed since the first try")
    first = packed(world, run(pack_job(world), large))
    again = world.home("again")
    job = world.archives.unpack_job(KEY, first.archive.manifest_root)
    stop_in_the_middle(job, again, stop)
    assert not cache_file(again).exists()
    run(job, again).result  # noqa: B018
    assert tree_root(again) == tree_root(large)


def test_unfinished_packs_are_removed(world: ArchiveWorld, large: Path) -> None:
    """Of a job that is stopped by the job itself, of a job that was killed by the next one."""
    folder = world.store / HOME.workspace_id / "packs"
    folder.mkdir(parents=True)
    (folder / f"{KEY.op_id}-{'0' * 64}#1").write_bytes(b"half")
    (folder / f"{OTHER.op_id}-{'0' * 64}#2").write_bytes(b"half")
    stop_in_the_middle(pack_job(world), large, signal.SIGTERM)
    assert not list(folder.glob("*#*"))
    (folder / f"{KEY.op_id}-{'1' * 64}#1").write_bytes(b"half")
    stop_in_the_middle(pack_job(world), large, signal.SIGKILL)
    (folder / f"{OTHER.op_id}-{'1' * 64}#1").write_bytes(b"half")
    packed(world, run(pack_job(world), large))
    assert not list(folder.glob("*#*"))


def test_a_process_of_a_job_that_is_killed_is_an_error(world: ArchiveWorld, large: Path) -> None:
    """As the kernel does it when memory is short."""
    with running(pack_job(world), large) as process:
        first, *others = children_of(process.pid)
        os.kill(first, signal.SIGKILL)
        assert process.stdout
        lines = process.stdout.read().splitlines()
        assert process.wait(10) == 1
    assert b"ended unexpectedly" in lines[-1]
    assert Code.INTERNAL.value.encode() in lines[-1]
    wait_until(lambda: not any(map(is_running, others)), within_s=10)
    assert not (world.store / root_path(KEY)).exists()


def test_damaged_refs_are_found_while_many_changed_files_are_read(tmp_path: Path) -> None:
    """Several processes answer after the damage is found, and their answers name the same pack."""
    world = ArchiveWorld(tmp_path / "world")  # on a disk, where the stat cache is used
    first = packed(world, run(pack_job(world), many_files(world.home())))
    again = world.home("again")
    run(world.archives.unpack_job(KEY, first.archive.manifest_root), again).result  # noqa: B018
    root = fetch_root(ArchiveStore(StoreAddress.parse(f"file://{world.store}")), KEY)
    assert root is not None
    for section in root.sections:
        frame = section.refs.frame
        rot(world.store / pack_path(KEY.workspace_id, frame.pack), frame.start + frame.stored // 2)
    for file in again.glob("d*/f*[02468]"):
        file.write_text(f"changed {file.name}")
    second = packed(world, run(pack_job(world, first), again))
    third = world.home("third")
    run(world.archives.unpack_job(OTHER, second.archive.manifest_root), third).result  # noqa: B018
    assert tree_root(third) == tree_root(again)


@pytest.mark.parametrize("formats", [(1, 2), (2, 1)])
def test_an_operation_that_continues_with_another_format_keeps_its_finished_archive(
    world: ArchiveWorld, formats: tuple[int, int]
) -> None:
    """The setting was changed, or Torpor was upgraded, after the archive was written and before the database knew it."""
    home, again = world.home(), world.home("again")
    (home / "note").write_text("mine")
    first, second = (run(world.archives.pack_job(KEY, HOME, 7, format=one), home) for one in formats)
    assert packed(world, second).archive == packed(world, first).archive
    assert packed(world, second).format == formats[0]
    restored = run(world.archives.unpack_job(KEY, packed(world, second).archive.manifest_root), again)
    assert restored.result["files"] == 1
    assert (again / "note").read_text() == "mine"


@pytest.mark.anyio
@pytest.mark.parametrize("formats", [(1, 2), (2, 1)])
async def test_an_empty_archive_keeps_its_format(world: ArchiveWorld, formats: tuple[int, int]) -> None:
    first, second = [await world.archives.create_empty(KEY, HOME, 0, format=one) for one in formats]
    assert second.archive == first.archive
    assert second.format == formats[0]
    assert await world.archives.manifest_root(KEY) == second.archive.manifest_root
