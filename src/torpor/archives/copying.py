"""Copy an archive to another workspace: the data, then a manifest with the new ids, then read everything back.

The copy has objects of its own, so the source can be removed afterwards. A repeated call finds the manifest and only proves the
copy.
"""

import time
from dataclasses import replace

from torpor.archives.manifest import MANIFEST_NAME, Manifest, ManifestBuilder, object_path
from torpor.archives.pack import is_finished
from torpor.archives.proof import Done, contents, prove
from torpor.archives.store import ArchiveStore, TransientFailure
from torpor.archives.unpack import find, judged
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ArchiveKey

# A fork begins with its copy: it has had no home yet.
GENERATION = REVISION = 0


def copy_archive(place: ArchiveStore, source: ArchiveKey, target: ArchiveKey, done: Done) -> Manifest:
    """`done` counts the bytes of the data when they are copied, and those of the home when they are read back."""
    if not is_finished(place, target):
        for pause_s in place.pauses_s:
            try:
                _write(place, source, target, done)
                break
            except TransientFailure:
                time.sleep(pause_s)
        else:
            _write(place, source, target, done)
    try:
        return prove(place, target, generation=GENERATION, revision=REVISION, done=done)
    except Failed as failed:
        if failed.code is Code.READBACK_MISMATCH:
            # The copy of damaged data is damaged, too. Then no further copy helps.
            _check(place, source)
        raise


def _check(place: ArchiveStore, key: ArchiveKey) -> None:
    manifest = find(place, key)
    with judged(key):
        for _ in contents(place, manifest, lambda _count: None):
            pass


def _write(place: ArchiveStore, source: ArchiveKey, target: ArchiveKey, done: Done) -> None:
    manifest = find(place, source)
    with judged(source):
        for part in manifest.head.parts:
            place.copy(object_path(source, part.name), object_path(target, part.name), part.size, done)
        entries = ManifestBuilder()
        for entry in manifest.entries():
            entries.add(entry)
    head = replace(
        manifest.head, workspace_id=target.workspace_id, op_id=target.op_id, generation=GENERATION, revision=REVISION
    )
    # If a manifest exists, another process has finished this copy; the proof that follows checks it.
    place.write_once(object_path(target, MANIFEST_NAME), entries.manifest(head))
