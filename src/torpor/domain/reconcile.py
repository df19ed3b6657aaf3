"""What happens to one workspace at one look?

judge, plan, settle: the pure middle of the loop, in one call.
"""

from dataclasses import dataclass

from torpor.domain.judge import judge
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
) -> Decision:
    verdict = judge(workspace, seen, look.now)
    # What moves is not late, even if nobody looked for a while.
    step = plan(with_progress(workspace, progress, look), verdict, report, look)
    return Decision(verdict, step, settle(workspace, verdict, step, look, new_op_id=new_op_id, progress=progress))
