"""Write the manifest of a complete file, and read it only if the file still matches it."""

from pathlib import Path

from torpor.sort.data.context import SortContext
from torpor.sort.data.files import Extra, FileKind, FileManifest, write_manifest
from torpor.sort.data.running_proof import prove_file
from torpor.sort.proof import Proof


def write_file_manifest(context: SortContext, path: Path, kind: FileKind, proof: Proof, extra: Extra, *, sync: bool) -> None:
    """Written after the file has its name, so that a later attempt can use the file."""
    manifest = FileManifest(path.name, context.job, kind, context.boundaries, proof, extra)
    write_manifest(context.place.manifest_of(path), manifest, context.attempt, sync=sync)


def read_valid_manifest(context: SortContext, path: Path, kind: FileKind) -> FileManifest | None:
    """The manifest that an earlier attempt wrote for this file, if it is still true. The records are proven again."""
    manifest = context.place.vouched(path, kind, context.job, context.boundaries)
    if manifest is None or (context.proof and prove_file(path, context.format) != manifest.proof):
        return None
    return manifest
