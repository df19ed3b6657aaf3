"""Who says that a file is whole, and does what is in it bear that out?"""

from pathlib import Path

from torpor.sort.data.context import SortContext
from torpor.sort.data.files import Extra, FileKind, FileManifest, write_manifest
from torpor.sort.data.running_proof import prove_file
from torpor.sort.proof import Proof


def write_file_manifest(context: SortContext, path: Path, kind: FileKind, proof: Proof, extra: Extra, *, sync: bool) -> None:
    """Written when the file has its name, so that a later attempt need not make it again."""
    manifest = FileManifest(path.name, context.job, kind, context.boundaries, proof, extra)
    write_manifest(context.place.manifest_of(path), manifest, context.attempt, sync=sync)


def read_valid_manifest(context: SortContext, path: Path, kind: FileKind) -> FileManifest | None:
    """What an earlier attempt has said of this file, if it is still true; its records are proven again."""
    manifest = context.place.vouched(path, kind, context.job, context.boundaries)
    if manifest is None or (context.proof and prove_file(path, context.format) != manifest.proof):
        return None
    return manifest
