"""List the latches, and release one when an administrator confirms that the missing homes are lost."""

from collections.abc import Sequence

from torpor.accounts import Caller
from torpor.domain.audit import AuditAction
from torpor.domain.errors import Refused
from torpor.domain.missing_homes_latch import Latch
from torpor.store.service_store import ServiceStore


class LatchService:
    def __init__(self, store: ServiceStore) -> None:
        self._store = store

    async def all(self) -> Sequence[Latch]:
        """The providers at which no workspace is changed because too many homes disappeared at once."""
        return await self._store.latches()

    async def release(self, caller: Caller, provider: str) -> None:
        """The caller confirms that the homes that are missing at this provider are lost."""
        if not caller.is_admin:
            raise Refused("forbidden", "only an administrator may confirm that the missing homes are lost")
        async with self._store.writing() as writing:
            if not await writing.release_latch(provider):
                raise Refused("not_found", f"there is no latch at {provider!r}", kind="latch")
            await writing.audit(caller.entry(AuditAction.LATCH_RELEASE, detail={"provider": provider}))
