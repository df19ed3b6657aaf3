"""The right processes end, and no others: on request, after an error, and after kill -9."""

# ruff: noqa: ASYNC220, ASYNC221, ASYNC240 - a test may block its event loop

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.contracts.runtime_contract import FENCE, container_of, marker_of, unheard, until_ended, until_ready
from tests.contracts.test_runtime_contract import PYTHON
from tests.runtimes.conftest import Machine, MakeMachine
from tests.support.waiting import until
from torpor.domain.errors import Hopeless, Unavailable
from torpor.ports import Fence, Home
from torpor.runtimes import host_programs
from torpor.runtimes.process import ProcessOptions, processes, supervisor
from torpor.runtimes.process.cgroups import find
from torpor.runtimes.process.paths import runtime_paths
from torpor.testing.defaults import process_options

pytestmark = pytest.mark.anyio

CONFINED = process_options(grace_s=1.0)
BARE = process_options(grace_s=1.0, bubblewrap=False, own_network=False, cgroups=False)
BOTH = pytest.mark.parametrize("options", [CONFINED, BARE], ids=["confined", "bare"])

# Forks twice, in a new session, ignores all signals that it can, and writes to a file in the home.
ESCAPEE = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
        while True:
            open('beat', 'w').write(str(time.time())); time.sleep(0.01)
    os._exit(0)
while True: time.sleep(1)
"""


async def beats(file: Path) -> bool:
    """Whether the file still grows."""
    before = file.read_text()
    for _ in range(25):
        await asyncio.sleep(0.02)
        if file.read_text() != before:
            return True
    return False


async def begins_to_beat(file: Path) -> None:
    await until(file.exists)


@BOTH
async def test_a_double_forked_process_is_stopped_with_the_container(
    make_machine: MakeMachine, options: ProcessOptions
) -> None:
    machine = make_machine(options)
    await machine.process.start()
    home = await machine.home()
    await machine.up(machine.running(home, (PYTHON, "-S", "-c", ESCAPEE)))
    file = machine.process.paths.volume(home) / "home" / "beat"
    await begins_to_beat(file)
    assert await beats(file)
    await machine.runtime.ensure_no_container(home.workspace_id, FENCE)
    assert not await beats(file)


@BOTH
async def test_a_double_forked_process_ends_with_the_program(make_machine: MakeMachine, options: ProcessOptions) -> None:
    machine = make_machine(options)
    await machine.process.start()
    home = await machine.home()
    await machine.up(
        machine.running(home, (PYTHON, "-S", "-c", ESCAPEE.replace("while True: time.sleep(1)", "time.sleep(0.5)")))
    )
    file = machine.process.paths.volume(home) / "home" / "beat"
    await until_ended(machine, home)
    assert file.exists()
    assert not await beats(file)


@BOTH
async def test_a_program_that_ignores_sigterm_is_killed_after_the_grace_period(
    make_machine: MakeMachine, options: ProcessOptions
) -> None:
    machine = make_machine(options)
    await machine.process.start()
    home = await machine.home()
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('up', 'w')\nwhile True: time.sleep(1)"
    await machine.up(machine.running(home, (PYTHON, "-S", "-c", script)))
    await begins_to_beat(machine.process.paths.volume(home) / "home" / "up")
    begun = time.monotonic()
    await machine.runtime.ensure_no_container(home.workspace_id, FENCE)
    assert 0.9 <= time.monotonic() - begun < 5


async def test_a_frozen_container_delays_neither_observation_nor_stop(make_machine: MakeMachine) -> None:
    machine = make_machine(process_options(grace_s=0.5, probe_s=0.5))
    await machine.process.start()
    home, other = await machine.up(), await machine.up()
    for record in machine.process.paths.records.glob("*.json"):
        first = processes.ProcessIdentity(**json.loads(record.read_bytes()))
        name = machine.process.paths.container(home.workspace_id).name
        if record.stem == name:
            for identity in processes.tree(first):
                os.kill(identity.pid, signal.SIGSTOP)
    begun = time.monotonic()
    survey = await machine.runtime.observe()
    assert time.monotonic() - begun < 2
    frozen, well = survey.of(home.workspace_id).container, survey.of(other.workspace_id).container
    assert frozen is not None
    assert not frozen.ready
    assert well is not None
    assert well.ready
    await machine.runtime.ensure_no_container(home.workspace_id, FENCE)
    assert await container_of(machine, home) is None


async def test_a_cancelled_start_leaves_no_container(machine: Machine) -> None:
    home = await machine.home()
    for delay in (0.0, 0.005, 0.02, 0.04, 0.08):
        start = asyncio.ensure_future(machine.runtime.ensure_running(machine.serving(home), FENCE, unheard))
        await asyncio.sleep(delay)
        start.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await start
        await machine.runtime.ensure_no_container(home.workspace_id, FENCE)
        assert await container_of(machine, home) is None
        assert not list(machine.process.paths.records.iterdir())
    await machine.up()


async def test_a_killed_agent_is_an_ended_container(machine: Machine) -> None:
    home = await machine.up()
    record = json.loads(next(machine.process.paths.records.glob("*.json")).read_bytes())
    os.kill(record["pid"], signal.SIGKILL)
    seen = await until_ended(machine, home)
    assert seen.ended is not None
    assert seen.ended.exit_code == 137
    await machine.runtime.ensure_running(machine.serving(home, 2), FENCE, unheard)
    await until_ready(machine, home)


async def test_a_cancelled_job_has_time_to_clean_up_and_is_then_killed(machine: Machine) -> None:
    home = await machine.home()
    inner = machine.process.paths.volume(home) / "home"
    polite = "import signal, time\ndef end(*_): open(home + '/aborted', 'w').close(); os._exit(0)\n"
    stubborn = "import signal, time\nend = signal.SIG_IGN\n"
    for code, within_s in ((polite, 1.9), (stubborn, 6.0)):
        begun = asyncio.Event()
        script = code + "signal.signal(signal.SIGTERM, end); say(progress=[1, 1]); time.sleep(60)"
        job = machine.python_job(script, writes=False)
        running = asyncio.ensure_future(machine.runtime.run_at_home(home, job, FENCE, lambda *_, begun=begun: begun.set()))
        await begun.wait()
        cancelled = time.monotonic()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert time.monotonic() - cancelled < within_s
        assert not processes.find_marked(f"{machine.process.paths.run.name}/job")
    assert (inner / "aborted").exists()


async def test_a_container_that_does_not_end_stays_observed_and_the_stop_times_out(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = await machine.up()
    monkeypatch.setattr(supervisor, "GONE_WITHIN_S", 0.2)
    monkeypatch.setattr(supervisor, "KILL_AGAIN_S", 0.05)

    async def in_vain(_: object) -> bool:
        return False

    with monkeypatch.context() as patch:
        patch.setattr(supervisor.Supervisor, "_end_tree", in_vain)
        with pytest.raises(Unavailable):
            await machine.runtime.ensure_no_container(home.workspace_id, FENCE)
        assert await container_of(machine, home) is not None
    await machine.runtime.ensure_no_container(home.workspace_id, FENCE)
    assert await container_of(machine, home) is None


# ── kill -9 ───────────────────────────────────────────────────────────────────────────────────────────────────────────

LIFE = """
import asyncio, json, sys
from pathlib import Path
from torpor.domain.records import Marker
from torpor.ports import Container, Fence, Home, HomeJob, Limits, Program
from torpor.runtimes.process import ProcessOptions, ProcessRuntime
data, options, workspace_id, program, beat = json.loads(sys.argv[1])
async def live():
    runtime = ProcessRuntime(Path(data), options=ProcessOptions(**options))
    await runtime.start()
    home, fence = Home(workspace_id, 1), Fence("op", 5)
    await runtime.ensure_volume(home, fence)
    await runtime.mark_volume(home, Marker(workspace_id, 1, ""), fence)
    await runtime.ensure_running(Container(home, 3, Program("t", tuple(program)), Limits(1 << 29, 99)), fence, print)
    job = HomeJob(("sh", "-c", 'while :; do date +%N > "$0/job"; sleep 0.01; done'), b"", writes=False)
    await runtime.run_at_home(home, job, fence, print)
asyncio.run(live())
"""


@BOTH
async def test_after_kill_9_the_next_start_ends_all_old_processes(
    make_machine: MakeMachine, data_dir: Path, options: ProcessOptions
) -> None:
    home = Home(str(uuid.uuid4()), 1)
    program = [PYTHON, "-S", "-c", ESCAPEE]
    given = json.dumps([str(data_dir), asdict(options), home.workspace_id, program, "beat"])
    torpor = subprocess.Popen([sys.executable, "-c", LIFE, given], env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    files = [runtime_paths(data_dir).volume(home) / "home" / name for name in ("beat", "job")]
    try:
        for file in files:
            await begins_to_beat(file)
        assert all([await beats(file) for file in files])
        # The agent would notice and end its processes, but this test is about the sweep.
        for record in runtime_paths(data_dir).records.glob("*.json"):
            for known in processes.tree(processes.ProcessIdentity(**json.loads(record.read_bytes()))):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the job starts short commands
                    if b"inside/start.py" in Path(f"/proc/{known.pid}/cmdline").read_bytes():
                        os.kill(known.pid, signal.SIGSTOP)
    finally:
        torpor.kill()
        torpor.wait()
    assert await beats(files[0])

    machine = make_machine(options)
    await machine.process.start()
    assert not any([await beats(file) for file in files])
    assert not processes.find_marked(machine.process.paths.run.name)
    assert (await machine.runtime.observe()).of(home.workspace_id).container is None
    leftovers = [name for _, name in socket.if_nameindex() if name.startswith(f"torp{machine.process.paths.tag}")]
    assert leftovers == []
    # The files beside the home remain.
    assert machine.process._volumes.opened(home) == 3
    fence = Fence("op-2", 5)
    await machine.runtime.ensure_running(machine.serving(home, 4), fence, unheard)
    await until_ready(machine, home)


async def test_a_second_runtime_in_the_same_data_directory_is_refused(machine: Machine, make_machine: MakeMachine) -> None:
    home = await machine.up()
    with pytest.raises(Hopeless):
        await make_machine().process.start()
    assert (await machine.sh(home, "echo well")).stdout == b"well\n"


async def test_a_foreign_process_with_a_recorded_pid_is_not_killed(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        known = processes.identify(stranger.pid)
        assert known is not None
        (tmp_path / "old.json").write_text(json.dumps(asdict(replace(known, start_time=known.start_time - 1))))
        (tmp_path / "boot.json").write_text(json.dumps(asdict(replace(known, boot="another"))))
        (tmp_path / "junk.json").write_text("{")
        processes.sweep(tmp_path)
        assert stranger.poll() is None
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "same.json").write_text(json.dumps(asdict(known)))
        processes.sweep(tmp_path)
        assert stranger.wait(5) == -signal.SIGKILL
    finally:
        stranger.kill()
        stranger.wait()


async def test_closing_removes_interfaces_rules_and_run_files(make_machine: MakeMachine) -> None:
    machine = make_machine()
    await machine.process.start()
    tag = machine.process.paths.tag
    await machine.up()
    await machine.process.close()
    assert not machine.process.paths.run.exists()
    assert not [name for _, name in socket.if_nameindex() if name.startswith(f"torp{tag}")]
    if os.getuid() == 0 and (iptables := host_programs.find("iptables")):
        for table in ("filter", "nat"):
            shown = subprocess.run([iptables, "-w", "5", "-t", table, "-S"], capture_output=True, check=False).stdout
            assert f"TORPOR-{tag.upper()}".encode() not in shown
    hierarchies = find()
    for root in hierarchies.roots if hierarchies else ():
        assert not (root / f"torpor-{tag}").exists()


def test_marker_of_has_the_workspace_and_the_generation() -> None:
    home = Home("a", 1)
    assert (marker_of(home).workspace_id, marker_of(home).generation) == ("a", 1)
