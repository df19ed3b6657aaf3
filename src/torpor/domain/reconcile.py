"""Decide one reconcile pass of one workspace: judge, plan, settle in one call."""

from dataclasses import dataclass, replace
from datetime import timedelta

from torpor.domain.judge import judge
from torpor.domain.lost_objects import lost_objects
from torpor.domain.planner import Circumstances, Step, plan
from torpor.domain.records import Change, Observation, Report, Verdict, Workspace
from torpor.domain.settle import Progress, settle, with_progress


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    step: Step
    change: Change | None


def reconcile(
    workspace: Workspace,
    seen: Observation,
    look: Circumstances,
    *,
    new_op_id: str,
    report: Report | None = None,
    progress: Progress | None = None,
    paused_s: float = 0.0,
) -> Decision:
    """`paused_s`: time that must not count against the deadline (`control/deadline_credit.py`)."""
    verdict = judge(workspace, seen, look.now)
    credited = _with_credit(workspace, paused_s)
    # Progress moves the deadline before the planner compares it with the clock: an effect that makes progress is not late.
    step = plan(with_progress(credited, progress, look), verdict, report, look)
    change = settle(credited, verdict, step, look, new_op_id=new_op_id, progress=progress, before=workspace)
    if change is not None and (lost := lost_objects(workspace, report)):
        change = replace(change, lost=lost)
    return Decision(verdict, step, change)


def _with_credit(workspace: Workspace, paused_s: float) -> Workspace:
    if workspace.deadline_at is None or not paused_s:
        return workspace
    return replace(workspace, deadline_at=workspace.deadline_at + timedelta(seconds=paused_s))
