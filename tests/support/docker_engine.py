"""A private Docker engine for tests, in a network and a mount namespace of its own.

It changes neither the firewall nor the bridges nor the mounts of this machine. Its API is a Unix socket, which every process
can reach; a test that connects to a container uses `network`.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.support.network_namespace import network_of
from tests.support.requirements import must_have
from tests.support.waiting import wait_until

PACKAGE = "docker.io"
START_S = 60.0
STOP_S = 60.0
# The engine's first process is the shell's own, so that a signal to it reaches the engine.
IN_ITS_NAMESPACES = 'mount --make-rprivate / && ip link set lo up && exec dockerd "$@"'


@dataclass
class DockerEngine:
    folder: Path
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/docker.sock"

    def start(self) -> None:
        name = self.folder.name
        options = {
            "data-root": self.folder / "data",
            "exec-root": self.folder / "exec",
            "pidfile": self.folder / "pid",
            "host": self.url,
            "cgroup-parent": f"/{name}",
            "max-download-attempts": 1,
        }
        words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        with (self.folder / "engine.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "unshare", "--net", "--mount", "sh", "-c", IN_ITS_NAMESPACES, "sh", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, within_s=START_S, otherwise=self._last_words)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self._last_words()
        return self._command("version").returncode == 0

    def _last_words(self) -> str:
        return (self.folder / "engine.log").read_text(errors="replace")[-4000:]

    def _command(self, *words: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(["docker", "--host", self.url, *words], input=stdin, capture_output=True, timeout=60)

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

    def network(self) -> AbstractContextManager[None]:
        """Connect to containers within this context."""
        assert self.process is not None
        return network_of(self.process.pid)

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def remove(self) -> None:
        for path in Path("/sys/fs/cgroup").glob(f"*/{self.folder.name}"):
            for below in sorted(path.rglob("*"), reverse=True):
                if below.is_dir():
                    below.rmdir()
            path.rmdir()
        shutil.rmtree(self.folder)


@contextlib.contextmanager
def docker_engine() -> Iterator[DockerEngine]:
    """A running engine, which is removed at the end."""
    must_have(os.getuid() == 0 and shutil.which("dockerd") and shutil.which("docker"), f"root, and the package {PACKAGE}")
    # Not pytest's directory: the path of a socket has at most 107 bytes.
    engine = DockerEngine(Path(tempfile.mkdtemp(prefix="torpor-test-engine-")))
    try:
        engine.start()
        yield engine
    finally:
        if engine.process is not None:
            containers = engine.docker("ps", "--all", "--quiet").split()
            if containers:
                engine.docker("rm", "--force", *containers)
            engine.stop()
        engine.remove()
