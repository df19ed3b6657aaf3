"""Archives that write format 2 unless a caller chooses another one."""

from torpor.archives.archives import HomeArchives
from torpor.domain.records import ArchiveKey, ProvenArchive
from torpor.ports import ArchiveBase, Home, HomeJob


class PackedArchives(HomeArchives):
    def pack_job(
        self,
        key: ArchiveKey,
        home: Home,
        revision: int,
        *,
        format: int = 2,  # noqa: A002
        base: ArchiveBase | None = None,
    ) -> HomeJob:
        return super().pack_job(key, home, revision, format=format, base=base)

    async def create_empty(self, key: ArchiveKey, home: Home, revision: int, *, format: int = 2) -> ProvenArchive:  # noqa: A002
        return await super().create_empty(key, home, revision, format=format)
