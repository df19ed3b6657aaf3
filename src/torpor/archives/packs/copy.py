"""Copy an archive of format 2 to another workspace: its packs by the store itself, and a root with other names.

Packs keep their names, because the sections refer to them. Nothing refers to the other workspace afterwards.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from torpor.archives.copying import GENERATION, REVISION
from torpor.archives.packs.crew import InlineCrew
from torpor.archives.packs.layout import pack_path, root_path
from torpor.archives.packs.pack_check import prove_pack
from torpor.archives.packs.root import fetch_root
from torpor.archives.packs.write import ArchiveRequest, WrittenArchive, prove_archive, prover
from torpor.archives.store import ArchiveStore
from torpor.archives.unpack import judged
from torpor.domain.errors import Failed
from torpor.domain.records import ArchiveKey, ProvenPack


def copy_packed(
    place: ArchiveStore, source: ArchiveKey, target: ArchiveKey, done: Callable[[int], None]
) -> WrittenArchive | None:
    """Copy what is missing in the target, write its root, and prove all; None if the source is not of format 2.

    `done` counts the stored bytes when they are copied, and the raw bytes when they are proven. Failed says which of both is
    damaged: READBACK_MISMATCH is of the copy, so another one helps, and all other codes are of the source.
    """
    if place.head(root_path(target)) is None and not _copy(place, source, target, done):
        return None
    differing: dict[str, int] = {}
    proves = prover(place, target)

    def prove(name: str, size: int) -> ProvenPack | None:
        proven = proves(name, size)
        if proven is None:
            differing[name] = size
        return proven

    try:
        with closing(InlineCrew(lambda _member, _size: {"prove": prove})) as crew:
            written = prove_archive(place, ArchiveRequest(target, GENERATION, REVISION), crew, done)
    except Failed:
        # A copy of a damaged pack is damaged, too. Then no further copy helps.
        with judged(source):
            for name, size in differing.items():
                prove_pack(place, source.workspace_id, name, size)
        raise
    return replace(written, new_bytes=written.size_bytes)


def _copy(place: ArchiveStore, source: ArchiveKey, target: ArchiveKey, done: Callable[[int], None]) -> bool:
    """False if the source is not of format 2."""
    with judged(source):
        root = fetch_root(place, source)
        if root is None:
            return False
        for name, size in sorted(root.packs.items()):
            # Also over a pack that is there: an earlier try may have left a damaged one.
            place.copy(pack_path(source.workspace_id, name), pack_path(target.workspace_id, name), size, done)
    copied = replace(root, workspace_id=target.workspace_id, op_id=target.op_id, generation=GENERATION, revision=REVISION)
    # If a root exists, another process has finished this copy; the proof that follows checks it.
    place.write_once(root_path(target), copied.serialise())
    return True
