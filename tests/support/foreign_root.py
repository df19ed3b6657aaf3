"""Run programs of the kit in a root that has nothing of this machine: the kit, /proc, /dev, /data, and a few given files."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.requirements import must_have
from torpor.kit import layout
from torpor.system_packages import find

UID = 12345
"""No image has an entry for it in /etc/passwd."""
TIMEOUT_S = 60.0
# Really another user, not only one in a user namespace, who would have the rights of the user who runs the tests.
BECOME = f"""
import os, sys
os.setgroups([])
os.setresgid({UID}, {UID}, {UID})
os.setresuid({UID}, {UID}, {UID})
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True, slots=True)
class ForeignRoot:
    path: Path
    kit: Path
    work: Path
    """The only folder in which its programs can write; /data inside."""

    def argv(self, command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        words = [str(find("bwrap")), "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--as-pid-1", "--clearenv"]
        words += ["--ro-bind", str(self.path), "/", "--ro-bind", str(self.kit), str(layout.MOUNT)]
        words += ["--proc", "/proc", "--dev", "/dev", "--bind", str(self.work), "/data", "--chdir", "/"]
        for name, value in environment.items():
            words += ["--setenv", name, value]
        if os.getuid() == 0:
            return [*words, "--", *layout.python_argv(), "-c", BECOME, *command]
        return [*words, "--unshare-user", "--uid", str(UID), "--gid", str(UID), "--", *command]

    def run(
        self, command: Sequence[str], *, stdin: bytes = b"", environment: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[bytes]":
        environment = layout.environment() if environment is None else environment
        return subprocess.run(self.argv(command, environment), input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False)

    def python(self, program: str, *, environment: Mapping[str, str] | None = None) -> str:
        """The output of a program that must succeed."""
        ended = self.run([*layout.python_argv(), "-c", program], environment=environment)
        assert ended.returncode == 0, ended.stderr.decode()
        return ended.stdout.decode()

    def add(self, source: Path, target: str) -> None:
        """Copy a file of this machine into the root."""
        place = self.path / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place)


def foreign_root(folder: Path, kit: Path) -> ForeignRoot:
    """A new root in a folder that other users can reach; skips the test if bubblewrap cannot make one here."""
    must_have(find("bwrap"), "bubblewrap")
    root, work = folder / "root", folder / "work"
    for name in ("opt/torpor", "proc", "dev", "data"):
        (root / name).mkdir(parents=True)
    work.mkdir()
    if os.getuid() == 0:
        os.chown(work, UID, UID)
    made = ForeignRoot(root, kit, work)
    tried = subprocess.run(
        [str(find("bwrap")), "--ro-bind", "/", "/", "--unshare-pid", "--proc", "/proc", sys.executable, "-c", ""],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    must_have(tried.returncode == 0, f"the right to make a sandbox: {tried.stderr.decode()}")
    return made
