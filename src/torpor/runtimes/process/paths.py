"""Define the paths and names of everything that the process runtime creates."""

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from torpor.domain import names
from torpor.domain.errors import Hopeless
from torpor.ports import Home


def volume_name(home: Home) -> str:
    # The id becomes part of paths and interface names, so another format is a bug of the caller.
    if not names.is_id(home.workspace_id) or home.generation < 1:
        raise ValueError(f"{home} cannot be the name of a volume")
    return names.volume_name(home.workspace_id, home.generation)


def home_of(name: str) -> Home | None:
    """The reverse of `volume_name`; None for other names."""
    found = names.parse_volume_name(name)
    return Home(*found) if found else None


def short(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


@dataclass(frozen=True, slots=True)
class RuntimePaths:
    data: Path
    run: Path
    """Sockets and other files of this boot. The path is short, because a Unix socket's path has at most 107 bytes."""
    tag: str
    """Five characters that identify this data directory on the machine."""

    @property
    def volumes(self) -> Path:
        return self.data / "volumes"

    @property
    def trash(self) -> Path:
        return self.volumes / ".trash"

    @property
    def identity(self) -> Path:
        """In the volumes' root: a root that is not mounted does not have it."""
        return self.volumes / ".identity"

    @property
    def known_identity(self) -> Path:
        """In the data directory: the identity of the volumes' root that belongs to it."""
        return self.data / "volumes.identity"

    @property
    def lock(self) -> Path:
        return self.data / "runtime.lock"

    @property
    def ballast(self) -> Path:
        """A file that reserves space; it is removed when the disk is full."""
        return self.data / "ballast"

    @property
    def programs(self) -> Path:
        return self.data / "programs"

    @property
    def records(self) -> Path:
        return self.run / "processes"

    def volume(self, home: Home) -> Path:
        return self.volumes / volume_name(home)

    def log(self, workspace_id: str) -> Path:
        return self.data / "logs" / f"ws-{workspace_id}.log"

    def container(self, workspace_id: str) -> Path:
        return self.run / short(workspace_id, 16)

    def program(self, workspace_id: str) -> Path:
        """A directory of the workspace's user for the socket of its program; only without a sandbox."""
        return self.run / f"{short(workspace_id, 16)}.program"


def runtime_paths(data_dir: Path) -> RuntimePaths:
    data = data_dir.expanduser().resolve()
    key = short(str(data), 12)
    return RuntimePaths(data, _run_root() / f"torpor-{os.getuid()}-{key}", key[:5])


def _run_root() -> Path:
    """/run, or /run/user if not root: in memory and private. The path of the data directory may be too long for sockets."""
    candidates = [Path("/run")] if os.getuid() == 0 else [Path(f"/run/user/{os.getuid()}")]
    return next((path for path in candidates if path.is_dir() and os.access(path, os.W_OK | os.X_OK)), Path("/tmp"))  # noqa: S108


def make_run_directory(path: Path, mode: int = 0o700) -> None:
    """Create it, and check its owner: in /tmp another user could have created it first."""
    path.mkdir(mode=0o700, exist_ok=True)
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise Hopeless(f"{path}, the directory for workspaces' sockets, belongs to another user; remove it")
    path.chmod(mode)
