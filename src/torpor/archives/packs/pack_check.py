"""Check packs in the store: that they exist, and that their bytes are those that their names promise."""

from torpor.archives.entries import ArchiveMismatch
from torpor.archives.packs.layout import PACKS, pack_path
from torpor.archives.packs.root import Root
from torpor.archives.store import ArchiveStore, ObjectMissing, new_digest
from torpor.domain.records import ProvenPack


def check_packs(place: ArchiveStore, root: Root) -> None:
    """All packs of this archive exist and have the right size. Their content is not read."""
    # A listing is one request for a thousand packs. It may be late, so a pack that it does not have is asked for.
    sizes = {stored.path: stored.size for page in place.sizes(f"{root.workspace_id}/{PACKS}") for stored in page}
    for name, size in root.packs.items():
        path = pack_path(root.workspace_id, name)
        _check_size(path, sizes[path] if sizes.get(path) == size else place.size(path), size)


def prove_pack(place: ArchiveStore, workspace_id: str, name: str, size_bytes: int) -> ProvenPack:
    """Read the pack and compare it with its name."""
    return place.confirmed(lambda: _prove_once(place, workspace_id, name, size_bytes))


def _prove_once(place: ArchiveStore, workspace_id: str, name: str, size_bytes: int) -> ProvenPack:
    path = pack_path(workspace_id, name)
    # Its version is read first: if the pack changes afterwards, the version does not fit any more.
    found = place.head(path)
    _check_size(path, None if found is None else found.size, size_bytes)
    assert found is not None
    digest = new_digest()
    for _ in place.windows(path, size_bytes, digest):
        pass
    if not name.endswith(f"-{digest.hexdigest()}"):
        raise ArchiveMismatch(f"the content of {path} differs from its name", object=path)
    return ProvenPack(name, size_bytes, found.version, is_read_back=True)


def _check_size(path: str, found: int | None, expected: int) -> None:
    if found is None:
        raise ObjectMissing(f"{path} is missing", object=path)
    if found != expected:
        raise ArchiveMismatch(f"{path} has {found} bytes, expected {expected}", object=path)
