"""Copy an archive of format 2 to another workspace: its packs by the store itself, and a root with other names.

Packs keep their names, because the sections refer to them. Nothing refers to the other workspace afterwards.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from torpor.archives.packs.crew import InlineCrew
from torpor.archives.packs.layout import pack_path, root_path
from torpor.archives.packs.root import fetch_root
from torpor.archives.packs.write import ArchiveRequest, WrittenArchive, prove_archive, prover
from torpor.archives.store import ArchiveStore
from torpor.domain.records import ArchiveKey

# A fork begins with its copy: it has had no home yet.
GENERATION = REVISION = 0


def copy_packed(
    place: ArchiveStore, source: ArchiveKey, target: ArchiveKey, done: Callable[[int], None]
) -> WrittenArchive | None:
    """Copy what is missing in the target, write its root, and prove all; None if the source is not of format 2.

    `done` counts the stored bytes when they are copied, and the raw bytes when they are proven.
    """
    if fetch_root(place, target) is None:
        root = fetch_root(place, source)
        if root is None:
            return None
        for name, size in sorted(root.packs.items()):
            # Also over a pack that is there: an earlier try may have left a damaged one.
            place.copy(pack_path(source.workspace_id, name), pack_path(target.workspace_id, name), size, done)
        copied = replace(root, workspace_id=target.workspace_id, op_id=target.op_id, generation=GENERATION, revision=REVISION)
        # If a root exists, another process has finished this copy; the proof that follows checks it.
        place.write_once(root_path(target), copied.serialise())
    with closing(InlineCrew(lambda _member, _size: {"prove": prover(place, target)})) as crew:
        written = prove_archive(place, ArchiveRequest(target, GENERATION, REVISION), crew, done)
    return replace(written, new_bytes=written.size_bytes)
