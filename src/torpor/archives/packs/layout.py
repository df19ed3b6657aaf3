"""The paths of packs and roots in the archive store."""

from torpor.domain.records import ArchiveKey

PACKS = "packs"
ROOTS = "archives"
ROOT_SUFFIX = ".json.zst"


def pack_path(workspace_id: str, name: str) -> str:
    return f"{workspace_id}/{PACKS}/{name}"


def root_path(key: ArchiveKey) -> str:
    return f"{key.workspace_id}/{ROOTS}/{key.op_id}{ROOT_SUFFIX}"
