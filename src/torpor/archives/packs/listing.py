"""The objects of both formats in a listing of the archive store."""

from collections.abc import Iterator, Sequence

from torpor.archives.manifest import MANIFEST_NAME
from torpor.archives.packs.layout import PACKS, ROOT_SUFFIX, ROOTS
from torpor.archives.store import ArchiveStore, StoredObject
from torpor.domain.names import is_id, pack_op_id
from torpor.domain.records import ArchiveKey
from torpor.ports import ListedArchive, ListedPack


def listed(place: ArchiveStore) -> Iterator[Sequence[ListedArchive | ListedPack]]:
    """All archives and packs in the store, in pages. Other objects are ignored.

    An archive may occur several times; it is whole if one of them is.
    """
    for page in place.objects((PACKS, ROOTS)):
        yield [found for found in map(_listed, page) if found is not None]


def _listed(stored: StoredObject) -> ListedArchive | ListedPack | None:
    parts = stored.path.split("/", 2)
    if len(parts) != 3 or not is_id(parts[0]):
        return None
    workspace_id, folder, name = parts
    if is_id(folder):
        return ListedArchive(ArchiveKey(workspace_id, folder), is_whole=name == MANIFEST_NAME)
    if folder == PACKS and pack_op_id(name) is not None:
        return ListedPack(workspace_id, name, stored.size, stored.is_whole)
    op_id = name.removesuffix(ROOT_SUFFIX)
    if folder == ROOTS and name.endswith(ROOT_SUFFIX) and is_id(op_id):
        return ListedArchive(ArchiveKey(workspace_id, op_id), stored.is_whole)
    return None
