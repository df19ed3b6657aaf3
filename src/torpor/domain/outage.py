"""Record in a row that a provider cannot be reached.

An outage is not an error of the workspace, but its users see what cannot be reached, why, and since when. The begin and the end
of an outage are written once for each workspace that waits.
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
    """An attempt got an answer from the provider: the outage has ended."""
    if seen.outage is None:
        return seen
    healthy = replace(seen.conditions.healthy, reason="Healthy", message="", last_transition_time=now)
    return replace(seen, conditions=replace(seen.conditions, healthy=healthy))


def runtime_is_out(workspace: Workspace, why: str, *, now: datetime, epoch: int) -> Change | None:
    """Return the change after a failed observation; None if the workspace does not wait for the runtime, or its row has the
    outage already. The next successful observation removes it (`judge`)."""
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
    return workspace.restore is not None or workspace.phase is not Phase(workspace.desired_state)
