"""Workspaces and jobs get the CPU by their weight, with cgroups and without."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contracts.runtime_contract import FENCE, unheard, until_ready
from tests.runtimes.conftest import Machine, MakeMachine
from torpor.ports import Home, HomeJob
from torpor.runtimes.ability import CPU
from torpor.runtimes.process.cgroups import Cgroups, Hierarchies, find
from torpor.runtimes.process.cpu_weight import ARCHIVE_WEIGHT, nice_of
from torpor.testing.defaults import process_options

WITHOUT_CGROUPS = process_options(grace_s=2.0, cgroups=False)
SCHEDULES_SESSIONS = Path("/proc/self/autogroup").exists()
# Writes its cgroup and the nice values of itself and its session when they are as expected, or after ten seconds.
TELLS = """
import json, os, time
def read(name):
    return open(name).read().strip() if os.path.exists(name) else ""
def told():
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    groups = {line.split(":", 2)[2] for line in read("/proc/self/cgroup").splitlines() if "/torpor-" in line}
    shares = [read("ROOT" + path + "/" + file) for path in groups for file in ("cpu.weight", "cpu.shares")]
    return {"nice": nice, "session": read("/proc/self/autogroup"), "shares": "".join(shares)}
def is_nice(seen):
    return seen["nice"] == NICE and seen["session"].endswith(" nice NICE" if seen["session"] else "")
end = time.monotonic() + 10
while not is_nice(told()) and time.monotonic() < end:
    time.sleep(0.01)
print(json.dumps({"result": told()}))
"""


def test_a_weight_becomes_the_nice_value_that_comes_closest() -> None:
    assert [nice_of(weight) for weight in (1, 10, 50, 100, 200, 10_000)] == [19, 15, 8, 5, 2, 0]


# ── groups, on plain files ────────────────────────────────────────────────────────────────────────────────────────────


def a_parent(root: Path) -> Path:
    parent = root / "torpor-tag"
    parent.mkdir(parents=True)
    for directory in (root, parent):
        (directory / "cgroup.subtree_control").write_text("")
        (directory / "cgroup.procs").write_text("")
    return parent


@pytest.mark.parametrize(("weight", "shares"), [(1, "10"), (10, "102"), (100, "1024"), (10_000, "102400")])
def test_a_group_has_its_weight(tmp_path: Path, weight: int, shares: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    first = Cgroups(Hierarchies(1, one, one, cpu=one / "cpu"), "tag")
    second = Cgroups(Hierarchies(2, two, two, cpu=two), "tag")
    for root in (one, one / "cpu", two):
        a_parent(root)
    for groups in (first, second):
        groups.prepare()
        assert groups.has_weights
    assert first.make("job", None, cpu_weight=weight) == [
        one / "torpor-tag" / "job" / "cgroup.procs",
        one / "cpu" / "torpor-tag" / "job" / "cgroup.procs",
    ]
    assert second.make("job", None, cpu_weight=weight) == [two / "torpor-tag" / "job" / "cgroup.procs"]
    assert (one / "cpu" / "torpor-tag" / "job" / "cpu.shares").read_text() == shares
    assert (two / "torpor-tag" / "job" / "cpu.weight").read_text() == str(weight)
    assert "+cpu" in (two / "torpor-tag" / "cgroup.subtree_control").read_text()


def test_a_machine_that_refuses_weights_still_has_limits(tmp_path: Path) -> None:
    a_parent(tmp_path)
    groups = Cgroups(Hierarchies(1, tmp_path, tmp_path, cpu=tmp_path / "gone"), "tag")
    groups.check()
    with pytest.raises(OSError, match="not writable"):
        groups.check_weights()
    groups.prepare()
    assert not groups.has_weights
    assert groups.make("one", None, cpu_weight=50) == [tmp_path / "torpor-tag" / "one" / "cgroup.procs"]


def test_the_cpu_controller_is_found_if_it_is_mounted(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    names = {"memory": "memory", "pids": "pids", "cpu": "cpu,cpuacct"}
    for name in names:
        (tmp_path / name).mkdir()
    mounts.write_text("".join(f"31 30 0:27 / {tmp_path / name} rw - cgroup cgroup rw,{of}\n" for name, of in names.items()))
    assert find(mounts) == Hierarchies(1, tmp_path / "memory", tmp_path / "pids", tmp_path / "cpu")
    (tmp_path / "cpu").rmdir()
    assert find(mounts) == Hierarchies(1, tmp_path / "memory", tmp_path / "pids", None)


# ── a real runtime ────────────────────────────────────────────────────────────────────────────────────────────────────


def where_weights_are() -> tuple[Path, float]:
    """The root of the groups with weights, and the file content for each weight, as in the kernel."""
    found = find()
    assert found is not None
    assert found.cpu is not None
    return found.cpu, 1 if found.version == 2 else 10.24


def weight_of(groups: str) -> int:
    """The weight of a process with this /proc/PID/cgroup."""
    root, per_weight = where_weights_are()
    paths = [line.split(":", 2)[2].lstrip("/") for line in groups.splitlines()]
    files = [root / path / name for path in paths for name in ("cpu.weight", "cpu.shares")]
    (own,) = {file.read_text() for file in files if file.exists() and "torpor-" in str(file)}
    return round(int(own) / per_weight)


async def weighing(machine: Machine, weight: int) -> Home:
    serving = machine.serving(await machine.home())
    home = await machine.up(replace(serving, program=replace(serving.program, cpu_weight=weight)))
    await until_ready(machine, home)
    return home


def telling(nice: int, *, writes: bool = False) -> HomeJob:
    found = find()
    tells = TELLS.replace("NICE", str(nice)).replace("ROOT", str(found.cpu) if found else "")
    return HomeJob((sys.executable, "-S", "-c", tells), b"", writes=writes)


@pytest.mark.anyio
@pytest.mark.parametrize("weight", [100, 300])
async def test_a_workspace_has_the_weight_of_its_template(machine: Machine, weight: int) -> None:
    await machine.must(CPU)
    home = await weighing(machine, weight)
    assert weight_of((await machine.sh(home, "cat /proc/self/cgroup")).stdout.decode()) == weight
    assert (await machine.sh(home, "nice")).stdout == b"0\n"


@pytest.mark.anyio
async def test_an_archive_has_a_tenth_of_the_weight_of_a_restore(machine: Machine) -> None:
    await machine.must(CPU)
    _, per_weight = where_weights_are()
    packed = await machine.runtime.run_at_home(await machine.home(), telling(nice_of(ARCHIVE_WEIGHT)), FENCE, unheard)
    assert int(str(packed["shares"])) == int(ARCHIVE_WEIGHT * per_weight)
    empty = Home((await machine.home()).workspace_id, 2)
    await machine.runtime.ensure_volume(empty, FENCE)
    restored = await machine.runtime.run_at_home(empty, telling(nice_of(100), writes=True), FENCE, unheard)
    assert int(str(restored["shares"])) == int(100 * per_weight)


@pytest.mark.anyio
async def test_without_cgroups_workspaces_and_archives_have_a_nice_value(make_machine: MakeMachine) -> None:
    machine = make_machine(WITHOUT_CGROUPS)
    await machine.process.start()
    for weight in (50, 100):
        home = await weighing(machine, weight)
        assert (await machine.sh(home, "nice")).stdout.decode() == f"{nice_of(weight)}\n"
        assert nice_of(weight) > 0
    packed = await machine.runtime.run_at_home(await machine.home(), telling(15), FENCE, unheard)
    assert packed["nice"] == nice_of(ARCHIVE_WEIGHT) == 15
    assert str(packed["session"]).endswith(" nice 15" if SCHEDULES_SESSIONS else "")
    ability = next(one for one in await machine.process.abilities() if one.what == CPU)
    assert not ability.confined
    assert "nice values only" in ability.how
