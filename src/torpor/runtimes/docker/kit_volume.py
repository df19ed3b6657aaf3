"""Put the kit into a volume of the engine, once, so that every container can mount it.

The kit is a folder with an interpreter and Torpor's programs that run in any image. Its volume counts only while a second,
empty volume says that it was filled. Both have the same random `birth`, so an empty volume that the engine created by itself
is never taken for a kit.
"""

import asyncio
import io
import secrets
import tarfile
from pathlib import Path

from torpor.domain.errors import Code, Failed
from torpor.kit import layout
from torpor.kit.manifest import Kit
from torpor.runtimes.docker.docker_client import DockerClient, EngineRefusal
from torpor.runtimes.docker.homes import EngineHomes, unpadded_tar, volume_mount
from torpor.runtimes.object_labels import BIRTH, KIND, ObjectKind, labels

MOUNT = str(layout.MOUNT)


class KitVolume:
    def __init__(self, client: DockerClient, homes: EngineHomes, installation: str, kit: Kit) -> None:
        self._client = client
        self._homes = homes
        self._installation = installation
        self._kit = kit
        self._lock = asyncio.Lock()

    @property
    def name(self) -> str:
        return f"torpor-kit-{self._kit.manifest.hash[:32]}"

    def mount(self) -> dict[str, object]:
        return volume_mount(self.name, MOUNT, self._installation, read_only=True)

    async def ensure(self) -> None:
        """The volume exists and is filled."""
        async with self._lock:
            if not await self._is_filled():
                try:
                    await self._fill()
                except EngineRefusal as refusal:
                    if await self._is_filled():  # another controller was faster, and removed our container
                        return
                    code = refusal.code(Code.CONTAINER_START_FAILED)
                    raise Failed(code, f"the engine refused Torpor's kit: {refusal.message}") from refusal

    async def _is_filled(self) -> bool:
        found = {volume.name: volume for volume in await self._client.volumes([f"{KIND}={ObjectKind.KIT}"], [self.name])}
        volume, filled = found.get(self.name), found.get(f"{self.name}-filled")
        return volume is not None and filled is not None and volume.labels.get(BIRTH) == filled.labels.get(BIRTH)

    async def _fill(self) -> None:
        filled = f"{self.name}-filled"
        await self._client.remove_container(f"{self.name}-holder")
        await self._client.remove_volume(filled)
        wanted = labels(self._installation, ObjectKind.KIT, birth=secrets.token_hex(16))
        volume = await self._client.create_volume(self.name, wanted)
        if not volume.labels.get(BIRTH):
            message = f"the engine has a volume {self.name} that is not Torpor's; remove it"
            raise Failed(Code.CONTAINER_START_FAILED, message)
        filler = await self._homes.create_holder(
            f"{self._filler}{secrets.token_hex(6)}", labels(self._installation, ObjectKind.KIT), {MOUNT: self.name}
        )
        try:
            await self._client.put_files(filler, MOUNT, await asyncio.to_thread(packed_folder, self._kit.path))
        finally:
            await self._client.remove_container(filler)
        same = labels(self._installation, ObjectKind.KIT, birth=volume.labels.get(BIRTH, ""))
        await self._client.create_volume(filled, same)
        await self._homes.create_holder(
            f"{self.name}-holder", labels(self._installation, ObjectKind.KIT), {MOUNT: self.name, "/filled": filled}
        )
        await self._remove_fillers()

    @property
    def _filler(self) -> str:
        """The beginning of the names of containers through which the volume is filled."""
        return f"{self.name}-filler-"

    async def _remove_fillers(self) -> None:
        """Those of controllers that were killed, too."""
        for filler in await self._client.containers([f"{KIND}={ObjectKind.KIT}"], [self._filler]):
            await self._client.remove_container(filler.id)


def packed_folder(folder: Path) -> bytes:
    """A tar archive of all files of this folder, owned by root."""

    def owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    archive = io.BytesIO()
    with unpadded_tar(archive) as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name, filter=owned_by_root)
    return archive.getvalue()
