"""Compare the roots of archives in the store with what the database says about them."""

from dataclasses import dataclass

import structlog

from torpor import metrics
from torpor.control.gc_tally import GcTally
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ArchiveKey
from torpor.loops import report_progress
from torpor.ports import Archives, RootFacts
from torpor.store.pack_gc import PackGcStore, RootToProve

log = structlog.get_logger()

DAMAGE = frozenset({Code.CHECKSUM_MISMATCH, Code.ARCHIVE_NOT_FOUND})


@dataclass(frozen=True, slots=True)
class RootFault:
    why: str
    is_damage: bool
    """The archive cannot be restored. False: it can, but the database may be wrong about its packs."""


async def root_fault(archives: Archives, key: ArchiveKey, expected: RootFacts) -> RootFault | None:
    """None: the root says what the database says.

    It is read twice before it counts as damaged: an error of the network or of memory does not repeat.
    """
    found = await _fault(archives, key, expected)
    if found is None or not found.is_damage:
        return found
    report_progress()
    return await _fault(archives, key, expected)


async def _fault(archives: Archives, key: ArchiveKey, expected: RootFacts) -> RootFault | None:
    try:
        found = await archives.root_packs(key)
    except Failed as failed:
        if failed.code not in DAMAGE:
            raise
        return RootFault(failed.message, is_damage=True)
    if found.manifest_root != expected.manifest_root:
        return RootFault("its root in the store has another manifest root than the database says", is_damage=True)
    if dict(found.packs) != dict(expected.packs):
        return RootFault("its root in the store names other packs than the database says", is_damage=False)
    return None


class RootCheck:
    """Prove roots, and record the archives whose roots cannot be read."""

    def __init__(self, store: PackGcStore, archives: Archives) -> None:
        self._store = store
        self._archives = archives

    async def prove(self, term: int, root: RootToProve) -> str | None:
        """Return how the root differs from the database; None: it was proven."""
        fault = await root_fault(self._archives, root.key, root.expected)
        if fault is None:
            return None
        if fault.is_damage and await self._store.record_damage_of_root(term, root):
            metrics.root_proofs_total.labels("damaged").inc()
            log.error("root_damaged", archive=str(root.key), why=fault.why)
        return fault.why

    async def verified(
        self, term: int, workspace_id: str, tally: GcTally, *, besides: frozenset[str] = frozenset()
    ) -> frozenset[str] | None:
        """The keys of the archives whose roots say what the database says; None if one does not.

        What the database takes for an orphan may be the last copy of a home, if the database is wrong, or if the archives that
        replace it cannot be read. `besides`: archives that are removed now, so their roots need not be readable.
        """
        proven: set[str] = set()
        for root in await self._store.roots(workspace_id):
            report_progress()
            why = await self.prove(term, root)
            if why is None:
                proven.add(str(root.key))
            elif str(root.key) not in besides:
                tally.unreadable_roots[str(root.key)] = why
                return None
        return frozenset(proven)
