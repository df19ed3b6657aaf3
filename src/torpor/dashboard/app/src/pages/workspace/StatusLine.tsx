// One line with the status of a workspace and the time when it stops.

import { may } from "../../actions.ts";
import type { Me, StayAwake, Workspace } from "../../api-types.ts";
import { keepAwake } from "../../commands.ts";
import type { PendingAction } from "../../hooks.ts";
import { PHASE_SENTENCE, progressText, statusText } from "../../labels.ts";
import { stopText } from "../../stop-time.ts";

interface Props {
  workspace: Workspace;
  me: Me;
  pending: PendingAction;
  /** Why the workspace does not stop or archive by itself yet. */
  reasons: readonly StayAwake[];
  now: number;
}

export function StatusLine({ workspace, me, pending, reasons, now }: Props) {
  const isInProgress = workspace.operation !== "NONE";
  const stop = stopText(workspace, reasons, now);
  const isHeld = reasons.some((one) => one.why === "HELD");
  return (
    <p class="status-line">
      <span class="phase">{statusText(workspace)}</span>
      {progressText(workspace) && <span class="dim">{progressText(workspace)}</span>}
      {stop ? <span>{stop}</span> : !isInProgress && <span class="dim">{PHASE_SENTENCE[workspace.phase]}</span>}
      {stop && workspace.phase === "RUNNING" && !isHeld && may(workspace, me, "HOLD") && (
        <button
          type="button"
          class="text-button"
          disabled={pending.busy !== ""}
          title="Keep this workspace awake for 1 hour"
          onClick={() => void pending.run("keep-awake", () => keepAwake(workspace))}
        >
          keep awake
        </button>
      )}
    </p>
  );
}
