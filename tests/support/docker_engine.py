"""A private Docker engine for tests."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.container_engine import ContainerEngine, end_process, running
from tests.support.requirements import must_have
from tests.support.small_disk import small_disk
from tests.support.waiting import wait_until

PACKAGE = "docker.io"
SMALL_DISK = "300m"
"""For the kit, an image, and a few homes."""
# It holds the namespaces, so that the daemon can be restarted in them.
HOLD = "mount --make-rprivate / && exec sleep infinity"
# Nothing in the network of this machine is changed: no bridge, no rule, no setting of the kernel.
IN_THIS_NETWORK = ("--bridge", "none", "--iptables=false", "--ip-forward=false")


@dataclass
class DockerEngine(ContainerEngine):
    data: str = "data"
    """The folder of the data root."""
    daemon: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        self._hold("unshare", "--net", "--mount", "sh", "-c", f"ip link set lo up && {HOLD}")
        self.start_daemon()

    def start_in_this_network(self) -> None:
        """To build images that download packages, with `docker build --network host`. It cannot run workspaces."""
        self._hold("unshare", "--mount", "sh", "-c", HOLD)
        self.start_daemon(*IN_THIS_NETWORK)

    def _hold(self, *command: str) -> None:
        self.process = self.spawn(*command)
        name = Path(f"/proc/{self.process.pid}/comm")
        wait_until(lambda: name.read_text() == "sleep\n", otherwise=self._last_words)

    def restart(self, data: str = "data") -> None:
        """With this data root, in the network of before. Containers end."""
        self.stop_daemon()
        self.data = data
        self.start_daemon()

    def stop(self) -> None:
        if self.daemon is not None:
            self.stop_daemon()
        self.end(signal.SIGTERM)

    def start_daemon(self, *more: str) -> None:
        assert self.process is not None
        options = {
            "data-root": self.folder / self.data,
            "exec-root": self.folder / "exec",
            "pidfile": self.folder / "pid",
            "host": self.url,
            "cgroup-parent": f"/{self.folder.name}",
            "max-download-attempts": 1,
        }
        words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        self.daemon = self.spawn("nsenter", f"--target={self.process.pid}", "--net", "--mount", "dockerd", *more, *words)
        self.wait()

    def stop_daemon(self, signal_number: int = signal.SIGTERM) -> None:
        """Its containers end, too, unless it is killed: then it ends them when it starts again."""
        assert self.daemon is not None
        end_process(self.daemon, signal_number)
        self.daemon = None
        # Its containerd is killed then. Otherwise the next daemon waits for it without end, also if it is only not reaped yet.
        pid_file = self.folder / "exec" / "containerd" / "containerd.pid"
        if pid_file.exists():
            pid = pid_file.read_text()
            wait_until(lambda: has_ended(pid))
            pid_file.unlink(missing_ok=True)

    def remove_containers(self) -> None:
        if self.daemon is None or self.daemon.poll() is not None:
            self.start_daemon()
        super().remove_containers()

    def _answers(self) -> bool:
        assert self.daemon is not None
        assert self.daemon.poll() is None, self._last_words()
        return super()._answers()

    def prune(self) -> None:
        # Since version 23 only anonymous volumes are removed without it.
        every = ["--all"] if "--all" in self.docker("volume", "prune", "--help") else []
        self.docker("volume", "prune", "--force", *every)
        self.docker("system", "prune", "--all", "--force")


class SmallDockerEngine(DockerEngine):
    """Its data root is a disk of its own, which a test can fill."""

    def start(self) -> None:
        self._disk = small_disk(self.folder / self.data, SMALL_DISK)
        self._disk.__enter__()
        super().start()

    def remove(self) -> None:
        self._disk.__exit__(None, None, None)
        super().remove()


def has_ended(pid: str) -> bool:
    """Whether this process is gone, or nothing is left but its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextlib.contextmanager
def docker_engine(kind: type[DockerEngine] = DockerEngine) -> Iterator[DockerEngine]:
    """A running engine, which is removed at the end."""
    must_have(os.getuid() == 0 and shutil.which("dockerd") and shutil.which("docker"), f"root, and the package {PACKAGE}")
    with running(kind) as engine:
        yield engine
