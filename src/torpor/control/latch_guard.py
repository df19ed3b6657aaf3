"""Set and clear the latch, which stops all changes while many homes are missing at once.

It is checked only if a home is missing, or was missing before. Then all expected homes are counted, also those of other
controllers.
"""

from enum import StrEnum

import structlog

from torpor.domain.missing_homes_latch import missing_homes, should_latch
from torpor.domain.records import Survey
from torpor.store.controller_store import ControllerStore

log = structlog.get_logger()


class LatchState(StrEnum):
    UNKNOWN = "not yet known: nothing is changed before the first full pass"
    NO = "no"
    HOLDS = "yes"
    RELEASED = "yes, but an operator confirmed the loss"


class LatchGuard:
    def __init__(self, store: ControllerStore) -> None:
        self._store = store
        self._latched = LatchState.UNKNOWN

    @property
    def holds(self) -> bool:
        return self._latched in (LatchState.HOLDS, LatchState.UNKNOWN)

    @property
    def is_latched(self) -> bool:
        return self._latched is LatchState.HOLDS

    async def look(self, survey: Survey, *, is_anything_missed: bool, latch_is_released: bool | None) -> None:
        """Update the latch after a full pass. `latch_is_released`: the stored latch, None if there is none."""
        # Assigned at the end, so that a failure keeps the previous state.
        before, latched = self._latched, LatchState.NO
        if is_anything_missed or latch_is_released is not None:
            expected = await self._store.expected_homes()
            missing = missing_homes(expected, survey)
            if should_latch(expected=len(expected), missing=missing):
                is_released = await self._store.latch(expected=len(expected), missing=missing)
                latched = LatchState.RELEASED if is_released else LatchState.HOLDS
            elif latch_is_released is not None:
                await self._store.unlatch()
            if latched is not before and {latched, before} & {LatchState.HOLDS, LatchState.RELEASED}:
                log.warning("latch", latched=latched, expected=len(expected), missing=missing)
        self._latched = latched
