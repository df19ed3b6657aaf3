"""The user of a workspace and the owner of its home without a sandbox."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.requirements import must_have
from torpor.domain.errors import Hopeless
from torpor.inside.closed_folders import closed_above
from torpor.ports import Home
from torpor.runtimes.host_programs import ToolFailed
from torpor.runtimes.process import ProcessRuntime, user_access
from torpor.runtimes.process.paths import runtime_paths
from torpor.runtimes.process.users import user_of
from torpor.testing.defaults import process_options

# The kernel refuses mounts to a process without this capability, as in most containers.
WITHOUT_MOUNTS = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")

# Runs one workspace from start to stop; prints its output and the runtime's ability about users as one line of JSON.
LIFE = """
import asyncio, json, sys
from pathlib import Path
from torpor.domain.records import Marker
from torpor.ports import Container, Fence, Home, Limits, Program
from torpor.runtimes.process import ProcessRuntime
from torpor.testing.defaults import process_options

data, workspace_id, script = sys.argv[1:]
fence = Fence("op", 1)

async def live():
    options = process_options(grace_s=2.0, bubblewrap=False, own_network=False, cgroups=False)
    runtime = ProcessRuntime(Path(data), options=options)
    await runtime.start()
    try:
        home = Home(workspace_id, 1)
        await runtime.ensure_volume(home, fence)
        await runtime.mark_volume(home, Marker(workspace_id, 1, ""), fence)
        program = Program("t", ("{python}", "-c", "import time; time.sleep(60)"))
        await runtime.ensure_running(Container(home, 1, program, Limits(1 << 29, 64)), fence, print)
        done = await runtime.execute(workspace_id, ["sh", "-c", script], b"")
        user = next(ability for ability in await runtime.abilities() if ability.what == "user")
        print(json.dumps([done.stdout.decode(), done.stderr.decode(), user.confined, user.how, user.remedy]))
    finally:
        await runtime.close()
asyncio.run(live())
"""


def live(data: Path, workspace_id: str, script: str, *prefix: str) -> list[object]:
    argv = [*prefix, sys.executable, "-c", LIFE, str(data), workspace_id, script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said: list[object] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="torpor-test-"))
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize(
    ("modes", "closed"),
    [((0o755, 0o711), None), ((0o755, 0o700), "one/two"), ((0o700, 0o755), "one"), ((0o710, 0o700), "one")],
)
def test_the_topmost_folder_that_others_cannot_enter_is_named(folder: Path, modes: tuple[int, int], closed: str | None) -> None:
    folder.chmod(0o755)
    (folder / "one" / "two" / "home").mkdir(mode=0o700, parents=True)
    for name, mode in zip(("one", "one/two"), modes, strict=True):
        (folder / name).chmod(mode)
    assert closed_above(str(folder / "one" / "two" / "home")) == (closed and str(folder / closed))


def test_a_trial_leaves_no_files(folder: Path) -> None:
    must_have(os.getuid() == 0, "root, to become another user")
    asyncio.run(user_access.refusal(runtime_paths(folder / "data")))
    assert list(folder.iterdir()) == []


def test_a_home_follows_the_user_that_runs_it(folder: Path) -> None:
    """A separate user, then a machine that cannot mount, then one that can."""
    must_have(os.getuid() == 0 and shutil.which("setpriv"), "root and setpriv, to give up a capability")
    workspace_id = str(uuid.uuid4())
    own = user_of(workspace_id, own=True)

    def owners() -> set[int]:
        inner = runtime_paths(folder).volume(Home(workspace_id, 1)) / "home"
        return {path.lstat().st_uid for path in (inner, *inner.rglob("*"))}

    said, errors, has_own, how, _ = live(folder, workspace_id, "id -u; mkdir deep; echo 1 > deep/file")
    must_have(has_own, str(how))
    assert (said, errors, owners()) == (f"{own}\n", "", {own})

    said, errors, has_own, how, remedy = live(folder, workspace_id, "id -u; echo 2 > deep/more", *WITHOUT_MOUNTS)
    assert (said, errors, owners()) == ("0\n", "", {0})
    assert not has_own
    assert str(how).startswith("workspaces run as root, because separate users do not work: cannot show its folders")
    assert "bubblewrap" in str(remedy)

    said, errors, *_ = live(folder, workspace_id, "id -u; echo 3 >> deep/file; echo 3 >> deep/more")
    assert (said, errors, owners()) == (f"{own}\n", "", {own})


@pytest.fixture
def full_disk(folder: Path) -> Iterator[Path]:
    """A data directory on a file system that has no free inodes."""
    must_have(os.getuid() == 0, "root, to mount a file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "nr_inodes=2", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    must_have(mounted.returncode == 0, f"the right to mount: {mounted.stderr}")
    runtime_paths(folder).lock.touch()
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.anyio
async def test_workspaces_do_not_run_as_root_because_the_disk_is_full(full_disk: Path) -> None:
    runtime = ProcessRuntime(full_disk, options=process_options(bubblewrap=False, own_network=False))
    for ask in (runtime.abilities, runtime.start):
        with pytest.raises(Hopeless, match=r"could not find out how workspaces can be confined.*No space left"):
            await ask()
    await runtime.close()


def test_a_trial_that_does_not_end_in_time_is_no_refusal(folder: Path) -> None:
    must_have(os.getuid() == 0, "root, to become another user")
    with pytest.raises(ToolFailed, match="did not finish"):
        asyncio.run(user_access.refusal(runtime_paths(folder / "data"), within_s=0.001))
    assert list(folder.iterdir()) == []


@pytest.mark.anyio
async def test_a_trial_that_was_killed_is_no_refusal(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like the kernel when it has no memory left."""
    must_have(os.getuid() == 0, "root, to become another user")
    (tmp_path / "setpriv").write_text("#!/bin/sh\nkill -KILL $$\n")
    (tmp_path / "setpriv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ToolFailed):
        await user_access.refusal(runtime_paths(folder / "data"))


@pytest.mark.anyio
async def test_a_file_system_without_owners_is_a_refusal(folder: Path) -> None:
    must_have(os.getuid() == 0 and shutil.which("setpriv"), "root and setpriv, to give up a capability")
    script = "import asyncio, sys; from pathlib import Path; from torpor.runtimes.process import paths, user_access;"
    script += "print(asyncio.run(user_access.refusal(paths.runtime_paths(Path(sys.argv[1])))))"
    without_owners = ("setpriv", "--bounding-set", "-chown", "--inh-caps", "-chown")
    argv = [*without_owners, sys.executable, "-c", script, str(folder)]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=60, check=True)
    assert "Operation not permitted" in done.stdout
