"""One process of a Kubernetes cluster, with its log."""

import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

STOP_S = 30.0


@dataclass
class Component:
    name: str
    command: tuple[str, ...]
    folder: Path
    """Its working directory, and where its log is."""
    environment: Mapping[str, str] | None = None
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        """It ends when the tests are killed."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
            )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Can be repeated."""
        if self.process is None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def must_run(self) -> None:
        assert self.process is not None, f"{self.name} is stopped"
        code = self.process.poll()
        assert code is None, f"{self.name} ended with exit code {code}:\n{self.last_lines()}"

    def last_lines(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def flags(values: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(f"--{name}={value}" for name, value in values.items())
