"""Judge by its observations whether the runtime answers this controller."""

from collections.abc import Callable
from enum import StrEnum

# A provider that does not answer an observation within this time counts as unavailable.
OBSERVING_S = 60.0
# While an observation lasts longer than this, it is not known whether the runtime answers.
SLOW_S = 5.0
# A runtime that does not answer for so long, and for one interval between full passes, is left to another controller that it
# answers. If the outage concerns all controllers, all have noticed it by then (interval + SLOW_S + a heartbeat).
SILENT_S = 10.0
# And for so many times the longest of the last full observations: a slow runtime is not a silent one.
SILENT_OBSERVATIONS = 4.0
# How much of the longest duration remains after each further full observation: a busy time is remembered for minutes.
REMEMBERED = 0.9


class RuntimeSight(StrEnum):
    """What a controller knows about its runtime."""

    ANSWERS = "the last observation succeeded"
    UNKNOWN = "there was no observation yet, or the runtime has been silent for a short time"
    SILENT = "the runtime does not answer"


class ObservationHistory:
    """When observations began and how they ended. One that was canceled has not been answered."""

    def __init__(self, *, idle_s: float, monotonic: Callable[[], float]) -> None:
        self._idle_s = idle_s
        self._monotonic = monotonic
        self._began = monotonic()
        self._unanswered_since: float | None = None
        """When the first observation began since the runtime last answered."""
        self._has_failed = False
        """Since the last full observation that succeeded. Observations of a few workspaces can succeed where lists fail."""
        self._longest_s: float | None = None
        """Of the last full observations that succeeded; None before the first."""

    @property
    def sight(self) -> RuntimeSight:
        waits_s = 0.0 if self._unanswered_since is None else self._monotonic() - self._unanswered_since
        if waits_s >= self.silent_after_s:
            return RuntimeSight.SILENT
        is_known = self._longest_s is not None and not self._has_failed and waits_s < SLOW_S
        return RuntimeSight.ANSWERS if is_known else RuntimeSight.UNKNOWN

    @property
    def silent_after_s(self) -> float:
        if self._longest_s is None and not self._has_failed:
            return OBSERVING_S  # how long it takes is not known yet
        slowest_s = SILENT_OBSERVATIONS * (self._longest_s or 0.0)
        return min(OBSERVING_S, max(SILENT_S + self._idle_s, slowest_s))

    def begin(self) -> None:
        self._began = self._monotonic()
        if self._unanswered_since is None:
            self._unanswered_since = self._began

    def succeeded(self, *, is_full: bool) -> None:
        if is_full:
            self._has_failed = False
            self._longest_s = max(self._monotonic() - self._began, REMEMBERED * (self._longest_s or 0.0))
        if not self._has_failed:
            self._unanswered_since = None

    def failed(self) -> None:
        self._has_failed = True
