"""Run functions in processes that are killed or stopped at a chosen step (`fault_points`).

The processes are forked from one that has imported everything, so that a loop over all steps takes seconds. It never opens a
store or a database: their threads would not exist after a fork.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.fault_points import FaultPoints

REPOSITORY = Path(__file__).parents[2]
ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Ended:
    """`code` is that of `os.waitstatus_to_exitcode`; None: it is stopped."""

    pid: int
    code: int | None
    steps: int
    output: bytes
    errors: str

    @property
    def is_killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def is_stopped(self) -> bool:
        return self.code is None

    def required(self) -> "Ended":
        assert self.code == 0, (self.code, self.output, self.errors)
        return self


class FaultServer:
    """The test's end. `target` is MODULE:FUNCTION, which gets the text on standard input and the arguments."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def run(
        self,
        target: str,
        *arguments: str,
        stdin: bytes = b"",
        at: int = 0,
        number: signal.Signals = signal.SIGKILL,
        reads: bool = False,
        waits: bool = False,
    ) -> Ended:
        """Run until it ends or is stopped. `at`: the step at which it gets the signal; 0: never."""
        how = {"at": at, "signal": number, "reads": reads, "waits": waits}
        return self._ask({"target": target, "arguments": arguments, "stdin": stdin.decode(), **how})

    def resume(self, stopped: Ended) -> Ended:
        """Let a stopped process continue to its end."""
        return self._ask({"resume": stopped.pid})

    def _ask(self, wanted: dict[str, Any]) -> Ended:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(wanted).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the fault server has ended"
        answer = json.loads(line)
        return Ended(answer["pid"], answer["code"], answer["steps"], answer["output"].encode(), answer["errors"])


@contextlib.contextmanager
def fault_server(*modules: str) -> Iterator[FaultServer]:
    """`modules` are imported once."""
    argv = [sys.executable, "-m", "tests.support.fault_server", *modules]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY)
    try:
        yield FaultServer(process)
    finally:
        assert process.stdin
        assert process.stdout
        process.stdin.close()
        try:
            process.wait(10)
        finally:
            process.kill()
            process.wait(10)
            process.stdout.close()


# ── the server's end ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Child:
    pid: int
    points: FaultPoints
    output: Any
    errors: Any


def _forked(wanted: dict[str, Any]) -> _Child:
    points = FaultPoints(wanted["at"], signal.Signals(wanted["signal"]), waits=wanted["waits"])
    output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
    module, _, name = wanted["target"].partition(":")
    function = getattr(importlib.import_module(module), name)
    pid = os.fork()
    if pid:
        return _Child(pid, points, output, errors)
    code = 1
    try:
        os.setpgid(0, 0)
        with tempfile.TemporaryFile() as stdin:
            stdin.write(wanted["stdin"].encode())
            stdin.seek(0)
            os.dup2(stdin.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        points.watch(reads=wanted["reads"])
        code = function(wanted["arguments"]) or 0
        sys.stdout.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _waited(child: _Child) -> dict[str, Any]:
    signal.alarm(int(ANSWER_S))  # a child that hangs ends the server, and so the test
    try:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
    finally:
        signal.alarm(0)
    code = None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
    if code is not None:
        _end_group(child)  # processes of a child that ended by itself
    said = []
    for file in (child.output, child.errors):
        file.seek(0)
        said.append(file.read().decode("utf-8", "replace"))
    return {"pid": child.pid, "code": code, "steps": child.points.count, "output": said[0], "errors": said[1]}


def _end_group(child: _Child) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def main(modules: list[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    stopped: dict[int, _Child] = {}
    try:
        for line in sys.stdin:
            wanted = json.loads(line)
            if "resume" in wanted:
                child = stopped.pop(wanted["resume"])
                os.killpg(child.pid, signal.SIGCONT)
            else:
                child = _forked(wanted)
            answer = _waited(child)
            if answer["code"] is None:
                stopped[child.pid] = child
            print(json.dumps(answer), flush=True)
    finally:
        for child in stopped.values():
            _end_group(child)


if __name__ == "__main__":
    main(sys.argv[1:])
