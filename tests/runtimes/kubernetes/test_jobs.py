"""Jobs at homes on a real cluster, and what the next controller does with them."""

import asyncio

import pytest

from tests.contracts.runtime_contract import FENCE, a_home, unheard
from tests.runtimes.docker.test_jobs import COUNT, RUNS, WAIT, python_job
from tests.runtimes.kubernetes.cluster_steps import files_of, jobs_of, ready
from tests.runtimes.kubernetes.conftest import InstalledCluster, MakeRuntime
from tests.support.waiting import until
from torpor.domain.errors import Code, Failed
from torpor.ports import Fence, Home, HomeJob
from torpor.runtimes.kubernetes.pod_state import ListedPod
from torpor.runtimes.kubernetes.runtime import KubernetesRuntime

pytestmark = pytest.mark.anyio

JOB_S = 120.0


async def begin(runtime: KubernetesRuntime, home: Home, job: HomeJob) -> ListedPod:
    """As a controller that is killed afterwards."""
    listed = (await runtime._homes.list()).of(home)

    async def check(pod: ListedPod) -> None:
        await runtime._check(listed, FENCE, pod)

    return await runtime._jobs.begin(listed, job, FENCE, check, unheard)


async def test_a_job_that_reads_is_continued_by_the_next_controller(
    installed: InstalledCluster, make_runtime: MakeRuntime, runtime: KubernetesRuntime
) -> None:
    home = await ready(runtime)
    job = python_job(COUNT + WAIT + RUNS)
    begun = await begin(runtime, home, job)
    another = make_runtime()
    await another.start()
    continued = asyncio.ensure_future(another.run_at_home(home, job, Fence(FENCE.op_id, 2), unheard))
    await until(lambda: (files_of(installed, home) / "runs").exists(), within_s=JOB_S)
    (files_of(installed, home) / "go").touch()
    assert await asyncio.wait_for(continued, JOB_S) == {"runs": 1}
    await runtime._pods.discard(begun, FENCE.epoch)  # what the first one would do if it were still there
    await until(lambda: jobs_of(installed, home) == [], within_s=JOB_S)


async def test_a_controller_that_was_replaced_does_not_end_the_job_of_the_next(
    installed: InstalledCluster, make_runtime: MakeRuntime, runtime: KubernetesRuntime
) -> None:
    home = await ready(runtime)
    job = python_job(COUNT + WAIT + RUNS)
    first = asyncio.ensure_future(runtime.run_at_home(home, job, FENCE, unheard))
    await until(lambda: jobs_of(installed, home) != [], within_s=JOB_S)
    await until(lambda: (files_of(installed, home) / "runs").exists(), within_s=JOB_S)
    another = make_runtime()
    await another.start()
    newer = Fence(FENCE.op_id, 2)
    await another.admit(home.workspace_id, newer)
    continued = asyncio.ensure_future(another.run_at_home(home, job, newer, unheard))

    async def is_adopted() -> bool:
        return any(job.epoch == 2 for job in (await another._homes.list()).of(home).jobs)

    await until(is_adopted, within_s=JOB_S)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    (files_of(installed, home) / "go").touch()
    assert await asyncio.wait_for(continued, JOB_S) == {"runs": 1}


async def test_a_job_that_has_ended_meanwhile_is_not_run_again(make_runtime: MakeRuntime, runtime: KubernetesRuntime) -> None:
    home = await ready(runtime)
    job = python_job(COUNT + RUNS)
    begun = await begin(runtime, home, job)
    await until(lambda: runtime._jobs._has_ended(begun), within_s=JOB_S)
    another = make_runtime()
    await another.start()
    assert await another.run_at_home(home, job, FENCE, unheard) == {"runs": 1}


async def test_a_job_with_other_orders_is_ended_and_not_continued(
    installed: InstalledCluster, runtime: KubernetesRuntime
) -> None:
    home = await ready(runtime)
    old = await begin(runtime, home, python_job(WAIT, stdin=b"old"))
    assert await runtime.run_at_home(home, python_job(COUNT + RUNS), FENCE, unheard) == {"runs": 1}
    assert not installed.exists("pod", old.name) or old.uid not in installed.kubectl("get", "pods", "--output", "yaml")


async def test_a_job_that_writes_begins_again_after_the_first_has_ended(
    installed: InstalledCluster, runtime: KubernetesRuntime
) -> None:
    home = a_home()
    await runtime.ensure_volume(home, FENCE)
    job = python_job(COUNT + "if os.path.getsize(home + '/runs') < 2: time.sleep(600)\n" + RUNS, writes=True)
    await begin(runtime, home, job)
    await until(lambda: (files_of(installed, home) / "runs").exists(), within_s=JOB_S)
    assert await runtime.run_at_home(home, job, FENCE, unheard) == {"runs": 2}


async def test_a_volume_that_is_not_the_home_is_never_read_as_an_empty_one(
    installed: InstalledCluster, runtime: KubernetesRuntime
) -> None:
    home = await ready(runtime)
    assert await runtime.run_at_home(home, python_job(COUNT + RUNS), FENCE, unheard) == {"runs": 1}
    volume = files_of(installed, home).parent
    volume.rename(volume.with_name("elsewhere"))
    volume.mkdir(mode=0o777)
    volume.chmod(0o777)
    with pytest.raises(Failed) as refusal:
        await runtime.run_at_home(home, python_job("say(result={'files': os.listdir(home)})"), FENCE, unheard)
    assert refusal.value.code is Code.VOLUME_NOT_READY
    assert "not this home" in refusal.value.message
    assert list(volume.iterdir()) == []


async def test_a_result_that_is_too_long_for_a_message_is_read_from_the_log(runtime: KubernetesRuntime) -> None:
    home = await ready(runtime)
    result = await runtime.run_at_home(home, python_job("say(result={'long': 'x' * 20000})"), FENCE, unheard)
    assert result == {"long": "x" * 20000}
