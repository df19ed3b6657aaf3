"""A fake engine in its own process, for tests that share it between processes."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torpor.testing.fake_runtime import FakeLogEntry


@dataclass
class EngineProcess:
    socket: Path
    process: "subprocess.Popen[str] | None" = None

    def start(self, *, effects_s: float = 0.0) -> None:
        command = [sys.executable, "-m", "torpor.testing.fake_engine", str(self.socket), "--while-stdin"]
        # The engine ends with its standard input, so it ends with this process in any case.
        self.process = subprocess.Popen(
            [*command, "--effects-s", str(effects_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        said = self.process.stdout.readline()
        assert said.startswith("the fake engine is ready"), f"it said {said!r} and ended with {self.process.wait()}"

    def stop(self) -> int:
        assert self.process
        self.process.terminate()
        return self._ended()

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self._ended()

    def _ended(self) -> int:
        assert self.process
        assert self.process.stdin
        assert self.process.stdout
        code = self.process.wait(20)
        self.process.stdin.close()
        self.process.stdout.close()
        self.process = None
        return code

    def memory_bytes(self) -> int:
        assert self.process
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return int(status.split("VmRSS:")[1].split()[0]) << 10

    def used_s(self) -> float:
        """Seconds of CPU time."""
        assert self.process
        after_name = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def engine_process(*, effects_s: float = 0.0) -> Iterator[EngineProcess]:
    """A running engine, which is removed at the end."""
    # Not pytest's directory: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="torpor-test-") as folder:
        engine = EngineProcess(Path(folder) / "engine.sock")
        engine.start(effects_s=effects_s)
        try:
            yield engine
        finally:
            if engine.process is not None:
                engine.kill()


def started_twice(log: Sequence[FakeLogEntry]) -> list[FakeLogEntry]:
    """Every start of a workspace that was already running; there must be none."""
    running: set[str] = set()
    twice = []
    for entry in log:
        if entry.verb == "ensure_running":
            if entry.workspace_id in running:
                twice.append(entry)
            running.add(entry.workspace_id)
        elif entry.verb in ("ensure_no_container", "end_program"):
            running.discard(entry.workspace_id)
    return twice
