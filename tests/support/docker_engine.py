"""A private Docker engine for tests."""

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator

from tests.support.container_engine import ContainerEngine, running
from tests.support.requirements import must_have

PACKAGE = "docker.io"
# The engine's first process is the shell's own, so that a signal to it reaches the engine.
IN_ITS_NAMESPACES = 'mount --make-rprivate / && ip link set lo up && exec dockerd "$@"'


class DockerEngine(ContainerEngine):
    def start(self) -> None:
        options = {
            "data-root": self.folder / "data",
            "exec-root": self.folder / "exec",
            "pidfile": self.folder / "pid",
            "host": self.url,
            "cgroup-parent": f"/{self.folder.name}",
            "max-download-attempts": 1,
        }
        words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        self.run("unshare", "--net", "--mount", "sh", "-c", IN_ITS_NAMESPACES, "sh", *words)

    def stop(self) -> None:
        self.end(signal.SIGTERM)

    def prune(self) -> None:
        self.docker("volume", "prune", "--force")
        self.docker("system", "prune", "--all", "--force")


@contextlib.contextmanager
def docker_engine() -> Iterator[DockerEngine]:
    """A running engine, which is removed at the end."""
    must_have(os.getuid() == 0 and shutil.which("dockerd") and shutil.which("docker"), f"root, and the package {PACKAGE}")
    with running(DockerEngine) as engine:
        yield engine
