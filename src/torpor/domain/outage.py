"""What does a row say of a provider that cannot be reached?

That is no error of the workspace, but its users are told: what cannot be reached, why, and since when. An outage that begins
or ends is written once for each workspace that waits.
"""

from dataclasses import replace
from datetime import datetime

from torpor.domain.records import Change, Workspace
from torpor.domain.states import Operation, Outage, Phase


def with_outage(seen: Workspace, outage: Outage, message: str, now: datetime) -> Workspace:
    before = seen.conditions.healthy
    since = before.last_transition_time if before.outage is outage else now
    healthy = replace(before, reason=outage.value, message=message, last_transition_time=since)
    return replace(seen, conditions=replace(seen.conditions, healthy=healthy))


def without_outage(seen: Workspace, now: datetime) -> Workspace:
    """An attempt got an answer from the provider: an outage is over."""
    if seen.outage is None:
        return seen
    healthy = replace(seen.conditions.healthy, reason="Healthy", message="", last_transition_time=now)
    return replace(seen, conditions=replace(seen.conditions, healthy=healthy))


def runtime_is_out(workspace: Workspace, why: str, *, now: datetime, epoch: int) -> Change | None:
    """The change when a look at the runtime fails; None where nothing waits for it, or the row says so already.

    The next look that succeeds takes it back (`judge`).
    """
    if not _waits(workspace) or workspace.conditions.healthy.outage is Outage.RUNTIME:
        return None
    out = with_outage(workspace, Outage.RUNTIME, f"the runtime cannot be reached: {why}", now)
    return Change(workspace, replace(out, version=workspace.version + 1, epoch=epoch))


def _waits(workspace: Workspace) -> bool:
    if workspace.operation is not Operation.NONE:
        return True
    error = workspace.error
    if error is not None and error.is_terminal and error.wish_version >= workspace.wish_version:
        return False
    return workspace.phase is not Phase(workspace.desired_state)
