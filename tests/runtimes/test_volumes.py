"""Homes are complete, absent, or unreadable; volumes are removed."""

# ruff: noqa: ASYNC240 - a test may block its event loop

import asyncio
import errno
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.runtime_contract import FENCE, a_home, marker_of, unheard, until_ready
from tests.runtimes.conftest import Machine, MakeMachine
from tests.support.requirements import must_have
from tests.support.waiting import until
from torpor.domain.errors import Code, Failed, Unavailable
from torpor.domain.records import NOTHING_SEEN, ObservedVolume
from torpor.ports import Fence, Home
from torpor.runtimes.process.directory_tree import give_tree, remove_tree
from torpor.runtimes.process.paths import home_of, runtime_paths, volume_name
from torpor.runtimes.process.users import WANTED, pick, user_of
from torpor.runtimes.process.volumes import Volumes

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"workspace_id": "other", "generation": 1, "manifest_root": ""}'],
    ids=["empty", "torn", "odd", "foreign"],
)
async def test_a_foreign_or_invalid_marker_does_not_make_a_volume_ready(machine: Machine, content: str) -> None:
    home = await machine.home()
    (machine.process.paths.volume(home) / "marker.json").write_text(content)
    expected = ObservedVolume(1, None, is_illegible=True, has_home="other" not in content)
    assert (await machine.runtime.observe()).of(home.workspace_id).volumes == {expected}
    with pytest.raises(Failed) as refusal:
        await machine.runtime.ensure_running(machine.serving(home), FENCE, unheard)
    assert refusal.value.code is Code.VOLUME_NOT_READY


async def test_a_volume_whose_home_was_removed_is_not_ready(machine: Machine) -> None:
    home = await machine.home()
    (machine.process.paths.volume(home) / "home").rmdir()
    gone = ObservedVolume(1, None, is_illegible=True, has_home=False)
    assert (await machine.runtime.observe()).of(home.workspace_id).volumes == {gone}


def the_one_volume(tmp_path: Path) -> tuple[Volumes, Home]:
    volumes, home = Volumes(runtime_paths(tmp_path)), a_home()
    volumes.open_root()
    volumes.ensure(home, None)
    volumes.mark(home, marker_of(home))
    return volumes, home


def test_a_home_that_is_put_back_beside_a_bad_marker_is_observed_again(tmp_path: Path) -> None:
    volumes, home = the_one_volume(tmp_path)
    (runtime_paths(tmp_path).volume(home) / "marker.json").write_text("{")
    there = volumes.seen(home)
    volumes.home_path(home).rename(tmp_path / "aside")
    gone = volumes.seen(home)
    (tmp_path / "aside").rename(volumes.home_path(home))
    assert gone != there
    assert volumes.seen(home) == there


def test_an_empty_home_without_a_marker_is_reported_as_empty(tmp_path: Path) -> None:
    volumes, home = the_one_volume(tmp_path)
    (runtime_paths(tmp_path).volume(home) / "marker.json").unlink()
    assert volumes.seen(home).fault.endswith("marker.json, and the home's folder is empty")
    (volumes.home_path(home) / "note").write_text("x")
    assert volumes.seen(home).fault.endswith("marker.json")


def failing(name: str, below: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call fails for every path below this one."""
    genuine = getattr(os, name)

    def fail(path: Any, *words: Any, **more: Any) -> Any:
        if not isinstance(path, int) and Path(path).is_relative_to(below):
            raise OSError(number, os.strerror(number), str(path))
        return genuine(path, *words, **more)

    monkeypatch.setattr(os, name, fail)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["open", "listdir", "stat"])
def test_an_error_of_this_process_is_unavailable_and_no_fault_of_the_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    volumes, home = the_one_volume(tmp_path)
    volume = runtime_paths(tmp_path).volume(home)
    if call == "listdir":
        (volume / "marker.json").unlink()
    with monkeypatch.context() as patch:
        failing(call, volume, number, patch)
        with pytest.raises(Unavailable):
            volumes.all(None)
        if call == "open":
            with pytest.raises(Unavailable):
                volumes.admit(home.workspace_id, FENCE)
            with pytest.raises(Unavailable):
                volumes.opened(home)
    assert [one.has_home for one in volumes.all(None)[home.workspace_id]] == [True]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("calls", [("open", "listdir", "stat"), ("stat",)], ids=["the volume", "its home"])
def test_an_unreadable_folder_does_not_count_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: tuple[str, ...], number: int
) -> None:
    volumes, home = the_one_volume(tmp_path)
    with monkeypatch.context() as patch:
        for call in calls:
            failing(call, runtime_paths(tmp_path).volume(home), number, patch)
        seen = volumes.seen(home)
        assert seen == ObservedVolume(1, None, is_illegible=True, has_home=True)
        assert f"cannot be read: {runtime_paths(tmp_path).volume(home)}" in seen.fault
        assert os.strerror(number) in seen.fault
        with pytest.raises(Failed) as refusal:
            volumes.mark(home, marker_of(home))
        assert refusal.value.code is Code.VOLUME_CREATE_FAILED
    assert volumes.seen(home) == ObservedVolume(1, marker_of(home))


def test_a_partly_deleted_volume_is_never_observed(tmp_path: Path) -> None:
    volumes = Volumes(runtime_paths(tmp_path))
    volumes.open_root()
    home = a_home()
    volumes.ensure(home, None)
    volumes.mark(home, marker_of(home))
    (volumes.home_path(home) / "file").write_text("x")
    trashed = volumes.trash_path(home)
    volumes.move_to_trash(home, trashed)
    assert (trashed / "home" / "file").exists()  # no file is removed yet, but the volume is no longer listed
    assert volumes.all(None) == {}
    volumes.empty_trash()
    assert not trashed.exists()


async def test_the_trash_is_emptied_at_the_start(make_machine: MakeMachine) -> None:
    machine = make_machine()
    await machine.process.start()
    home = await machine.home()
    trashed = machine.process._volumes.trash_path(home)
    machine.process._volumes.move_to_trash(home, trashed)
    await machine.process.close()
    assert trashed.exists()
    await machine.process.start()
    await machine.process.close()
    assert not trashed.exists()


@pytest.mark.parametrize("interruption", ["an error", "a cancellation"])
@pytest.mark.parametrize("is_marked", [True, False], ids=["whole", "half-made"])
async def test_a_volume_in_the_trash_is_removed_after_an_interrupted_deletion(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, is_marked: bool, interruption: str
) -> None:
    home = await machine.home() if is_marked else a_home()
    await machine.runtime.ensure_volume(home, FENCE)
    renamed, released = asyncio.Event(), threading.Event()
    loop, fsync = asyncio.get_running_loop(), os.fsync

    def interrupted(descriptor: int) -> None:
        loop.call_soon_threadsafe(renamed.set)
        if interruption == "an error":
            raise OSError(errno.EIO, "a bad sector")
        released.wait()
        fsync(descriptor)

    removal = (
        machine.runtime.ensure_no_volume(home, FENCE, archived_revision=None)
        if is_marked
        else machine.runtime.ensure_no_half_made(home, FENCE)
    )
    monkeypatch.setattr(os, "fsync", interrupted)
    removing = asyncio.ensure_future(removal)
    await renamed.wait()
    if interruption == "a cancellation":
        removing.cancel()
    released.set()
    with pytest.raises((asyncio.CancelledError, Failed)):
        await removing
    assert (await machine.runtime.observe()).of(home.workspace_id) == NOTHING_SEEN
    await until(lambda: not list(machine.process.paths.trash.iterdir()))


def test_read_only_directories_are_removed(tmp_path: Path) -> None:
    inner = tmp_path / "tree" / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    (inner / "link").symlink_to("/")
    for path in (inner, inner.parent):
        path.chmod(0o500)
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def nest(top: Path, depth: int) -> None:
    """Deeper than the longest path, with a file and a link at each level."""
    top.mkdir(parents=True)
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.symlink("/etc", "link", dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.mkdir("deeper", dir_fd=here)
        below = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_deep_trees_in_the_trash_are_removed_and_one_failure_does_not_stop_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volumes = Volumes(runtime_paths(tmp_path))
    volumes.open_root()
    trash = runtime_paths(tmp_path).trash
    nest(trash / "deep", 3000)
    for name in ("bad", "good"):
        (trash / name).mkdir()
        (trash / name / "file").touch()
    rmdir = Path.rmdir

    def refuse_one(path: Path) -> None:
        if path.name == "bad":
            raise OSError(errno.EIO, "a bad sector", str(path))
        rmdir(path)

    monkeypatch.setattr(Path, "rmdir", refuse_one)
    volumes.empty_trash()
    assert [path.name for path in trash.iterdir()] == ["bad"]


def test_the_owner_of_a_tree_is_changed_completely_and_its_top_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    must_have(os.getuid() == 0, "root, to have several users")
    top = tmp_path / "home"
    nest(top, 3000)
    (top / "deeper" / "to-a-directory").symlink_to("/etc")
    before = Path("/etc").stat().st_uid
    chown = os.chown
    given: list[str] = []

    def interrupt(name: str, user: int, group: int, **more: Any) -> None:
        if len(given) == 100:
            raise OSError(errno.EIO, "interrupted")
        given.append(name)
        chown(name, user, group, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "chown", interrupt)
        with pytest.raises(OSError, match="interrupted"):
            give_tree(top, 4321)
    assert top.stat().st_uid == 0  # so that the next start repeats it
    give_tree(top, 4321)
    assert top.stat().st_uid == 4321
    for part in ("file", "link", "deeper", "deeper/to-a-directory", "/".join(["deeper"] * 300)):
        assert (top / part).lstat().st_uid == 4321
    assert Path("/etc").stat().st_uid == before
    remove_tree(top)
    assert not top.exists()


@pytest.mark.anyio
async def test_a_cancelled_start_does_not_wait_for_the_chown_of_a_large_home(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the deadline of `loops.stop` the process and all workspaces would end."""
    must_have(os.getuid() == 0, "root, to have several users")
    home = await machine.home()
    inner = machine.process.paths.volume(home) / "home"
    for number in range(100):
        (inner / f"{number}").touch()
    os.chown(inner, 4321, 4321)
    chown, given, is_at_it, goes_on = os.chown, [], threading.Event(), threading.Event()

    def slow(name: str, user: int, group: int, **more: Any) -> None:
        is_at_it.set()
        goes_on.wait(30)
        given.append(name)
        chown(name, user, group, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "chown", slow)
        starting = asyncio.create_task(machine.up(machine.serving(home)))
        await until(is_at_it.is_set)
        starting.cancel()
        await asyncio.sleep(0)
        goes_on.set()
        await asyncio.wait({starting})
    assert len(given) == 1
    assert inner.stat().st_uid == 4321, "the next start begins again"
    await machine.up(machine.serving(home))
    assert {path.stat().st_uid for path in inner.iterdir()} == {inner.stat().st_uid}


def test_a_volume_can_be_moved_to_the_trash_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volumes = Volumes(runtime_paths(tmp_path))
    volumes.open_root()
    homes = [a_home(), a_home()]
    for home in homes:
        volumes.ensure(home, None)
    mkdir = os.mkdir

    def full(path: Path, *words: int) -> None:
        if not Path(path).exists():
            raise OSError(errno.ENOSPC, "no space left", str(path))
        mkdir(path, *words)

    monkeypatch.setattr(os, "mkdir", full)
    trashed = volumes.trash_path(homes[0])
    volumes.move_to_trash(homes[0], trashed)
    assert trashed.exists()
    runtime_paths(tmp_path).trash.rename(tmp_path / "trash")
    with pytest.raises(Failed) as failure:
        volumes.move_to_trash(homes[1], volumes.trash_path(homes[1]))
    assert failure.value.code is Code.DISK_FULL


async def test_the_epoch_of_a_workspace_without_volumes_is_forgotten(machine: Machine) -> None:
    home = await machine.up()
    await machine.runtime.ensure_no_container(home.workspace_id, Fence("op", 9))
    assert machine.process._volumes._epochs == {home.workspace_id: 9}  # its volume exists
    await machine.runtime.ensure_no_volume(home, Fence("op", 9), archived_revision=None)
    await machine.runtime.ensure_no_container(a_home().workspace_id, Fence("op", 9))
    assert machine.process._volumes._epochs == {}
    assert len(machine.process._locks) == 0


@pytest.mark.parametrize("fate", ["gone", "empty", "other", "unmounted"])
async def test_a_missing_or_foreign_volume_root_is_unavailable(machine: Machine, fate: str) -> None:
    home = await machine.home()
    where = machine.process.paths
    aside = machine.data / "aside"
    where.volumes.rename(aside)
    match fate:
        case "empty":
            where.volumes.mkdir()
        case "other":
            shutil.copytree(aside, where.volumes)
            where.identity.write_text("another disk\n")
        case "unmounted":
            where.volumes.write_text("not even a directory")
        case _:
            pass
    with pytest.raises(Unavailable):
        await machine.runtime.observe()
    with pytest.raises(Unavailable):
        await machine.runtime.ensure_no_volume(home, FENCE, archived_revision=None)


async def test_a_volume_root_that_is_missing_at_the_start_is_not_created_again(make_machine: MakeMachine) -> None:
    machine = make_machine()
    await machine.process.start()
    home = await machine.home()
    await machine.process.close()
    aside = machine.data / "aside"
    machine.process.paths.volumes.rename(aside)
    await machine.process.start()
    with pytest.raises(Unavailable):
        await machine.runtime.observe()
    aside.rename(machine.process.paths.volumes)
    assert (await machine.runtime.observe()).of(home.workspace_id).volumes == {ObservedVolume(1, marker_of(home))}


async def test_opened_revision_and_epoch_survive_a_restart(make_machine: MakeMachine) -> None:
    machine = make_machine()
    await machine.process.start()
    home = await machine.home()
    await machine.runtime.ensure_running(machine.silent(home, revision=7), Fence("op", 5), unheard)
    await machine.process.close()
    again = make_machine()
    await again.process.start()
    with pytest.raises(Failed) as refusal:
        await again.runtime.ensure_no_volume(home, Fence("op", 4), archived_revision=None)
    assert refusal.value.code is Code.STALE_EPOCH
    with pytest.raises(Failed) as refusal:
        await again.runtime.ensure_no_volume(home, Fence("op", 5), archived_revision=6)
    assert refusal.value.code is Code.VOLUME_REOPENED
    await again.runtime.ensure_no_volume(home, Fence("op", 5), archived_revision=7)
    assert (await again.runtime.observe()).of(home.workspace_id) == NOTHING_SEEN


async def test_an_unreadable_opened_file_prevents_deletion(machine: Machine) -> None:
    home = await machine.home()
    (machine.process.paths.volume(home) / "opened.json").write_text("{")
    with pytest.raises(Failed) as refusal:
        await machine.runtime.ensure_no_volume(home, FENCE, archived_revision=99)
    assert refusal.value.code is Code.VOLUME_REOPENED


async def test_a_home_from_another_machine_gets_its_user_as_owner(machine: Machine) -> None:
    await machine.must("user")
    home = await machine.home()
    inner = machine.process.paths.volume(home) / "home"
    (inner / "deep").mkdir()
    (inner / "deep" / "file").write_text("x")
    (inner / "link").symlink_to("/etc/passwd")
    for path in (inner / "deep" / "file", inner / "deep", inner / "link", inner):
        os.chown(path, 4321, 4321, follow_symlinks=False)
    before = Path("/etc/passwd").stat().st_uid
    await machine.up(machine.serving(home))
    await until_ready(machine, home)
    assert {path.lstat().st_uid for path in (inner, *inner.rglob("*"))} == {user_of(home.workspace_id, own=True)}
    assert Path("/etc/passwd").stat().st_uid == before
    assert (await machine.sh(home, "cat deep/file && echo more >> deep/file")).exit_code == 0


async def test_deleting_ends_the_job_that_still_fills_it(machine: Machine) -> None:
    home = a_home()
    await machine.runtime.ensure_volume(home, FENCE)
    begun = asyncio.Event()
    job = machine.python_job("import time; say(progress=[1, 1]); time.sleep(60)", writes=True)
    filling = asyncio.ensure_future(machine.runtime.run_at_home(home, job, FENCE, lambda *_: begun.set()))
    await begun.wait()
    await machine.runtime.ensure_no_volume(home, FENCE, archived_revision=None)
    with pytest.raises(Failed):
        await asyncio.wait_for(filling, 5)


def test_volume_names_are_parsed_back() -> None:
    for generation in (1, 2, 12):
        home = a_home(generation)
        assert home_of(volume_name(home)) == home
    for name in ("lost+found", ".trash", "ws-x", "ws--home-1", "ws-A-home-1", "ws-a-home-x"):
        assert home_of(name) is None
    for bad in ("", "../x", "a/b", "A"):
        with pytest.raises(ValueError):
            volume_name(type(a_home())(bad, 1))


@pytest.mark.parametrize("mapped", [range(1 << 32), range(65536), range(30000), range(1000)], ids=len)
def test_the_user_of_a_workspace_is_constant(mapped: range) -> None:
    users = {pick(str(number), mapped) for number in range(200)}
    assert all(user in mapped and user > 0 for user in users)
    assert users == {pick(str(number), mapped) for number in range(200)}
    assert len(mapped) < 65536 or len(users) > 190
    if len(mapped) > WANTED.stop:
        assert all(user in WANTED for user in users)


async def test_the_marker_file_has_the_marked_values(machine: Machine) -> None:
    home = await machine.home()
    facts = json.loads((machine.process.paths.volume(home) / "marker.json").read_bytes())
    assert facts == {"workspace_id": home.workspace_id, "generation": 1, "manifest_root": ""}
