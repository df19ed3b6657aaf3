"""Prove packs and roots in the archive store again before their proof is too old. A duty of the leader.

One object at a time, at a bounded rate: first those that an operation found damaged, then roots, then packs, the oldest proof
first. A pack that is missing or damaged is
marked, and so are the archives that need it. An archive whose root is missing or damaged is marked, too. Nothing is removed:
the next archive of the workspace writes that content again if the home still has it.
"""

import asyncio
import time
from collections.abc import Callable
from typing import assert_never

import structlog

from torpor import metrics
from torpor.control.root_check import DAMAGE, RootCheck
from torpor.domain.errors import Failed
from torpor.domain.pack_retention import PackId
from torpor.domain.records import ArchiveKey, ProvenPack
from torpor.loops import TURN_S, report_progress
from torpor.ports import Archives
from torpor.store.archive_leases import reading
from torpor.store.database import Database
from torpor.store.pack_gc import PackGcStore, PackToProve, RootToProve

log = structlog.get_logger()

PROOF_S = 600.0
"""How long the proof of one pack may take."""
LEASE_S = 2 * PROOF_S + 60.0
AGAIN_S = 3600.0
"""A pack that could not be read, for another reason than damage, is tried again after this time."""
ROOT_PAUSE_S = 0.1
"""A root is small, so it is not measured."""
LEAST_AGE_S = 86_400.0
"""A pack is not proven again earlier than this, also if every archive reads its packs back."""


class PackDrill:
    name = "pack-drill"
    interval_s = 15.0
    turn_s = 2 * PROOF_S + TURN_S

    def __init__(
        self,
        database: Database,
        archives: Archives,
        *,
        proof_age_s: float,
        bytes_per_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """A pack is proven again when half of `proof_age_s` is over, so that archives need not do it.

        `bytes_per_s` 0: only what an operation found damaged is proven again.
        """
        self.wake = asyncio.Event()
        self._database = database
        self._store = PackGcStore(database)
        self._archives = archives
        self._roots = RootCheck(self._store, archives)
        self._older_than_s = max(proof_age_s / 2, LEAST_AGE_S)
        self._bytes_per_s = bytes_per_s
        self._monotonic = monotonic
        self._not_before: dict[PackId | ArchiveKey, float] = {}

    async def do(self, term: int) -> float | None:
        """Prove one root or pack; return the pause that keeps the rate."""
        now = self._monotonic()
        self._not_before = {one: at for one, at in self._not_before.items() if at > now}
        found = await self._next()
        match found:
            case None:
                return None
            case RootToProve(key=key):
                async with reading(self._database, key.workspace_id, "proof of a root", lease_s=LEASE_S):
                    await self._prove_root(term, found)
                return ROOT_PAUSE_S
            case PackToProve(id=pack_id, size_bytes=size_bytes):
                async with reading(self._database, pack_id.workspace_id, "proof of a pack", lease_s=LEASE_S):
                    await self._prove(term, found)
                took_s = self._monotonic() - now
                return max(0.0, size_bytes / self._bytes_per_s - took_s) if self._bytes_per_s else 0.0
            case _:
                assert_never(found)

    async def _next(self) -> RootToProve | PackToProve | None:
        packs = [one for one in self._not_before if isinstance(one, PackId)]
        keys = [one for one in self._not_before if isinstance(one, ArchiveKey)]
        suspect = await self._store.suspect_root(besides=keys) or await self._store.suspect(besides=packs)
        if suspect is not None or not self._bytes_per_s:
            return suspect
        root = await self._store.root_to_prove(older_than_s=self._older_than_s, besides=keys)
        return root or await self._store.to_prove(older_than_s=self._older_than_s, besides=packs)

    async def _prove_root(self, term: int, root: RootToProve) -> None:
        try:
            async with asyncio.timeout(PROOF_S):
                why = await self._roots.prove(term, root)
        except (Failed, TimeoutError) as error:
            why = str(error) or "no answer in time"
        if why is None:
            await self._store.record_proof_of_root(term, root)
            metrics.root_proofs_total.labels("proven").inc()
        else:
            log.warning("root_not_proven", archive=str(root.key), why=why)
            self._not_before[root.key] = self._monotonic() + AGAIN_S

    async def _prove(self, term: int, pack: PackToProve) -> None:
        try:
            proven = await self._read_back(pack)
        except (Failed, TimeoutError) as error:
            if isinstance(error, Failed) and error.code in DAMAGE:
                await self._mark(term, pack, error)
                return
            log.warning("pack_not_proven", pack=str(pack.id), why=str(error) or "no answer in time")
            self._not_before[pack.id] = self._monotonic() + AGAIN_S
        else:
            await self._store.record_proof(term, pack, proven)
            metrics.pack_proofs_total.labels("proven").inc()

    async def _read_back(self, pack: PackToProve) -> ProvenPack:
        """Twice before it counts as damaged: an error of the network or of memory does not repeat."""
        try:
            return await self._once(pack)
        except Failed as failed:
            if failed.code not in DAMAGE:
                raise
            report_progress()
            return await self._once(pack)

    async def _once(self, pack: PackToProve) -> ProvenPack:
        async with asyncio.timeout(PROOF_S):
            return await self._archives.prove_pack(*pack.id, pack.size_bytes)

    async def _mark(self, term: int, pack: PackToProve, failed: Failed) -> None:
        archives = await self._store.record_damage(term, pack)
        if archives is None:
            return  # it was proven again or given up meanwhile
        metrics.pack_proofs_total.labels("damaged").inc()
        log.error("pack_damaged", pack=str(pack.id), why=failed.message, archives=archives[:10], archive_count=len(archives))

    def rest(self) -> None:
        self._not_before.clear()
