"""A master and workers as real processes, which tests stop, kill and start again."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until
from torpor.sort.data.generate import generate
from torpor.sort.data.worker_directory import MARKER, OUTPUT_PID
from torpor.sort.journal import Journal
from torpor.sort.machine.master import Master
from torpor.sort.machine.worker import Worker
from torpor.sort.record import GENSORT
from torpor.sort.worker.program import SavedWorker

WORKERS = 3
MASTER = "master"
SPILLED, LAZY = "16M", "2G"
"""Memory with which runs go to files, and with which only their order is kept in memory."""
HEARTBEAT_LOST_S = 10.0
"""A master that has finished ends when a worker was silent for this long; a new process takes a while to start."""
PATIENCE_S = 120.0
"""No step takes this long; without the limit a fault would be a test that never ends."""
LOOK_S = 0.01

Outputs = tuple[tuple[tuple[str, str], ...], ...]
"""For each worker the names of its files, with a digest of their bytes."""


@dataclass(frozen=True, slots=True)
class Data:
    """The input, and the digest of the expected output."""

    inputs: tuple[Path, ...]
    """One directory for each worker."""
    digest: str


def make_data(folder: Path) -> Data:
    """About 20 MB. Keys are equal within files, across files and across workers, so that the order of equal keys matters."""
    inputs = tuple(folder / f"input.{index}" for index in range(WORKERS))
    for directory in inputs:
        directory.mkdir()
    generate(50_000, inputs[0] / "a")
    generate(30_000, inputs[0] / "b", first=900_000, skew=True)
    generate(70_000, inputs[1] / "a", first=40_000)
    generate(50_000, inputs[2] / "a", first=910_000, skew=True)
    length = GENSORT.length
    records: list[bytes] = []
    for directory in inputs:
        for file in sorted(directory.iterdir()):
            content = file.read_bytes()
            records += [content[at : at + length] for at in range(0, len(content), length)]
    records.sort(key=lambda record: record[: GENSORT.key_length])
    return Data(inputs, hashlib.sha256(b"".join(records)).hexdigest())


@dataclass(slots=True)
class Node:
    """One program, started as often as needed."""

    name: str
    command: Callable[[], list[str]]
    log: Path
    answer: Path
    process: subprocess.Popen[bytes] | None = None
    said_before: int = 0
    """The offset in the log at which the present process begins."""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, *more: str) -> None:
        self.said_before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log, self.answer.open("wb") as answer:
            self.process = subprocess.Popen([*self.command(), *more], stdin=subprocess.DEVNULL, stdout=answer, stderr=log)

    def said(self) -> str:
        """The log of the present process."""
        with self.log.open("rb") as log:
            log.seek(self.said_before)
            return log.read().decode(errors="replace")

    def ended(self) -> int | None:
        return None if self.process is None else self.process.poll()

    def is_stopped(self) -> bool:
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "T"

    def end(self) -> None:
        """Ask it to end, by SIGTERM."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def wait(self) -> int:
        assert self.process is not None
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end") from None


def until(what: str, is_so: Callable[[], bool]) -> None:
    wait_until(is_so, within_s=PATIENCE_S, every_s=LOOK_S, otherwise=lambda: f"waited in vain until {what}")


@dataclass(slots=True)
class Cluster:
    folder: Path
    inputs: Sequence[Path]
    memory: str = LAZY
    indexed: bool = True
    """Whether workers are given their indices, or get them by their identities."""
    master_options: Sequence[str] = ()
    worker_options: Sequence[str] = ()
    heartbeat_lost_s: float = HEARTBEAT_LOST_S
    master: Node = field(init=False)
    workers: list[Node] = field(init=False)
    others: list[Node] = field(default_factory=list)
    """Further processes that were started."""

    def __post_init__(self) -> None:
        self.master = self._node(MASTER, self._master_command)
        self.workers = [self._node(f"worker.{index}", self._worker_command(index)) for index in range(len(self.inputs))]

    # ---- places

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def scratch(self, index: int) -> Path:
        return self.folder / f"scratch.{index}"

    def output(self, index: int) -> Path:
        return self.folder / f"output.{index}"

    @property
    def join(self) -> Path:
        return self.state / "join.json"

    def address(self) -> str:
        return str(json.loads(self.join.read_text())["address"])

    def nodes(self) -> list[Node]:
        return [self.master, *self.workers, *self.others]

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes() if node.name == name)

    # ---- starts

    def start_master(self, *more: str) -> None:
        self.master.start(*more)
        until("the master can be joined", self.join.exists)

    def start(self, holds: Mapping[int | str, str] = {}) -> None:
        """Start all processes; those in `holds` stop at their breakpoint."""
        self.start_master(*_hold(holds.get(MASTER)))
        for index, worker in enumerate(self.workers):
            worker.start(*_hold(holds.get(index)))

    def another(self, name: str, index: int, *, scratch: Path, output: Path) -> Node:
        """A process that claims to be this worker, with its own directories."""
        node = self._node(name, self._worker_command(index, scratch, output))
        self.others.append(node)
        return node

    def _node(self, name: str, command: Callable[[], list[str]]) -> Node:
        return Node(name, command, self.folder / f"{name}.log", self.folder / f"{name}.out")

    def _beats(self) -> list[str]:
        return ["--heartbeat", "0.1", "--heartbeat-lost", str(self.heartbeat_lost_s)]

    def _master_command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "torpor", "sort", "master"),
            *("--workers", str(len(self.inputs)), "--state", str(self.state), "--json"),
            *self._beats(),
            *self.master_options,
        ]

    def _worker_command(self, index: int, scratch: Path | None = None, output: Path | None = None) -> Callable[[], list[str]]:
        return lambda: [
            *(sys.executable, "-m", "torpor", "sort", "worker", self.address()),
            *("--join", str(self.join), "--input", str(self.inputs[index])),
            *("--scratch", str(scratch or self.scratch(index)), "--output", str(output or self.output(index))),
            *("--memory", self.memory),
            *(["--index", str(index)] if self.indexed else []),
            *self._beats(),
            *self.worker_options,
        ]

    # ---- interventions

    def wait_held(self, node: Node, state: str, moment: str) -> None:
        words = f"held in {state} {moment}, process {node.pid}"

        def is_held() -> bool:
            assert node.ended() is None, f"{node.name} ended with {node.ended()} before it was held in {state} {moment}"
            return words in node.said() and node.is_stopped()

        until(f"{node.name} is held in {state} {moment}", is_held)

    def kill_held(self, node: Node, state: str, moment: str) -> None:
        self.wait_held(node, state, moment)
        node.kill()

    def lose_scratch(self, index: int) -> None:
        shutil.rmtree(self.scratch(index))

    # ---- journals

    def saved_worker(self, index: int) -> Worker | None:
        saved = Journal(self.scratch(index) / "journal").load(SavedWorker)
        return None if saved is None else saved.worker

    def state_of(self, index: int) -> str:
        worker = self.saved_worker(index)
        return "" if worker is None else worker.state

    def saved_master(self) -> Master | None:
        return Journal(self.state / "journal").load(Master)

    # ---- the end

    def wait(self) -> dict[str, int]:
        """The exit code of each process."""
        return {node.name: node.wait() for node in self.nodes() if node.process is not None}

    def end_well(self) -> None:
        """All processes end with 0. After the first that does not, the others are not waited for."""

        def are_over() -> bool:
            codes = {node.name: node.ended() for node in self.nodes() if node.process is not None}
            assert set(codes.values()) <= {0, None}, codes
            return set(codes.values()) == {0}

        until("everybody has ended", are_over)

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.master.answer.read_text())
        return found

    def outputs(self) -> Outputs:
        """All files in the output directories, so that a file too many is noticed."""
        return tuple(
            tuple((path.name, _digest([path])) for path in sorted(self.output(index).iterdir()) if path.is_file())
            for index in range(len(self.inputs))
        )

    def digest(self) -> str:
        """The digest of all output, in the order of the partitions."""
        paths = [path for index in range(len(self.inputs)) for path in self.output(index).iterdir() if path.is_file()]
        return _digest(sorted(paths, key=lambda path: path.name))

    def ends_as(self, reference: Outputs) -> dict[str, Any]:
        """All processes end with 0, and the output is the same as without a disturbance. Returns the master's report."""
        self.end_well()
        report = self.report()
        assert report["outcome"] == "valid", report
        assert self.outputs() == reference
        for index in range(len(self.inputs)):
            assert not (self.output(index) / MARKER).exists()
            assert not (self.output(index) / OUTPUT_PID).exists()
        return report

    def has_left_nothing(self, *indices: int) -> None:
        """A job that failed leaves no output and no scratch, at all workers or at these."""
        for index in indices or range(len(self.inputs)):
            for directory in (self.output(index), self.scratch(index)):
                left = [str(path) for path in directory.rglob("*")] if directory.exists() else []
                assert not left, left

    def close(self) -> None:
        for node in self.nodes():
            if node.process is not None:
                node.kill()

    def tell_all(self) -> str:
        return "\n".join(
            f"--- {node.name} (exit code {node.ended()})\n{node.log.read_text(errors='replace')}"
            for node in self.nodes()
            if node.log.exists()
        )


def _hold(where: str | None) -> list[str]:
    return [] if where is None else ["--hold", where]


def _digest(paths: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()


@contextmanager
def cluster(inputs: Sequence[Path], **options: Any) -> Iterator[Cluster]:
    """In its own directory, which is removed afterwards; processes that still run are killed."""
    folder = Path(tempfile.mkdtemp(prefix="torpor-chaos-"))
    here = Cluster(folder, inputs, **options)
    try:
        yield here
    except BaseException:
        print(here.tell_all())
        raise
    finally:
        here.close()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True)
class Undisturbed:
    """The output without a kill, for each memory size. It is sorted at the first use."""

    data: Data
    outputs: dict[str, Outputs] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def of(self, memory: str) -> Outputs:
        if memory not in self.outputs:
            with cluster(self.data.inputs, memory=memory) as here:
                began = time.monotonic()
                here.start()
                here.end_well()
                self.seconds[memory] = time.monotonic() - began
                assert here.report()["outcome"] == "valid"
                assert here.digest() == self.data.digest
                self.outputs[memory] = here.outputs()
        return self.outputs[memory]


def stop(node: Node) -> None:
    os.kill(node.pid, signal.SIGSTOP)
    until(f"{node.name} is stopped", node.is_stopped)


def go_on(node: Node) -> None:
    os.kill(node.pid, signal.SIGCONT)
