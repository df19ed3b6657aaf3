"""`torpor exec` on the real product: streams, signals, exit codes, waking, and flat memory."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.product import Product, product
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

MIB = 1 << 20
MOST_GROWTH = 48 * MIB
ORDINARY, LONG = 300 * MIB, 5 << 30


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(tmp_path_factory.mktemp("exec"), TORPOR_MAX_RUNNING_PER_USER="20") as running:
        running.ok("create", "nb", "--wait")
        yield running


def start(here: Product, *words: str, stdin: int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [here.command, "exec", *words],
        env=here.env(),
        cwd=here.data.parent,
        bufsize=0,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def memory_bytes(pid: int, what: str) -> int:
    status = Path("/proc", str(pid), "status").read_text(encoding="utf-8")
    return int(status.split(f"{what}:")[1].split()[0]) << 10


@contextlib.contextmanager
def flat_memory(here: Product) -> Iterator[None]:
    """The peak of the product's memory hardly grows meanwhile."""
    assert here.process is not None
    pid = here.process.pid
    Path("/proc", str(pid), "clear_refs").write_text("5", encoding="ascii")  # reset the peak
    before = memory_bytes(pid, "VmHWM")
    yield
    grown = memory_bytes(pid, "VmHWM") - before
    print(f"memory of the product: {before / MIB:.0f} MiB, grown by {grown / MIB:.1f} MiB")
    assert grown < MOST_GROWTH


def is_gone(here: Product, seconds: int) -> bool:
    """Whether no `sleep` of this many seconds runs inside."""
    search = f"cat /proc/[0-9]*/cmdline 2> /dev/null | tr '\\0' ' ' | grep -q 'sleep [{str(seconds)[0]}]{str(seconds)[1:]}'"
    return here.run("exec", "nb", "--no-stdin", "--", "sh", "-c", f"! {search}").returncode == 0


def test_streams_are_separate_and_the_exit_code_is_kept(here: Product) -> None:
    script = "cat; echo err >&2; exit 7"
    done = here.run("exec", "nb", "--", "sh", "-c", script, stdin=b"\0in\xff")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"\0in\xff", b"err\n")
    missing = here.run("exec", "nb", "--", "no-such-program")
    assert missing.returncode == 127
    assert b"no-such-program" in missing.stderr
    told = json.loads(here.run("exec", "nb", "--json", "--", "echo", "hi").stdout)
    assert told == {"exit_code": 0, "stdout": "aGkK", "stderr": ""}


def test_a_command_does_not_inherit_torpors_environment(here: Product) -> None:
    names = {line.partition("=")[0] for line in here.ok("exec", "nb", "--", "env").splitlines()}
    assert "PYTHONPATH" not in names
    assert {name for name in names if name.startswith("TORPOR_")} == {"TORPOR_WORKSPACE"}


def test_input_and_output_stream_while_the_command_runs(here: Product) -> None:
    process = start(here, "nb", "--", "cat", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for line in (b"one\n", b"two\n"):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline() == line
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_ctrl_c_ends_the_command_inside(here: Product) -> None:
    process = start(here, "nb", "--", "sh", "-c", "trap 'echo caught; exit 3' INT; echo begun; while :; do sleep 0.1; done")
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == b"caught\n"
    assert process.returncode == 3
    plain = start(here, "nb", "--", "sh", "-c", "echo begun; exec sleep 9871")
    assert plain.stdout is not None
    assert plain.stdout.readline() == b"begun\n"
    plain.send_signal(signal.SIGINT)
    plain.communicate(timeout=60)
    assert plain.returncode == 130
    assert is_gone(here, 9871)


def test_a_command_that_ignores_ctrl_c_ends_with_the_third(here: Product) -> None:
    script = "trap 'echo caught' INT TERM; echo begun; while :; do sleep 0.01; done"
    process = start(here, "nb", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"caught\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_command_ends_with_its_client(here: Product, number: int) -> None:
    process = start(here, "nb", "--", "sh", "-c", "echo begun; exec sleep 9872")
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    assert not is_gone(here, 9872)
    process.send_signal(number)
    process.communicate(timeout=60)
    wait_until(lambda: is_gone(here, 9872))


def test_deleting_the_workspace_ends_the_command(here: Product) -> None:
    here.ok("create", "brief", "--wait")
    process = start(here, "brief", "--", "sh", "-c", "echo begun; exec sleep 9873")
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    here.ok("delete", "brief", "--purge", "--wait")
    _, said = process.communicate(timeout=60)
    # The command was killed with its container; its exit code may or may not have been reported.
    assert process.returncode in (6, 128 + signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGHUP), said


def test_exec_wakes_the_workspace_unless_no_wake_is_given(here: Product) -> None:
    here.ok("create", "dozy", "--wait")
    here.ok("stop", "dozy", "--wait")
    refused = here.run("exec", "dozy", "--no-wake", "--", "true")
    assert refused.returncode == 1
    assert b"torpor start dozy --wait" in refused.stderr
    assert here.show("dozy")["phase"] == "STANDBY"
    woken = here.run("exec", "dozy", "--", "echo", "awake")
    assert (woken.returncode, woken.stdout) == (0, b"awake\n")
    assert b"waking dozy" in woken.stderr
    here.ok("archive", "dozy", "--wait")
    shell = here.run("shell", "dozy", stdin=b"echo awake; exit 4\n")
    assert shell.returncode == 4, shell.stderr
    assert here.show("dozy")["phase"] == "RUNNING"
    here.ok("delete", "dozy", "--purge", "--wait")


def test_a_slow_reader_uses_bounded_memory_and_loses_nothing(here: Product) -> None:
    much = 64 * MIB
    with flat_memory(here):
        process = start(here, "nb", "--", "sh", "-c", f"head -c {much} /dev/zero; touch written; echo end >&2")
        assert process.stdout is not None
        assert process.stdout.read(1) == b"\0"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        assert here.run("exec", "nb", "--", "test", "-e", "written").returncode == 1, "the command waits for its reader"
        stdout, stderr = process.communicate(timeout=120)
    assert (process.returncode, len(stdout), stderr) == (0, much - 1, b"end\n")


def stream_both_ways(here: Product, size: int, within_s: float) -> None:
    """Send this many bytes and get them back, compared by their digest."""
    block = os.urandom(MIB)
    sent, received, count = hashlib.sha256(), hashlib.sha256(), 0
    with flat_memory(here), start(here, "nb", "--", "cat", stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        writer = threading.Thread(target=write, args=(process, block, size // len(block)))
        writer.start()
        while data := process.stdout.read(MIB):
            received.update(data)
            count += len(data)
        writer.join()
        assert process.wait(within_s) == 0
    for _ in range(size // len(block)):
        sent.update(block)
    assert (count, received.digest()) == (size, sent.digest())


def write(process: "subprocess.Popen[bytes]", block: bytes, times: int) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        for _ in range(times):
            left = memoryview(block)
            while left:
                left = left[process.stdin.write(left) or 0 :]
    process.stdin.close()


def test_much_data_in_both_directions_uses_bounded_memory(here: Product) -> None:
    stream_both_ways(here, ORDINARY, 60)


@pytest.mark.deep
def test_five_gigabytes_in_both_directions_use_bounded_memory(here: Product) -> None:
    stream_both_ways(here, LONG, 600)
