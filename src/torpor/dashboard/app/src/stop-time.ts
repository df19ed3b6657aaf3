// Describe when a workspace stops by itself, or what keeps it awake.

import type { StayAwake, Workspace } from "./api-types.ts";
import { ahead, clock, ttl } from "./time.ts";

type Timed = Pick<Workspace, "phase" | "operation" | "desired_state" | "sleeps_at" | "standby_ttl" | "archive_ttl" | "error">;

/** "stops in 4 min", "in use", "kept awake until 15:04:00"; empty when the workspace does not change by itself. */
export function stopText(workspace: Timed, reasons: readonly StayAwake[], now: number): string {
  const { phase, desired_state: requested, operation, error } = workspace;
  if (phase !== requested || operation !== "NONE" || error) return "";
  if (phase === "STANDBY") return `archived ${when(reasons, now) ?? `after ${ttl(workspace.archive_ttl)}`}`;
  if (phase !== "RUNNING") return "";
  if (workspace.sleeps_at) return `stops ${ahead(workspace.sleeps_at, now)}`;
  const held = last(reasons.filter((one) => one.why === "HELD"));
  if (held) return `kept awake until ${clock(held)}`;
  if (reasons.some((one) => one.why === "CONNECTED")) return "in use";
  const busy = reasons.find((one) => one.why === "BUSY");
  if (busy) return `busy: ${busy.words}`;
  return `stops ${when(reasons, now) ?? `after ${ttl(workspace.standby_ttl)} without use`}`;
}

/** "in 4 min" when the end of every reason is known. */
function when(reasons: readonly StayAwake[], now: number): string | null {
  const end = reasons.every((one) => one.until !== null) ? last(reasons) : null;
  return end && Date.parse(end) > now ? ahead(end, now) : null;
}

function last(reasons: readonly StayAwake[]): string | null {
  return reasons.reduce<string | null>((latest, { until }) => (until && (!latest || until > latest) ? until : latest), null);
}
