"""Store homes as directories, and observe which of them are complete.

A volume is a directory. A workspace sees only its `home/`. Beside that are small files: `half-made` until the home is complete
and `marker.json` from then on, `opened.json` (the highest revision it was started with) and `epoch.json` (the newest epoch of a
controller that changed it). Everything here blocks: call it in a thread.
"""

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from torpor import atomic_file
from torpor.domain.disk import Disk
from torpor.domain.errors import Code, Failed, Unavailable
from torpor.domain.records import Marker, ObservedVolume
from torpor.ports import Fence, Home
from torpor.runtimes.process import volume_files
from torpor.runtimes.process.directory_tree import give_tree, remove_tree
from torpor.runtimes.process.paths import RuntimePaths, home_of
from torpor.runtimes.process.volume_files import UnreadableFile

TRAVERSABLE = 0o711
"""Set for any umask: without a sandbox a workspace's user traverses these directories to its home."""
OUT_OF_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


class Volumes:
    def __init__(self, paths: RuntimePaths) -> None:
        self._paths = paths
        self._epochs: dict[str, int] = {}
        self.identity = ""

    # ── the root ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def open_root(self) -> None:
        """Create the root with an identity on first use; later, require that identity."""
        known, root = self._paths.known_identity, self._paths.volumes
        self._paths.data.mkdir(parents=True, exist_ok=True)
        if not known.exists():
            root.mkdir(exist_ok=True)
            root.chmod(TRAVERSABLE)
            if not self._paths.identity.exists():
                if any(root.iterdir()):
                    raise Unavailable(f"{root} is not empty and has no .identity; move it away, or restore that file")
                atomic_file.write(self._paths.identity, f"{uuid.uuid4()}\n".encode())
            atomic_file.write(known, self._paths.identity.read_bytes())
        self.require_root()
        # Created early: a full disk may have no space for the directory that is needed to remove volumes.
        with contextlib.suppress(OSError):
            self._paths.trash.mkdir(mode=0o700, exist_ok=True)

    def require_root(self) -> None:
        """Raise Unavailable if the root is not the known one: an unmounted disk looks like an empty root."""
        try:
            known = self._paths.known_identity.read_text().strip()
            found = self._paths.identity.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            message = f"the identity of {self._paths.volumes} cannot be read, so it may not be mounted: {error}"
            raise Unavailable(message) from error
        if not found or found != known:
            raise Unavailable(
                f"{self._paths.volumes} is a different disk ({found or 'no identity'}) than expected ({known}); is it mounted?"
            )
        self.identity = found

    # ── observation ───────────────────────────────────────────────────────────────────────────────────────────────────

    def all(self, only: frozenset[str] | None) -> dict[str, frozenset[ObservedVolume]]:
        self.require_root()
        found: dict[str, set[ObservedVolume]] = {}
        try:
            names = os.listdir(self._paths.volumes)  # noqa: PTH208
        except OSError as error:
            raise Unavailable(f"cannot list {self._paths.volumes}: {error}") from error
        for name in names:
            home = home_of(name)
            if home is not None and (only is None or home.workspace_id in only):
                found.setdefault(home.workspace_id, set()).add(self.seen(home))
        self.require_root()  # it may have been unmounted during the listing
        return {workspace_id: frozenset(volumes) for workspace_id, volumes in found.items()}

    def home_path(self, home: Home) -> Path:
        return self._paths.volume(home) / "home"

    def seen(self, home: Home) -> ObservedVolume:
        """A volume is complete if it has its own marker and a home. Otherwise `fault` says what is wrong."""
        volume, inner = self._paths.volume(home), self.home_path(home)
        marker, folder = volume_files.read_marker(volume), volume_files.directory_exists(inner)
        marker_path, is_ours = volume / volume_files.MARKER, _is_ours(marker, home)
        match marker, folder:
            case Marker(home.workspace_id, home.generation) as whole, True:
                return ObservedVolume(home.generation, whole)
            case _ if not is_ours:
                fault = f"its marker names another workspace: {marker_path} (if its files belong to this one, remove it)"
            case _, False:
                fault = f"the home's folder is missing: {inner}"
            case UnreadableFile(path, why), _:
                fault = f"its marker cannot be read: {path} ({why})"
            case _, UnreadableFile(path, why):
                fault = f"the home's folder cannot be read: {path} ({why})"
            case Marker(), _:
                fault = f"its marker names another home: {marker_path}"
            case _:
                fault = f"its marker is missing: {marker_path}"
        if volume_files.is_empty_folder(inner):
            fault += ", and the home's folder is empty"
        is_illegible = not volume_files.is_half_made(volume)
        return ObservedVolume(home.generation, None, is_illegible, fault, str(inner), has_home=is_ours and folder is not False)

    def disk(self) -> Disk:
        found = os.statvfs(self._paths.volumes)
        return Disk(str(self._paths.volumes), found.f_bavail * found.f_frsize)

    def is_beside_data(self) -> bool:
        """Whether the homes are on the disk of the data directory, which also contains the database of `torpor up`."""
        try:
            return self._paths.volumes.stat().st_dev == self._paths.data.stat().st_dev
        except OSError:
            return False

    def opened(self, home: Home) -> int | UnreadableFile:
        """The highest revision that the home was started with."""
        opened = volume_files.read_opened(self._paths.volume(home))
        return 0 if opened is None else opened

    # ── changes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def ensure(self, home: Home, user: int | None) -> None:
        path = self._paths.volume(home)
        with translate_errors(Code.VOLUME_CREATE_FAILED, f"cannot create the volume {path.name}"):
            path.mkdir(exist_ok=True)
            path.chmod(TRAVERSABLE)
            inner = self.home_path(home)
            if not inner.exists():
                volume_files.write_half_made(path)  # before the home exists
            # Only for a new home: the owner of the top directory states that the whole tree belongs to that user.
            with contextlib.suppress(FileExistsError):
                inner.mkdir(mode=0o700)
                if user is not None:
                    os.chown(inner, user, user)
            atomic_file.sync_directory(path)
            atomic_file.sync_directory(path.parent)

    def mark(self, home: Home, marker: Marker) -> None:
        """Write the marker, unless the volume has the marker of another workspace: the files belong to its owner."""
        volume = self._paths.volume(home)
        with translate_errors(Code.VOLUME_CREATE_FAILED, "cannot write the volume's marker"):
            if not self.home_path(home).is_dir():
                raise Failed(Code.VOLUME_NOT_READY, f"there is no volume of generation {home.generation} to mark")
            if not _is_ours(volume_files.read_marker(volume), home):
                message = f"the volume of generation {home.generation} is not accepted: its marker names another workspace"
                raise Failed(Code.VOLUME_NOT_READY, f"{message}: {volume / volume_files.MARKER}")
            volume_files.write_marker(volume, marker)

    def open(self, home: Home, revision: int) -> None:
        """Record the revision before a start, so that an archive of an earlier revision does not permit removal.

        An unreadable number is replaced: the database counts revisions, and this is the latest.
        """
        opened = self.opened(home)
        if isinstance(opened, UnreadableFile) or revision > opened:
            with translate_errors(Code.CONTAINER_START_FAILED, "cannot note that the volume is opened"):
                volume_files.write_opened(self._paths.volume(home), revision)

    def own(self, home: Home, user: int | None, is_given_up: Callable[[], bool] = lambda: False) -> None:
        """Give the home to the user that runs the workspace now. `is_given_up` is checked before each file."""
        path = self.home_path(home)
        if user is not None and path.stat().st_uid != user:
            with translate_errors(Code.CONTAINER_START_FAILED, "cannot give the home to its user"):
                give_tree(path, user, is_given_up)

    def trash_path(self, home: Home) -> Path:
        """A new path in the trash. The caller knows it before the rename, so it is removed even if the rename raises."""
        return self._paths.trash / f"{self._paths.volume(home).name}.{uuid.uuid4().hex}"

    def move_to_trash(self, home: Home, trashed: Path) -> None:
        """Remove the volume atomically, by a rename. `empty_trash` removes the files later."""
        path = self._paths.volume(home)
        with translate_errors(Code.INTERNAL, f"cannot move the volume {path.name} to the trash"):
            self._paths.trash.mkdir(mode=0o700, exist_ok=True)
            try:
                path.rename(trashed)
            except FileNotFoundError:
                return
            atomic_file.sync_directory(self._paths.volumes)

    def empty_trash(self, trashed: Path | None = None) -> None:
        """Remove this tree of the trash, or all. The next start retries those that cannot be removed."""
        with contextlib.suppress(FileNotFoundError):
            for path in [trashed] if trashed else list(self._paths.trash.iterdir()):
                remove_tree(path)  # it does not raise, so the other trees are removed too

    # ── fencing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def admit(self, workspace_id: str, fence: Fence) -> None:
        """Refuse callers with an older epoch than one already seen here for this workspace.

        If the epoch on disk cannot be read, the first caller is refused as well. A controller that still holds the row retries
        with a later epoch and is admitted; a controller that lost the row cannot do that.
        """
        homes = self._homes_of(workspace_id)
        found = [volume_files.read_epoch(self._paths.volume(home)) for home in homes]
        newest = self._epochs.get(workspace_id)
        if newest is None:
            newest = max((fence.epoch + 1 if isinstance(one, UnreadableFile) else one or 0 for one in found), default=0)
        if homes:  # without a volume no epoch is needed, and the dictionary would grow with every id
            self._epochs[workspace_id] = max(newest, fence.epoch)
        if fence.epoch < newest:
            raise Failed(Code.STALE_EPOCH, f"epoch {fence.epoch} is outdated: epoch {newest} has been seen", seen=newest)
        for home, epoch in zip(homes, found, strict=True):
            if not isinstance(epoch, int) or epoch < fence.epoch:
                volume_files.write_epoch(self._paths.volume(home), fence.epoch)

    def forget(self, workspace_id: str) -> None:
        """Drop the epoch if the workspace has no volume."""
        if not self._homes_of(workspace_id):
            self._epochs.pop(workspace_id, None)

    def _homes_of(self, workspace_id: str) -> list[Home]:
        prefix = f"ws-{workspace_id}-home-"
        homes = (home_of(name) for name in os.listdir(self._paths.volumes) if name.startswith(prefix))  # noqa: PTH208
        return [home for home in homes if home is not None and home.workspace_id == workspace_id]


def _is_ours(marker: Marker | UnreadableFile | None, home: Home) -> bool:
    """Whether no marker names another workspace."""
    return not isinstance(marker, Marker) or marker.workspace_id == home.workspace_id


@contextlib.contextmanager
def translate_errors(code: Code, what: str) -> Iterator[None]:
    """Translate OSErrors to Failed: DISK_FULL if the disk is full, `code` otherwise."""
    try:
        yield
    except OSError as error:
        raise Failed(Code.DISK_FULL if error.errno in OUT_OF_SPACE else code, f"{what}: {error}") from error
