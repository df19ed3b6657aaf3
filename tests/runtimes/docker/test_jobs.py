"""Jobs at homes on a real Docker engine."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.contracts.runtime_contract import FENCE, a_home, marker_of, unheard
from tests.runtimes.docker.conftest import MakeRuntime
from tests.support import open_folder
from tests.support.container_engine import ContainerEngine
from tests.support.waiting import until
from torpor.archives.archives import HomeArchives
from torpor.archives.packs import stat_cache
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ArchiveKey
from torpor.kit import layout
from torpor.ports import Fence, Home, HomeJob
from torpor.runtimes.docker.runtime import DockerRuntime
from torpor.runtimes.object_labels import home_name

pytestmark = [pytest.mark.anyio, pytest.mark.both_engines]

WORDS = "import json, os, sys, time\nhome = sys.argv[1]\ndef say(**what): print(json.dumps(what), flush=True)\n"
COUNT = "open(home + '/runs', 'a').write('x')\n"
WAIT = "while not os.path.exists(home + '/go'): time.sleep(0.01)\n"
RUNS = "say(result={'runs': len(open(home + '/runs').read())})"


def python_job(code: str, *, writes: bool = False, stdin: bytes = b"") -> HomeJob:
    return HomeJob((*layout.python_argv(), "-c", WORDS + code), stdin, writes=writes)


async def ready(runtime: DockerRuntime) -> Home:
    home = a_home()
    await runtime.ensure_volume(home, FENCE)
    await runtime.mark_volume(home, marker_of(home), FENCE)
    return home


def files_of(engine: ContainerEngine, home: Home) -> Path:
    return engine.volumes / home_name(home) / "_data" / "workspace"


def jobs_of(engine: ContainerEngine, home: Home) -> list[str]:
    return engine.docker("ps", "--all", "--quiet", "--filter", f"name=job-{home_name(home)}").split()


@pytest.mark.parametrize("archive_format", [1, 2])
@pytest.mark.parametrize("job_image", [""], ids=["an image without files"])
async def test_a_home_is_archived_and_restored(
    engine: ContainerEngine, make_runtime: MakeRuntime, job_image: str, archive_format: int
) -> None:
    with open_folder.open_folder() as folder:
        store = folder / "store"
        store.mkdir()
        os.chown(store, 1000, 1000)
        runtime = make_runtime(job_image=job_image, job_paths=(str(store),))
        await runtime.start()
        archives = HomeArchives(f"file://{store}", python=layout.python_argv())
        await archives.world()
        for path in store.rglob("*"):
            os.chown(path, 1000, 1000)
        home = await ready(runtime)
        (files_of(engine, home) / "file").write_text("content")
        os.chown(files_of(engine, home) / "file", 1000, 1000)
        key = ArchiveKey(home.workspace_id, "a0000000-0000-4000-8000-000000000001")
        heard: list[int] = []
        result = await runtime.run_at_home(
            home,
            archives.pack_job(key, home, 0, format=archive_format),
            FENCE,
            lambda done, _total, _files=None: heard.append(done),
        )
        packed = archives.proven(key, home, 0, result)
        assert heard
        await runtime.ensure_no_volume(home, FENCE, archived_revision=0)
        again = Home(home.workspace_id, 2)
        await runtime.ensure_volume(again, FENCE)
        restored = await runtime.run_at_home(again, archives.unpack_job(key), FENCE, unheard)
        assert restored["manifest_root"] == packed.archive.manifest_root
        await runtime.mark_volume(again, marker_of(again, packed.archive.manifest_root), FENCE)
        assert (files_of(engine, again) / "file").read_text() == "content"
        assert (files_of(engine, again) / "file").stat().st_uid == 1000
        cached = files_of(engine, again).parent / ".torpor" / "cache" / "workspace.stat-cache"
        assert cached.exists() == (archive_format == 2 and stat_cache.is_used_at(files_of(engine, again)))
        assert jobs_of(engine, again) == []


async def test_a_job_that_reads_is_continued_by_the_next_controller(
    engine: ContainerEngine, make_runtime: MakeRuntime, runtime: DockerRuntime
) -> None:
    home = await ready(runtime)
    job = python_job(COUNT + WAIT + RUNS)
    begun = await runtime._jobs.begin((await runtime._homes.list()).of(home), job, FENCE)  # and then it is killed
    another = make_runtime()
    await another.start()
    continued = asyncio.ensure_future(another.run_at_home(home, job, Fence(FENCE.op_id, 2), unheard))
    await until(lambda: (files_of(engine, home) / "runs").exists())
    (files_of(engine, home) / "go").touch()
    assert await asyncio.wait_for(continued, 30) == {"runs": 1}
    assert begun not in jobs_of(engine, home)


async def test_a_job_that_has_ended_meanwhile_is_not_run_again(make_runtime: MakeRuntime, runtime: DockerRuntime) -> None:
    home = await ready(runtime)
    job = python_job(COUNT + RUNS)
    begun = await runtime._jobs.begin((await runtime._homes.list()).of(home), job, FENCE)
    await until(lambda: _has_ended(runtime, begun))
    another = make_runtime()
    await another.start()
    assert await another.run_at_home(home, job, FENCE, unheard) == {"runs": 1}


async def _has_ended(runtime: DockerRuntime, container: str) -> bool:
    facts = await runtime._engine.inspect_container(container)
    return facts is not None and facts["State"]["Status"] == "exited"


async def test_a_job_with_other_orders_is_ended_and_not_continued(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    home = await ready(runtime)
    old = await runtime._jobs.begin((await runtime._homes.list()).of(home), python_job(WAIT, stdin=b"old"), FENCE)
    assert await runtime.run_at_home(home, python_job(COUNT + RUNS), FENCE, unheard) == {"runs": 1}
    assert old not in jobs_of(engine, home)


async def test_a_job_that_writes_begins_again(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    home = a_home()
    await runtime.ensure_volume(home, FENCE)
    job = python_job(COUNT + "if os.path.getsize(home + '/runs') < 2: time.sleep(600)\n" + RUNS, writes=True)
    await runtime._jobs.begin((await runtime._homes.list()).of(home), job, FENCE)
    await until(lambda: (files_of(engine, home) / "runs").exists())
    assert await runtime.run_at_home(home, job, FENCE, unheard) == {"runs": 2}
    assert jobs_of(engine, home) == []


async def test_a_cancelled_job_may_clean_up(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    home = await ready(runtime)
    code = (
        "import signal\n"
        "def clean(*_): open(home + '/cleaned', 'w'); sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, clean)\nsay(progress=[1, 1])\n" + WAIT
    )
    begun = asyncio.Event()
    task = asyncio.ensure_future(runtime.run_at_home(home, python_job(code), FENCE, lambda *_: begun.set()))
    await asyncio.wait_for(begun.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (files_of(engine, home) / "cleaned").exists()
    assert jobs_of(engine, home) == []


async def test_a_volume_that_is_not_the_home_is_not_archived(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    home = await ready(runtime)
    (files_of(engine, home).parent / ".torpor" / "birth").write_text("another")
    with pytest.raises(Failed, match="is not this home") as refusal:
        await runtime.run_at_home(home, python_job(COUNT + RUNS), FENCE, unheard)
    assert refusal.value.code is Code.VOLUME_NOT_READY
    assert not (files_of(engine, home) / "runs").exists()


async def test_a_start_ends_the_jobs_of_its_workspace(engine: ContainerEngine, runtime: DockerRuntime) -> None:
    from tests.runtimes.docker.test_containers import SLEEPING, running_program

    home = await ready(runtime)
    task = asyncio.ensure_future(runtime.run_at_home(home, python_job(COUNT + WAIT), FENCE, unheard))
    await until(lambda: (files_of(engine, home) / "runs").exists())
    await runtime.ensure_running(running_program(home, *SLEEPING), FENCE, unheard)
    with pytest.raises(Failed):
        await asyncio.wait_for(task, 30)
    assert jobs_of(engine, home) == []
