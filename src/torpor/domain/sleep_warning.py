"""Decide when users are warned that a workspace is going to be stopped because it is not in use.

The warning comes five minutes before, or a third of the TTL if that is shorter. The database computes the same times
(`warned_from`), so that only rows near their warning are read; tests/control/test_sleep_warning.py compares the two.
"""

from datetime import datetime, timedelta

from torpor.domain.idle import AwakeReason, IdleFacts, reasons_to_stay
from torpor.domain.states import Phase

LONGEST_WARNING_S = 300.0
PART_OF_TTL = 1 / 3
# A stop that moves by less than this causes no event.
NO_NEWS_S = 5.0
# Reasons to stay awake that end at a known time. BUS_FORGOT is one of them: within the time of a warning the bus has recorded
# more than one lease, so it knows every connection.
ENDS_BY_TIME = frozenset({AwakeReason.HELD, AwakeReason.IDLE_TIMER, AwakeReason.USED_LATELY, AwakeReason.BUS_FORGOT})


def warning_s(standby_ttl_s: float) -> float:
    """Return how long before a stop its users are warned."""
    return min(LONGEST_WARNING_S, standby_ttl_s * PART_OF_TTL)


def sleeps_at(facts: IdleFacts) -> datetime | None:
    """Return when the workspace is stopped unless it is used again; None while that is not near."""
    workspace = facts.workspace
    if workspace.phase is not Phase.RUNNING:
        return None
    reasons = reasons_to_stay(facts)
    ends = [reason.until for reason in reasons if reason.why in ENDS_BY_TIME and reason.until is not None]
    if len(ends) < len(reasons):
        return None
    # Without a reason it is stopped now: a warning that was given stays, and a late warning is better than none.
    at = max(ends, default=workspace.sleeps_at or facts.now)
    return at if at - facts.now <= timedelta(seconds=warning_s(workspace.standby_ttl_s)) else None


def is_news(known: datetime | None, found: datetime | None) -> bool:
    """Return whether a warning is new, withdrawn, or moved far enough for an event."""
    if known is None or found is None:
        return known is not found
    return abs(found - known) >= timedelta(seconds=NO_NEWS_S)
