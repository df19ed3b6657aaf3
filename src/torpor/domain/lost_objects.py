"""Find out which packs and roots in the archive store a report says are damaged or missing."""

from torpor.domain.errors import Code
from torpor.domain.names import is_id, pack_op_id
from torpor.domain.pack_retention import PackId
from torpor.domain.records import ArchiveKey, EffectFailed, ProvenArchive, Report, Workspace

SHOWS_DAMAGE = frozenset({Code.CHECKSUM_MISMATCH, Code.ARCHIVE_NOT_FOUND, Code.READBACK_MISMATCH})
ROOT_SUFFIX = ".json.zst"


def lost_objects(workspace: Workspace, report: Report | None) -> tuple[PackId | ArchiveKey, ...]:
    """The key of an archive stands for its root."""
    match report:
        case ProvenArchive(lost=lost) if lost:
            needed = {pack.name for pack in report.packs}
            return tuple(PackId(workspace.id, name) for name in sorted(set(lost) - needed) if pack_op_id(name) is not None)
        case EffectFailed(context=context) if context.get("code") in SHOWS_DAMAGE:
            # Without a path, the archive itself is in doubt.
            found = _parse(workspace, context.get("object")) or _archive(context.get("archive_key"))
            return () if found is None or found.workspace_id not in _concerned(workspace) else (found,)
        case _:
            return ()


def _concerned(workspace: Workspace) -> frozenset[str]:
    """A fork reads the archive of another workspace."""
    source = workspace.fork_source
    return frozenset({workspace.id} if source is None else {workspace.id, source.key.workspace_id})


def _parse(workspace: Workspace, path: object) -> PackId | ArchiveKey | None:
    """A path in the store, or only the name of a pack."""
    if not isinstance(path, str):
        return None
    parts = path.split("/")
    match parts:
        case [name] if pack_op_id(name) is not None:
            return PackId(workspace.id, name)
        case [workspace_id, "packs", name] if is_id(workspace_id) and pack_op_id(name) is not None:
            return PackId(workspace_id, name)
        case [workspace_id, "archives", name] if is_id(workspace_id) and is_id(name.removesuffix(ROOT_SUFFIX)):
            return ArchiveKey(workspace_id, name.removesuffix(ROOT_SUFFIX))
        case _:
            return None


def _archive(key: object) -> ArchiveKey | None:
    return ArchiveKey.parse(key) if isinstance(key, str) else None
