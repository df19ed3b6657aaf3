"""A private Podman engine for tests.

Podman has no daemon: each container has a process of its own that watches it. They all live in a process namespace and end
with its first process, a shell that keeps the API service running.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.support.container_engine import ContainerEngine, running
from tests.support.requirements import must_have
from tests.support.waiting import wait_until

PACKAGES = "podman, runc, netavark, aardvark-dns and docker.io"
NUM_LOCKS = 2048
"""As in Podman's own configuration."""
# The locks of all containers and volumes are in /dev/shm, under one name for the whole machine.
IN_ITS_NAMESPACES = """
mount --make-rprivate / && mount -t tmpfs tmpfs /dev/shm && mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns || exit 1
ip link set lo up
while :; do
    podman "$@" & wait $!
done
"""
CONFIGURATION = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
num_locks = {num_locks}
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""
PARENT_OF_CGROUPS = "libpod_parent"
"""Podman's name for it, for all engines of a machine."""


@dataclass
class PodmanEngine(ContainerEngine):
    num_locks: int = NUM_LOCKS

    def start(self) -> None:
        configuration = self.folder / "containers.conf"
        configuration.write_text(CONFIGURATION.format(folder=self.folder, num_locks=self.num_locks))
        options = {"root": "data", "runroot": "run", "tmpdir": "tmp"}
        words = [word for option, name in options.items() for word in (f"--{option}", str(self.folder / name))]
        words += ["system", "service", "--time=0", self.url]
        unshare = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        self.run(*unshare, "sh", "-c", IN_ITS_NAMESPACES, "sh", *words, ends_by="KILL", CONTAINERS_CONF=str(configuration))

    def stop(self) -> None:
        self.end(signal.SIGKILL)  # `unshare` ignores SIGTERM while its child runs

    def prune(self) -> None:
        self.podman("volume", "prune", "--force")
        self.podman("system", "prune", "--all", "--force")

    def podman(self, *words: str) -> str:
        """Run a command of Podman's own client."""
        command = ["podman", "--remote", "--url", self.url, *words]
        done = subprocess.run(command, capture_output=True, timeout=60, text=True)
        assert done.returncode == 0, f"podman {' '.join(words)}: {done.stderr}"
        return done.stdout.strip()

    def restart_service(self) -> None:
        """End the API service, and wait for the next one. Containers have processes of their own and keep running."""
        assert self.process is not None
        (shell,) = children_of(self.process.pid)
        (service,) = [pid for pid in children_of(shell) if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"podman\0")]
        os.kill(service, signal.SIGTERM)
        wait_until(lambda: not Path(f"/proc/{service}").exists())
        self.wait()

    def remove(self) -> None:
        super().remove()
        for path in Path("/sys/fs/cgroup").glob(f"*/{PARENT_OF_CGROUPS}"):
            for folder in (path / "conmon", path):
                with contextlib.suppress(OSError):  # it is absent, or another engine uses it
                    folder.rmdir()


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def podman_engine(num_locks: int = NUM_LOCKS) -> Iterator[PodmanEngine]:
    """A running engine, which is removed at the end."""
    must_have(
        os.getuid() == 0 and shutil.which("podman") and shutil.which("runc") and shutil.which("docker"),
        f"root, and the packages {PACKAGES}",
    )
    with running(partial(PodmanEngine, num_locks=num_locks)) as engine:
        yield engine
