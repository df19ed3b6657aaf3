"""A private Docker engine for tests."""

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.container_engine import ContainerEngine, running
from tests.support.requirements import must_have
from tests.support.small_disk import small_disk

PACKAGE = "docker.io"
SMALL_DISK = "300m"
"""For the kit, an image, and a few homes."""
# The engine's first process is the shell's own, so that a signal to it reaches the engine.
IN_ITS_NAMESPACES = 'mount --make-rprivate / && ip link set lo up && exec dockerd "$@"'
# Nothing in the network of this machine is changed: no bridge, no rule, no setting of the kernel.
IN_THIS_NETWORK = 'mount --make-rprivate / && exec dockerd --bridge none --iptables=false --ip-forward=false "$@"'


@dataclass
class DockerEngine(ContainerEngine):
    data: str = "data"
    """The folder of the data root."""

    def start(self) -> None:
        self._serve("unshare", "--net", "--mount")

    def restart(self, data: str = "data") -> None:
        """With this data root, in the network of before. Containers end."""
        assert self.process is not None
        network = os.open(f"/proc/{self.process.pid}/ns/net", os.O_RDONLY)
        try:
            self.stop()
            self.data = data
            self._serve("nsenter", f"--net=/proc/{os.getpid()}/fd/{network}", "unshare", "--mount")
        finally:
            os.close(network)

    def start_in_this_network(self) -> None:
        """To build images that download packages, with `docker build --network host`. It cannot run workspaces."""
        self._serve("unshare", "--mount", script=IN_THIS_NETWORK)

    def _serve(self, *namespaces: str, script: str = IN_ITS_NAMESPACES) -> None:
        options = {
            "data-root": self.folder / self.data,
            "exec-root": self.folder / "exec",
            "pidfile": self.folder / "pid",
            "host": self.url,
            "cgroup-parent": f"/{self.folder.name}",
            "max-download-attempts": 1,
        }
        words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        self.run(*namespaces, "sh", "-c", script, "sh", *words)

    def stop(self) -> None:
        self.end(signal.SIGTERM)

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


@contextlib.contextmanager
def docker_engine(kind: type[DockerEngine] = DockerEngine) -> Iterator[DockerEngine]:
    """A running engine, which is removed at the end."""
    must_have(os.getuid() == 0 and shutil.which("dockerd") and shutil.which("docker"), f"root, and the package {PACKAGE}")
    with running(kind) as engine:
        yield engine
