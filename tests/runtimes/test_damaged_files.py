"""Garbage in the small files beside a home prevents no purge, raises no unexpected error, and loses no home."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contracts.runtime_contract import FENCE, marker_of, unheard
from tests.runtimes.conftest import Machine
from tests.support.builders import workspace
from torpor.archives.archives import HomeArchives
from torpor.control.effect_executor import EffectExecutor
from torpor.domain.effects import DropHome, Effect, MakeHome, Remove, Start, Stop
from torpor.domain.errors import Code, Failed
from torpor.domain.records import NOTHING_SEEN, EffectDone, EffectFailed, ObservedVolume, Report, StaleEpoch
from torpor.ports import Fence, Home, Limits, Program

pytestmark = pytest.mark.anyio

FILES = ("marker.json", "opened.json", "epoch.json")


def _directory(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("x")


CONTENTS: dict[str, Callable[[Path], object]] = {
    "a word for a number": lambda path: path.write_text('{"epoch": "abc", "revision": "abc", "generation": "abc"}'),
    "a list for a number": lambda path: path.write_text('{"epoch": [], "revision": {}, "generation": null}'),
    "a huge number": lambda path: path.write_text(f'{{"epoch": {10**40}, "revision": {10**40}}}'),
    "an endless number": lambda path: path.write_text(f'{{"epoch": {"9" * 4000}}}'),
    "infinity": lambda path: path.write_text('{"epoch": Infinity, "revision": NaN, "generation": 1e400}'),
    "no object": lambda path: path.write_text("[1]"),
    "deep": lambda path: path.write_text("[" * 4000),
    "torn": lambda path: path.write_text('{"epoch"'),
    "nothing": lambda path: path.write_text(""),
    "bytes": lambda path: path.write_bytes(bytes(range(256))),
    "large": lambda path: path.write_text(" " * 100_000),
    "a directory": _directory,
    "a pipe": lambda path: os.mkfifo(path),
    "a loop": lambda path: path.symlink_to(path.name),
}


def spoil(volume: Path, name: str, content: str) -> None:
    (volume / name).unlink(missing_ok=True)
    CONTENTS[content](volume / name)


def hands(machine: Machine) -> EffectExecutor:
    archives = HomeArchives((machine.data / "archives").as_uri())
    return EffectExecutor(machine.runtime, archives, lambda _: Program("t", ("sleep", "60")), Limits(512 << 20, 128))


async def as_the_holder(machine: Machine, home: Home, effect: Effect) -> Report:
    """Like the controller that holds the row: it takes the row again if a later epoch was seen."""
    epoch = FENCE.epoch
    for _ in range(3):
        row = workspace(id=home.workspace_id, epoch=epoch)
        async with asyncio.timeout(20):
            report = await hands(machine).carry_out(row, effect, Fence("op", epoch), unheard)
        if not isinstance(report, StaleEpoch):
            return report
        epoch = report.seen + 1
    raise AssertionError(f"overtaken again and again: {report}")


async def spoiled(machine: Machine, name: str, content: str) -> Home:
    """A complete home with garbage beside it, after a restart of Torpor: its epoch is not in memory."""
    home = await machine.home()
    spoil(machine.process.paths.volume(home), name, content)
    machine.process._volumes._epochs.clear()
    return home


@pytest.mark.parametrize("name", FILES)
async def test_damaged_files_do_not_prevent_a_purge(machine: Machine, name: str) -> None:
    for content in CONTENTS:
        home = await spoiled(machine, name, content)
        assert await as_the_holder(machine, home, Remove()) == EffectDone(), content
        assert (await machine.runtime.observe()).of(home.workspace_id) == NOTHING_SEEN, content


@pytest.mark.parametrize("name", ["opened.json", "epoch.json"])
async def test_damaged_files_beside_a_marked_home_do_not_prevent_a_start(machine: Machine, name: str) -> None:
    for content in CONTENTS:
        if (name, content) == ("opened.json", "a directory"):
            continue  # if the revision cannot be recorded, the start fails
        home = await spoiled(machine, name, content)
        assert await as_the_holder(machine, home, Start(1, 4)) == EffectDone(), content
        # From now on the opened revision is known again.
        assert await as_the_holder(machine, home, Stop()) == EffectDone(), content
        refused = await as_the_holder(machine, home, DropHome(1, archived_revision=3))
        assert isinstance(refused, EffectFailed), content
        assert refused.context["code"] == Code.VOLUME_REOPENED
        assert await as_the_holder(machine, home, DropHome(1, archived_revision=4)) == EffectDone(), content


@pytest.mark.parametrize("is_opened", [True, False], ids=["opened", "never opened"])
async def test_a_home_without_its_metadata_files_is_kept_beside_the_next_generations(machine: Machine, is_opened: bool) -> None:
    home = await machine.home()
    if is_opened:
        assert await as_the_holder(machine, home, Start(1, 4)) == EffectDone()
        assert await as_the_holder(machine, home, Stop()) == EffectDone()
    volume = machine.process.paths.volume(home)
    (volume / "home" / "note").write_text("precious")
    await machine.lose_small_files(home)
    for generation in (2, 3):
        (seen,) = [one for one in (await machine.runtime.observe()).of(home.workspace_id).volumes if one.generation == 1]
        assert seen == ObservedVolume(1, None, is_illegible=True)
        # The rules never request this, and the runtime ignores such a request.
        assert await as_the_holder(machine, home, MakeHome(generation, frozenset({1}))) == EffectDone()
        assert (volume / "home" / "note").read_text() == "precious"


async def test_a_volume_that_was_never_marked_is_discarded_with_its_content(machine: Machine) -> None:
    home = await machine.home()
    half, empty = Home(home.workspace_id, 2), Home(home.workspace_id, 3)
    await machine.runtime.ensure_volume(half, FENCE)
    await machine.runtime.run_at_home(half, machine.filling(), FENCE, unheard)
    machine.process.paths.volume(empty).mkdir()  # killed before it had any content
    assert await as_the_holder(machine, home, MakeHome(4, frozenset({2, 3}))) == EffectDone()
    seen = (await machine.runtime.observe()).of(home.workspace_id).volumes
    assert {volume.generation for volume in seen} == {1, 4}


async def test_an_unreadable_opened_file_is_reported_with_what_to_do(machine: Machine) -> None:
    home = await spoiled(machine, "opened.json", "torn")
    refused = await as_the_holder(machine, home, DropHome(1, archived_revision=4))
    assert isinstance(refused, EffectFailed)
    assert str(machine.process.paths.volume(home) / "opened.json") in refused.message
    assert "start the workspace once, or purge it" in refused.message


async def test_an_unreadable_epoch_admits_only_a_controller_that_can_take_the_row_again(machine: Machine) -> None:
    home = await spoiled(machine, "epoch.json", "a word for a number")
    runtime = machine.runtime
    refused: list[int] = []
    for epoch in (5, 5, 4):  # a controller that lost the row cannot take it again, so its epoch never rises
        with pytest.raises(Failed) as refusal:
            await runtime.ensure_no_volume(home, Fence("op", epoch), archived_revision=None)
        assert refusal.value.code is Code.STALE_EPOCH
        refused.append(int(str(refusal.value.context["seen"])))
    assert (await runtime.observe()).of(home.workspace_id).volumes == {ObservedVolume(1, marker_of(home))}
    await runtime.admit(home.workspace_id, Fence("op", refused[0] + 1))
    machine.process._volumes._epochs.clear()
    with pytest.raises(Failed):  # and the epoch is on disk again
        await runtime.ensure_no_volume(home, Fence("op", refused[0]), archived_revision=None)
