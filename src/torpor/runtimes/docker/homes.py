"""Keep homes as volumes of an engine, each with its record and a container that holds both.

The holder is never started. Because it refers to them, `volume prune` and `volume rm` do not remove a home and its record.
"""

import asyncio
import contextlib
import io
import json
import secrets
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from torpor.domain.errors import Code, Failed, Unavailable
from torpor.domain.names import CACHE_FOLDER, OWN_FOLDER
from torpor.domain.records import Marker
from torpor.ports import Home
from torpor.runtimes import object_labels
from torpor.runtimes.docker import object_names
from torpor.runtimes.docker.docker_client import CONFLICT, NOT_FOUND, DockerClient, EngineRefusal, unless
from torpor.runtimes.docker.engine_network import EngineNetwork
from torpor.runtimes.docker.listing import EngineListing, ListedHome, ListedVolume, listing
from torpor.runtimes.docker.object_names import IDENTITY, SILENT
from torpor.runtimes.home_record import ABSENT, BIRTH_FILE, MARKER_FILE, HomeRecord, RecordState, marker_facts
from torpor.runtimes.object_labels import BIRTH, INSTALLATION, NONCE, ObjectKind, home_labels, labels
from torpor.runtimes.program_orders import HOME

FOLDER = PurePath(HOME).name
"""The folder of the home in its volume. The volume is mounted at its parent."""
HOMES = str(PurePath(HOME).parent)
"""Where the home's volume is mounted."""
IN_HOLDER = "/volume"
EMPTY_IMAGE, EMPTY_TAG = "torpor-empty", "1"
"""Imported by Torpor itself from no files."""
MOST_NAMES = 50
"""For more workspaces, everything is listed: a filter with many names is slow."""
ATTEMPTS = 8
"""How often a record is changed again after another controller was faster."""
ATTEMPT_S = 0.1
"""A container that is being created or removed has its name, but is in no list."""

Decision = Callable[[ListedHome, EngineListing], HomeRecord | None]


@dataclass(frozen=True, slots=True)
class PackedFile:
    """One entry of a tar archive; without content it is a folder."""

    path: str
    content: bytes | None
    mode: int
    user: int


class EngineHomes:
    def __init__(self, engine: DockerClient, installation: str, user: int) -> None:
        self._engine = engine
        self._installation = installation
        self._user = user
        self.identity = ""

    # ── observation ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def open_identity(self) -> str:
        """The identity of the engine; created on an engine that has no object of this installation."""
        if not self.identity:
            found = await self._list(None)
            if not found.identity:
                if found.homes or found.containers:
                    name = object_names.identity_name(self._installation)
                    raise Unavailable(f"the engine has homes of {self._installation!r}, but its volume {name} is missing")
                created = await self._create_volume(
                    object_names.identity_name(self._installation),
                    labels(self._installation, ObjectKind.IDENTITY, identity=secrets.token_hex(16)),
                )
                self.identity = created.labels.get(IDENTITY, "")
            else:
                self.identity = found.identity
        await self.hold_identity(await self.list(frozenset()))
        return self.identity

    async def hold_identity(self, found: EngineListing) -> None:
        if not found.is_identity_held:
            name = object_names.identity_name(self._installation)
            wanted = labels(self._installation, ObjectKind.IDENTITY)
            await self.create_holder(object_names.identity_holder_name(self._installation), wanted, {"/identity": name})

    async def list(self, only: frozenset[str] | None = None) -> EngineListing:
        """All objects, or those of these workspaces. Two calls to the engine; Unavailable if it is not the known engine."""
        found = await self._list(only)
        if not self.identity or found.identity != self.identity:
            name = object_names.identity_name(self._installation)
            message = (
                f"the engine's volume {name} says {found.identity or 'nothing'} instead of {self.identity or 'nothing yet'}"
            )
            raise Unavailable(f"{message}; is this another engine, or another data directory of it?")
        return found

    async def _list(self, only: frozenset[str] | None) -> EngineListing:
        installation = f"{INSTALLATION}={self._installation}"
        identity = object_names.identity_name(self._installation)
        names = [*sorted(only), identity] if only is not None and len(only) <= MOST_NAMES else []
        containers = await self._engine.containers([installation], names)
        volumes = await self._engine.volumes([installation], names)
        found = listing(containers, volumes)
        return found if only is None else found.only(only)

    # ── records ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def change(self, home: Home, decide: Decision, found: EngineListing | None = None) -> EngineListing:
        """Write the record that `decide` wants, again if another controller was faster. The listing after that.

        `found`: a listing that was just made. If it is outdated, the record is not written, and a new listing is made.
        """
        for _ in range(ATTEMPTS):
            found = found or await self.list(frozenset({home.workspace_id}))
            listed = found.of(home)
            record = decide(listed, found)
            if record is None:
                return await self.hold(listed, found)
            if (written := await self._write(listed, record)) is not None:
                return written
            found = None
        raise Unavailable(f"the record of {object_labels.home_name(home)} is changed by several controllers at once")

    async def _write(self, listed: ListedHome, record: HomeRecord) -> EngineListing | None:
        """None if another controller was faster; then nothing of this record is left."""
        home = listed.home
        name = object_names.record_name(home, record.number)
        wanted = {**home_labels(self._installation, ObjectKind.RECORD, home), **record.labels()}
        written = await self._create_volume(name, wanted)
        if written.labels.get(NONCE) != record.nonce:
            return None
        has_volume = listed.birth != ABSENT
        if not has_volume and record.state is RecordState.HALF_MADE:
            await self._make(home, record)
            has_volume = True
        if has_volume:
            await self._hold(home, record.number)
        found = await self.list(frozenset({home.workspace_id}))
        again = found.of(home)
        is_current = again.record is not None and again.record.nonce == record.nonce
        if not (is_current and (again.birth != ABSENT) == has_volume):
            await self._forget(home, (record.number,))
            if has_volume:
                await self.remove_silent(home)
            return None
        await self._forget(home, [number for number in again.numbers if number < record.number])
        return found

    async def _make(self, home: Home, record: HomeRecord) -> None:
        name = object_labels.home_name(home)
        wanted = home_labels(self._installation, ObjectKind.HOME, home, birth=record.birth)
        made = await self._create_volume(name, wanted)
        if made.labels.get(BIRTH) != record.birth:
            await self._engine.remove_volume(object_names.record_name(home, record.number))
            message = f"the engine has a volume {name} that is not Torpor's; save its files and remove it"
            raise Failed(Code.VOLUME_CREATE_FAILED, message)

    async def _forget(self, home: Home, numbers: Iterable[int]) -> None:
        """Remove records and their holders. A record that another controller has just held again is removed by that one."""
        for number in numbers:
            await self._engine.remove_container(object_names.holder_name(home, number))
            with unless(CONFLICT):
                await self._engine.remove_volume(object_names.record_name(home, number))

    async def _create_volume(self, name: str, wanted: Mapping[str, str]) -> ListedVolume:
        """The volume with this name. If it existed, it keeps its own labels."""
        try:
            return await self._engine.create_volume(name, wanted)
        except EngineRefusal as refusal:
            code = refusal.code(Code.VOLUME_CREATE_FAILED)
            raise Failed(code, f"the engine did not create the volume {name}: {refusal.message}") from refusal

    # ── holders ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def hold(self, listed: ListedHome, found: EngineListing) -> EngineListing:
        """A container refers to the home and its current record; it is created again if it was lost. The listing then."""
        if not listed.lacks_holder:
            return found
        await self._hold(listed.home, listed.number)
        found = await self.list(frozenset({listed.home.workspace_id}))
        again = found.of(listed.home)
        if again.number > listed.number:
            await self._forget(listed.home, (listed.number,))
        elif again.birth == ABSENT or again.number < listed.number:
            await self._engine.remove_container(object_names.holder_name(listed.home, listed.number))
            await self.remove_silent(listed.home)
        return found

    async def _hold(self, home: Home, number: int) -> None:
        """Without a record, the number is 0 and only the home is held."""
        sources = {IN_HOLDER: object_labels.home_name(home)}
        if number:
            sources["/record"] = object_names.record_name(home, number)
        wanted = home_labels(self._installation, ObjectKind.HOLDER, home, number=str(number))
        await self.create_holder(object_names.holder_name(home, number), wanted, sources)

    async def create_holder(self, name: str, wanted: Mapping[str, str], sources: Mapping[str, str]) -> str:
        """A container that is never started and refers to these volumes, by the paths where they are mounted."""
        config = {
            "Image": f"{EMPTY_IMAGE}:{EMPTY_TAG}",
            "Cmd": ["never started"],
            "Labels": dict(wanted),
            "HostConfig": {
                "NetworkMode": "none",
                "Mounts": [volume_mount(source, target, self._installation) for target, source in sources.items()],
            },
        }
        try:
            return await self.create_from_empty_image(name, config)
        except EngineRefusal as refusal:
            if refusal.status == CONFLICT:  # it exists
                return name
            code = refusal.code(Code.VOLUME_CREATE_FAILED)
            raise Failed(code, f"the engine refused a container: {refusal.message}") from refusal

    async def remove_silent(self, home: Home) -> None:
        """Remove volumes that the engine created because a container referred to volumes that had just been removed.

        Only for a caller that has seen the home's volume: on Podman, such a volume cannot be told from one made by hand.
        """
        name = object_labels.home_name(home)
        for volume in await self._engine.silent_volumes(f"{SILENT}={self._installation}", name):
            if volume.name != name and (object_names.parse_record_name(volume.name) or (None,))[0] != home:
                continue
            with contextlib.suppress(EngineRefusal):  # another controller's container refers to it, and that one removes it
                await self._engine.remove_volume(volume.name)

    async def create_from_empty_image(
        self, name: str, config: Mapping[str, object], network: EngineNetwork | None = None
    ) -> str:
        """A container from an image without files, which is imported if the engine lacks it."""
        try:
            return await self._engine.create_container(name, config, network)
        except EngineRefusal as refusal:
            if refusal.status != NOT_FOUND:
                raise
        await self._engine.import_image(EMPTY_IMAGE, EMPTY_TAG, packed([]))
        return await self._engine.create_container(name, config, network)

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def put_folders(self, listed: ListedHome) -> None:
        """The folders of a new home. Repeating it changes nothing."""
        birth = PackedFile(f"{OWN_FOLDER}/{BIRTH_FILE}", listed.birth.encode(), 0o644, 0)
        folders = [
            PackedFile(FOLDER, None, 0o700, self._user),
            PackedFile(OWN_FOLDER, None, 0o755, 0),
            PackedFile(f"{OWN_FOLDER}/{CACHE_FOLDER}", None, 0o700, self._user),
        ]
        await self._put(listed.home, [*folders, birth])

    async def put_marker(self, listed: ListedHome, marker: Marker) -> None:
        content = json.dumps(marker_facts(marker, listed.birth)).encode()
        files = [PackedFile(OWN_FOLDER, None, 0o755, 0), PackedFile(f"{OWN_FOLDER}/{MARKER_FILE}", content, 0o644, 0)]
        await self._put(listed.home, files)

    async def _put(self, home: Home, files: Iterable[PackedFile]) -> None:
        """Write files to the volume through its holder, which another controller may replace meanwhile."""
        archive = packed(files)
        for _ in range(ATTEMPTS):
            found = await self.list(frozenset({home.workspace_id}))
            listed = (await self.hold(found.of(home), found)).of(home)
            if listed.birth == ABSENT:
                raise Failed(Code.VOLUME_NOT_READY, f"there is no volume of generation {home.generation}")
            if listed.holder is None:  # another controller is creating or replacing it
                await asyncio.sleep(ATTEMPT_S)
                continue
            try:
                return await self._engine.put_files(listed.holder, IN_HOLDER, archive)
            except EngineRefusal as refusal:
                if refusal.status != NOT_FOUND:
                    code = refusal.code(Code.VOLUME_CREATE_FAILED)
                    raise Failed(code, f"the engine cannot write to the volume: {refusal.message}") from refusal
        raise Unavailable(f"the record of {object_labels.home_name(home)} is changed by several controllers at once")

    # ── removal ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def remove(self, home: Home, decide: Decision, found: EngineListing) -> None:
        """Mark the home as going, then remove everything of it. The mark is last, so that an interrupted removal goes on."""
        if home not in found.homes:
            return
        listed = (await self.change(home, decide, found)).of(home)
        users = [user.id for user in (*listed.jobs, listed.container) if user is not None]
        for container in (*users, *listed.holders.values()):
            await self._engine.remove_container(container)
        try:
            await self._engine.remove_volume(object_labels.home_name(home))
        except EngineRefusal as refusal:
            raise Failed(Code.INTERNAL, f"the engine does not remove the volume: {refusal.message}") from refusal
        await self._forget(home, listed.numbers)


def volume_mount(source: str, target: str, installation: str, *, read_only: bool = False) -> dict[str, object]:
    """A volume in a container. If it is missing, the engine creates an empty one, with a label that says so."""
    options = {"NoCopy": True, "Labels": {SILENT: installation}}
    return {"Type": "volume", "Source": source, "Target": target, "ReadOnly": read_only, "VolumeOptions": options}


@contextlib.contextmanager
def unpadded_tar(archive: io.BytesIO) -> Iterator[tarfile.TarFile]:
    """A tar archive that ends with its end mark: Podman stops reading there, and fails if there is more."""
    with tarfile.open(fileobj=archive, mode="w") as tar:
        yield tar
        end = tar.offset + 2 * tarfile.BLOCKSIZE
    archive.truncate(end)


def packed(files: Iterable[PackedFile]) -> bytes:
    """A tar archive."""
    archive = io.BytesIO()
    with unpadded_tar(archive) as tar:
        for file in files:
            entry = tarfile.TarInfo(file.path)
            entry.mode, entry.uid, entry.gid = file.mode, file.user, file.user
            if file.content is None:
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            else:
                entry.size = len(file.content)
                tar.addfile(entry, io.BytesIO(file.content))
    return archive.getvalue()
