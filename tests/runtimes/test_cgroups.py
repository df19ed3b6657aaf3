"""Both versions of cgroups are found and written as the kernel requires. Version 2 is tested on plain files only."""

import subprocess
from pathlib import Path

import pytest

from torpor.ports import Limits
from torpor.runtimes.process.cgroups import Cgroups, Hierarchies, find

V1 = """\
30 23 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
32 30 0:28 / /sys/fs/cgroup/pids rw,nosuid - cgroup cgroup rw,pids
"""


def test_version_1_has_a_hierarchy_for_each_controller(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(V1)
    assert find(tmp_path / "mounts") == Hierarchies(1, Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/pids"))


@pytest.mark.parametrize(("controllers", "usable"), [("cpu memory pids", True), ("hugetlb", False)])
def test_version_2_counts_only_with_its_controllers(tmp_path: Path, controllers: str, usable: bool) -> None:
    (tmp_path / "cgroup.controllers").write_text(controllers)
    (tmp_path / "mounts").write_text(f"30 23 0:26 / {tmp_path} rw,nosuid - cgroup2 cgroup2 rw\n")
    assert find(tmp_path / "mounts") == (Hierarchies(2, tmp_path, tmp_path, tmp_path) if usable else None)


def test_without_cgroup_mounts_no_hierarchy_is_found(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("22 1 0:21 / /proc rw - proc proc rw\n")
    assert find(tmp_path / "mounts") is None


@pytest.mark.parametrize("processes", ["", "1\n"])
def test_the_check_changes_nothing_and_reports_what_the_kernel_would_refuse(tmp_path: Path, processes: str) -> None:
    files = {"cgroup.subtree_control": "cpu", "cgroup.type": "domain", "cgroup.procs": processes}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    cgroups = Cgroups(Hierarchies(2, tmp_path, tmp_path), "tag")
    if processes:
        with pytest.raises(OSError, match="contains processes"):
            cgroups.check()
    else:
        cgroups.check()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_a_reused_pid_is_not_killed(tmp_path: Path) -> None:
    group = tmp_path / "torpor-tag" / "one"
    group.mkdir(parents=True)
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        (group / "cgroup.procs").write_text(str(stranger.pid))
        assert not Cgroups(Hierarchies(2, tmp_path, tmp_path), "tag").end("one", within_s=0.1)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_group_of_version_2_gets_its_limits(tmp_path: Path) -> None:
    cgroups = Cgroups(Hierarchies(2, tmp_path, tmp_path), "tag")
    parent = tmp_path / "torpor-tag"
    parent.mkdir()
    for directory in (tmp_path, parent):
        (directory / "cgroup.subtree_control").write_text("cpu")
        (directory / "cgroup.procs").write_text("")
    cgroups.prepare()
    assert (parent / "cgroup.subtree_control").read_text() == "+memory +pids"
    doors = cgroups.make("one", Limits(memory_bytes=1 << 30, processes=99))
    assert doors == [parent / "one" / "cgroup.procs"]
    written = {path.name: path.read_text() for path in (parent / "one").iterdir()}
    assert written == {"pids.max": "99", "memory.max": str(1 << 30), "memory.swap.max": "0", "memory.oom.group": "0"}


@pytest.mark.parametrize(("cores", "quota"), [(0.5, "50000"), (3, "300000"), (0.001, "1000")])
def test_cores_are_a_quota_in_both_versions(tmp_path: Path, cores: float, quota: str) -> None:
    limits = Limits(memory_bytes=1 << 30, processes=9, cpu_cores=cores)
    for version in (1, 2):
        root = tmp_path / str(version)
        root.mkdir()
        (root / "torpor-tag").mkdir()
        cgroups = Cgroups(Hierarchies(version, root, root, root), "tag")
        cgroups.make("sized", limits)
        cgroups.make("plain", Limits(memory_bytes=1 << 30, processes=9))
        written = {path.name: path.read_text() for path in (root / "torpor-tag" / "sized").iterdir()}
        if version == 2:
            assert written["cpu.max"] == f"{quota} 100000"
        else:
            assert (written["cpu.cfs_period_us"], written["cpu.cfs_quota_us"]) == ("100000", quota)
        assert not [
            path for path in (root / "torpor-tag" / "plain").iterdir() if "quota" in path.name or path.name == "cpu.max"
        ]
