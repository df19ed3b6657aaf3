"""Run the commands of the sort, and read what they leave."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.support.waiting import wait_until

HANGS_S = 120.0
"""Only ends a test that hangs."""
FAST = ("--heartbeat", "0.2", "--heartbeat-lost", "3")
ALL_WORKERS = ("--min-share", "0")
"""`run` starts as many workers as `--workers` says, although the input is small."""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: bytes
    err: bytes

    @property
    def said(self) -> str:
        """The line that gives the reason of the end."""
        lines = [line for line in self.err.decode().splitlines() if line.startswith("torpor: ")]
        assert len(lines) == 1, self.err.decode()
        return lines[0].removeprefix("torpor: ")

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "torpor", "sort", *map(str, words)]


def torpor_sort(*words: object, prefix: Sequence[str] = ()) -> Ended:
    done = subprocess.run([*prefix, *command(*words)], capture_output=True, stdin=subprocess.DEVNULL, timeout=HANGS_S)
    return Ended(done.returncode, done.stdout, done.stderr)


def sorted_well(*words: object) -> Any:
    """The report of a `run` that succeeded."""
    done = torpor_sort("run", *words, "--json")
    assert done.code == 0, done.err.decode()
    assert done.json["outcome"] == "valid"
    return done.json


def generated(path: Path, records: int, *words: object) -> Path:
    done = torpor_sort("generate", records, path, *words)
    assert done.code == 0, done.err.decode()
    return path


class Process:
    """A command that runs beside the test."""

    def __init__(self, *words: object) -> None:
        self._process = subprocess.Popen(
            command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.pid = self._process.pid

    def ended(self) -> Ended:
        out, err = self._process.communicate(timeout=HANGS_S)
        return Ended(self._process.returncode, out, err)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_until_held(self) -> None:
        """Stopped by its own `--hold`."""
        wait_for(lambda: process_state(self.pid) in "TZ", "held")
        assert self.is_running(), self.ended().err.decode()

    def end(self) -> None:
        if self.is_running():
            self._process.kill()
        self._process.communicate()


@contextmanager
def running(*words: object) -> Iterator[Process]:
    process = Process(*words)
    try:
        yield process
    finally:
        process.end()


@dataclass(frozen=True, slots=True)
class Cluster:
    """A master, with the commands of its workers."""

    folder: Path
    master: Process
    address: str

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def join(self) -> Path:
        return self.state / "join.json"

    def worker(self, index: int, input_: Path, *words: object, join: Path | None = None) -> list[object]:
        """The arguments of a worker's command."""
        output = self.folder / f"output.{index}"
        places = ("--input", input_, "--output", output, "--scratch", self.folder / f"scratch.{index}")
        return ["worker", self.address, "--join", join or self.join, *places, "--memory", "64M", *FAST, *words]

    def output(self, workers: int) -> bytes:
        return b"".join(joined(self.folder / f"output.{index}") for index in range(workers))


@contextmanager
def cluster(folder: Path, workers: int, *words: object) -> Iterator[Cluster]:
    state = folder / "state"
    with running("master", "--workers", workers, "--state", state, *FAST, *words, "--json") as master:
        wait_for(lambda: (state / "join.json").exists() or not master.is_running(), "a join file")
        assert master.is_running(), master.ended().err.decode()
        yield Cluster(folder, master, json.loads((state / "join.json").read_text())["address"])


def wait_for(look: Callable[[], Found | None], what: str) -> Found:
    return wait_until(look, within_s=HANGS_S, every_s=0.02, otherwise=lambda: f"never came: {what}")


def process_state(pid: int) -> str:
    """R, S, T (stopped), Z (ended) and others; Z also for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: process_state(pid) == "Z", f"the end of {pid}")


def has_reached(output: Path, index: int, state: str) -> bool:
    try:
        return f"-> {state}\n" in (output / ".torpor-sort" / f"worker.{index}.log").read_text()
    except FileNotFoundError:
        return False


def stop_midway(output: Path) -> int:
    """Stop worker 1 while it sorts, so that the job cannot end, and wait until worker 0 sorts too. Returns the pid of
    worker 1."""
    wait_for(lambda: has_reached(output, 1, "Sorting"), "a worker that sorts")
    stopped = pid_of(output, 1)
    os.kill(stopped, signal.SIGSTOP)
    wait_for(lambda: has_reached(output, 0, "Sorting"), "another worker that sorts")
    return stopped


def pid_of(output: Path, index: int) -> int:
    """From the pid file of the worker of a `run`; perhaps of the process before the present one."""
    path = output / ".torpor-sort" / f"worker.{index}" / "worker.pid"

    def written() -> str | None:
        return path.read_text() if path.exists() else None

    return int(wait_for(written, "the process of a worker"))


def contents(folder: Path) -> Mapping[str, bytes]:
    """Every file below, including hidden ones; empty for a folder that does not exist."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def joined(output: Path) -> bytes:
    """All partitions in order; no other file may be there."""
    found = contents(output)
    assert all(name.startswith("partition.") for name in found), sorted(found)
    return b"".join(found[name] for name in sorted(found))


def gnu_sort(data: bytes, *words: str) -> bytes:
    """Stable, bytewise."""
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(["sort", "-s", *words], input=data, stdout=subprocess.PIPE, check=True, env=environment).stdout


def by_slices(data: bytes, length: int) -> list[bytes]:
    return [data[at : at + length] for at in range(0, len(data), length)]


def by_key(data: bytes) -> bytes:
    """Records of a hundred bytes in the order of their first ten bytes, as Python sorts them."""
    records = by_slices(data, 100)
    records.sort(key=lambda record: record[:10])
    return b"".join(records)
