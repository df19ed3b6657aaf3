"""What the private engines of the tests have in common: a folder, a process, an API socket, and Docker's client for it.

An engine runs in a network and a mount namespace of its own. It changes neither the firewall nor the bridges nor the mounts of
this machine. Its API is a Unix socket, which every process can reach; a test that connects to a container uses `network`.
"""

import contextlib
import json
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.support.cgroup_removal import remove_cgroups
from tests.support.network_namespace import network_of
from tests.support.waiting import wait_until

START_S = 60.0
STOP_S = 60.0


@dataclass
class ContainerEngine(ABC):
    folder: Path
    process: "subprocess.Popen[bytes] | None" = None
    """Its network is the engine's."""

    @property
    def socket(self) -> Path:
        return self.folder / "docker.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def volumes(self) -> Path:
        """The folder of the files of all volumes."""
        return self.folder / "data" / "volumes"

    # ── start and stop ────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def prune(self) -> None:
        """Remove all volumes, containers and images that are not used."""

    def run(self, *command: str, ends_by: str = "TERM", **environment: str) -> None:
        """Run a command until the engine answers."""
        self.process = self.spawn(*command, ends_by=ends_by, **environment)
        self.wait()

    def spawn(self, *command: str, ends_by: str = "TERM", **environment: str) -> "subprocess.Popen[bytes]":
        """Start a process that gets this signal if the tests are killed."""
        variables = [f"{name}={value}" for name, value in environment.items()]
        with (self.folder / "engine.log").open("ab") as log:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", ends_by, "env", *variables, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,  # Podman's helpers write a file there if memory runs out
                start_new_session=True,
            )

    def wait(self) -> None:
        wait_until(self._answers, within_s=START_S, otherwise=self._last_words)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self._last_words()
        return self._command("version").returncode == 0

    def _last_words(self) -> str:
        return (self.folder / "engine.log").read_text(errors="replace")[-4000:]

    def end(self, signal_number: int) -> None:
        assert self.process is not None
        end_process(self.process, signal_number)
        self.process = None

    def remove_containers(self) -> None:
        if containers := self.docker("ps", "--all", "--quiet").split():
            self.docker("rm", "--force", *containers)

    def remove(self) -> None:
        remove_cgroups(self.folder.name)
        shutil.rmtree(self.folder)

    # ── use ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def network(self) -> AbstractContextManager[None]:
        """Connect to containers within this context."""
        assert self.process is not None
        return network_of(self.process.pid)

    def _command(self, *words: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(["docker", "--host", self.url, *words], input=stdin, capture_output=True, timeout=120)

    def docker(self, *words: str, stdin: bytes = b"") -> str:
        """Run a command of Docker's own client."""
        done = self._command(*words, stdin=stdin)
        assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr.decode()}"
        return done.stdout.decode().strip()

    def labels_of(self, volume: str) -> dict[str, str]:
        labels: dict[str, str] = json.loads(self.docker("volume", "inspect", volume, "--format", "{{json .Labels}}"))
        return labels

    def remove_all(self, installation: str) -> None:
        """All objects of an installation but its kit, which others use. The engine may still be creating one."""
        label = f"label=torpor.installation={installation}"

        def try_once() -> bool:
            if containers := self._listed("ps", "--all", "--filter", label, "--format", "{{.ID}}"):
                self._command("rm", "--force", *containers)
            if volumes := self._listed("volume", "ls", "--filter", label, "--format", "{{.Name}}"):
                self._command("volume", "rm", *volumes)
            return not containers and not volumes

        wait_until(try_once)
        if networks := self.docker("network", "ls", "--quiet", "--filter", label, "--filter", f"name={installation}").split():
            self.docker("network", "rm", *networks)

    def remove_installations(self, beginning: str) -> None:
        """All objects of the installations whose names begin so: their containers outlive the product."""
        names = self.docker("ps", "--all", "--format", '{{.Label "torpor.installation"}}').split()
        for name in {name for name in names if name.startswith(beginning)}:
            self.remove_all(name)

    def _listed(self, *words: str) -> list[str]:
        lines = self.docker(*words[:-1], words[-1] + ' {{.Label "torpor.kind"}}').splitlines()
        return [line.split()[0] for line in lines if not line.endswith(" kit")]


def end_process(process: "subprocess.Popen[bytes]", signal_number: int) -> None:
    process.send_signal(signal_number)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


E = TypeVar("E", bound=ContainerEngine)


@contextlib.contextmanager
def running(kind: Callable[[Path], E]) -> Iterator[E]:
    """A running engine, which is removed at the end."""
    # Not pytest's directory: the path of a socket has at most 107 bytes.
    engine = kind(Path(tempfile.mkdtemp(prefix="torpor-test-engine-")))
    try:
        engine.start()
        yield engine
    finally:
        if engine.process is not None:
            engine.remove_containers()
            engine.stop()
        engine.remove()
