"""Which homes lie on this disk, and which of them are whole?

A volume is a directory. `home/` in it is all that a workspace sees; beside it, out of its reach, lie small files: `half-made`
until the home is whole and `marker.json` from then on, `opened.json` (the highest revision it was started with) and
`epoch.json` (the newest controller that touched it). Everything here blocks: call it in a thread.
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
"""Whatever our umask is: without a sandbox a workspace's user reaches its home through these."""
OUT_OF_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


class Volumes:
    def __init__(self, places: RuntimePaths) -> None:
        self._places = places
        self._epochs: dict[str, int] = {}
        self.identity = ""

    # ── the root ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def open_root(self) -> None:
        """On the very first use make the root and give it an identity; ever after insist on that one."""
        known, root = self._places.known_identity, self._places.volumes
        self._places.data.mkdir(parents=True, exist_ok=True)
        if not known.exists():
            root.mkdir(exist_ok=True)
            root.chmod(TRAVERSABLE)
            if not self._places.identity.exists():
                if any(root.iterdir()):
                    raise Unavailable(f"{root} holds something but no .identity; move it away, or restore the file")
                atomic_file.write(self._places.identity, f"{uuid.uuid4()}\n".encode())
            atomic_file.write(known, self._places.identity.read_bytes())
        self.require_root()
        # Now: when the disk is full, there may be no room for the directory through which it is cleared.
        with contextlib.suppress(OSError):
            self._places.trash.mkdir(mode=0o700, exist_ok=True)

    def require_root(self) -> None:
        """A root that was not mounted says nothing about what is in it."""
        try:
            known = self._places.known_identity.read_text().strip()
            found = self._places.identity.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Unavailable(f"the volumes at {self._places.volumes} cannot be told from an empty disk: {error}") from error
        if not found or found != known:
            raise Unavailable(
                f"{self._places.volumes} is another disk ({found or 'no identity'}) than the one we know ({known})"
            )
        self.identity = found

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def all(self, only: frozenset[str] | None) -> dict[str, frozenset[ObservedVolume]]:
        self.require_root()
        found: dict[str, set[ObservedVolume]] = {}
        try:
            names = os.listdir(self._places.volumes)  # noqa: PTH208
        except OSError as error:
            raise Unavailable(f"cannot list {self._places.volumes}: {error}") from error
        for name in names:
            home = home_of(name)
            if home is not None and (only is None or home.workspace_id in only):
                found.setdefault(home.workspace_id, set()).add(self.seen(home))
        self.require_root()  # it may have gone while we looked
        return {workspace_id: frozenset(volumes) for workspace_id, volumes in found.items()}

    def home_path(self, home: Home) -> Path:
        return self._places.volume(home) / "home"

    def seen(self, home: Home) -> ObservedVolume:
        """It is whole with the marker of this very volume and a home beside it. Otherwise `fault` says what is wrong."""
        volume, inner = self._places.volume(home), self.home_path(home)
        marker, folder = volume_files.read_marker(volume), volume_files.directory_exists(inner)
        marker_path, is_ours = volume / volume_files.MARKER, _is_ours(marker, home)
        match marker, folder:
            case Marker(home.workspace_id, home.generation) as whole, True:
                return ObservedVolume(home.generation, whole)
            case _ if not is_ours:
                fault = f"its marker names another workspace: {marker_path} (if its files are of this one, remove the marker)"
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
        found = os.statvfs(self._places.volumes)
        return Disk(str(self._places.volumes), found.f_bavail * found.f_frsize)

    def is_beside_data(self) -> bool:
        """Whether the homes share the disk of the data directory, in which the database of `torpor up` is."""
        try:
            return self._places.volumes.stat().st_dev == self._places.data.stat().st_dev
        except OSError:
            return False

    def opened(self, home: Home) -> int | UnreadableFile:
        """The highest revision that it was ever started with."""
        opened = volume_files.read_opened(self._places.volume(home))
        return 0 if opened is None else opened

    # ── changing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def ensure(self, home: Home, user: int | None) -> None:
        path = self._places.volume(home)
        with translate_errors(Code.VOLUME_CREATE_FAILED, f"cannot create the volume {path.name}"):
            path.mkdir(exist_ok=True)
            path.chmod(TRAVERSABLE)
            inner = self.home_path(home)
            if not inner.exists():
                volume_files.write_half_made(path)  # before there is a home in it
            # Only a new home is given to its user here: the owner of its top says that the whole tree is that user's.
            with contextlib.suppress(FileExistsError):
                inner.mkdir(mode=0o700)
                if user is not None:
                    os.chown(inner, user, user)
            atomic_file.sync_directory(path)
            atomic_file.sync_directory(path.parent)

    def mark(self, home: Home, marker: Marker) -> None:
        """A marker that names another workspace stays: its owner's files are no one else's."""
        volume = self._places.volume(home)
        with translate_errors(Code.VOLUME_CREATE_FAILED, "cannot write the volume's marker"):
            if not self.home_path(home).is_dir():
                raise Failed(Code.VOLUME_NOT_READY, f"there is no volume of generation {home.generation} to mark")
            if not _is_ours(volume_files.read_marker(volume), home):
                message = f"the volume of generation {home.generation} is not accepted: its marker names another workspace"
                raise Failed(Code.VOLUME_NOT_READY, f"{message}: {volume / volume_files.MARKER}")
            volume_files.write_marker(volume, marker)

    def open(self, home: Home, revision: int) -> None:
        """Written before a start, so that no archive of an earlier revision permits the volume's removal.

        A number that cannot be read is replaced: the row counts revisions, and this one is its latest.
        """
        opened = self.opened(home)
        if isinstance(opened, UnreadableFile) or revision > opened:
            with translate_errors(Code.CONTAINER_START_FAILED, "cannot note that the volume is opened"):
                volume_files.write_opened(self._places.volume(home), revision)

    def own(self, home: Home, user: int | None, is_given_up: Callable[[], bool] = lambda: False) -> None:
        """Make the home belong to the user that runs the workspace now. `is_given_up`: asked for each of its files."""
        path = self.home_path(home)
        if user is not None and path.stat().st_uid != user:
            with translate_errors(Code.CONTAINER_START_FAILED, "cannot give the home to its user"):
                give_tree(path, user, is_given_up)

    def grave_of(self, home: Home) -> Path:
        """A new one with each call. It is known before the rename, so that it is burned also when the rename raises."""
        return self._places.trash / f"{self._places.volume(home).name}.{uuid.uuid4().hex}"

    def throw_away(self, home: Home, grave: Path) -> None:
        """Gone in one instant, by a rename; the tree is removed afterwards, see `burn`."""
        path = self._places.volume(home)
        with translate_errors(Code.INTERNAL, f"cannot throw the volume {path.name} away"):
            self._places.trash.mkdir(mode=0o700, exist_ok=True)
            try:
                path.rename(grave)
            except FileNotFoundError:
                return
            atomic_file.sync_directory(self._places.volumes)

    def burn(self, grave: Path | None = None) -> None:
        """Remove this grave, or all of them. What cannot be removed now is swept at the next start."""
        with contextlib.suppress(FileNotFoundError):
            for path in [grave] if grave else list(self._places.trash.iterdir()):
                remove_tree(path)  # it does not raise: one bad grave is not the others' trouble

    # ── fencing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def admit(self, workspace_id: str, fence: Fence) -> None:
        """Refuse callers with an older epoch than one already seen here for this workspace.

        Where the epoch on the disk cannot be read, the first caller is refused, too: the controller that holds the row takes it
        again under a later epoch and is admitted, and one that lost the row cannot do that.
        """
        homes = self._homes_of(workspace_id)
        found = [volume_files.read_epoch(self._places.volume(home)) for home in homes]
        newest = self._epochs.get(workspace_id)
        if newest is None:
            newest = max((fence.epoch + 1 if isinstance(one, UnreadableFile) else one or 0 for one in found), default=0)
        if homes:  # otherwise there is nothing to guard, and every id ever asked about would be kept
            self._epochs[workspace_id] = max(newest, fence.epoch)
        if fence.epoch < newest:
            raise Failed(Code.STALE_EPOCH, f"epoch {fence.epoch} is over, {newest} has been here", seen=newest)
        for home, epoch in zip(homes, found, strict=True):
            if not isinstance(epoch, int) or epoch < fence.epoch:
                volume_files.write_epoch(self._places.volume(home), fence.epoch)

    def forget(self, workspace_id: str) -> None:
        """Its last volume is gone; while there is one, its epoch stays known."""
        if not self._homes_of(workspace_id):
            self._epochs.pop(workspace_id, None)

    def _homes_of(self, workspace_id: str) -> list[Home]:
        prefix = f"ws-{workspace_id}-home-"
        homes = (home_of(name) for name in os.listdir(self._places.volumes) if name.startswith(prefix))  # noqa: PTH208
        return [home for home in homes if home is not None and home.workspace_id == workspace_id]


def _is_ours(marker: Marker | UnreadableFile | None, home: Home) -> bool:
    """No marker says that the volume is another workspace's."""
    return not isinstance(marker, Marker) or marker.workspace_id == home.workspace_id


@contextlib.contextmanager
def translate_errors(code: Code, what: str) -> Iterator[None]:
    """A full disk is a full disk, whatever was being done; everything else has the name of what was being done."""
    try:
        yield
    except OSError as error:
        raise Failed(Code.DISK_FULL if error.errno in OUT_OF_SPACE else code, f"{what}: {error}") from error
