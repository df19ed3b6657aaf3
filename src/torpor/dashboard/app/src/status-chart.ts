// How deep did a workspace sleep, and when? A step chart, as sleep laboratories draw it.

import type { Operation, OperationKind, Outcome, Phase } from "./api-types.ts";

export type Depth = "RUNNING" | "STANDBY" | "ARCHIVED" | "NOTHING";

export const DEPTHS: readonly Depth[] = ["RUNNING", "STANDBY", "ARCHIVED", "NOTHING"];

/** What each operation leads from and to when it succeeds. */
export const LEADS: Record<OperationKind, [from: Depth, to: Depth]> = {
  PROVISIONING: ["NOTHING", "STANDBY"],
  RESTORING: ["ARCHIVED", "STANDBY"],
  ACCEPTING: ["STANDBY", "STANDBY"],
  STARTING: ["STANDBY", "RUNNING"],
  STOPPING: ["RUNNING", "STANDBY"],
  ARCHIVING: ["STANDBY", "ARCHIVED"],
  CREATE_EMPTY_ARCHIVE: ["NOTHING", "ARCHIVED"],
  DELETING: ["ARCHIVED", "NOTHING"],
};

const DEPTH_OF: Partial<Record<Phase, Depth>> = {
  RUNNING: "RUNNING",
  STANDBY: "STANDBY",
  ARCHIVED: "ARCHIVED",
  PENDING: "NOTHING",
};

/** At one depth for a while, or on the way to another. All instants in milliseconds. */
export interface Stretch {
  from: number;
  to: number;
  depth: Depth;
  /** Set while an operation is at work; then `depth` is where it leads. */
  operation: Operation | null;
}

/** The stretches between two instants, without holes. `operations` in any order; `phase` is what it is in now. */
export function stretches(operations: readonly Operation[], phase: Phase, begin: number, now: number): Stretch[] {
  const ordered = [...operations].sort((a, b) => Date.parse(a.started_at) - Date.parse(b.started_at));
  const first = ordered[0];
  let depth: Depth = first ? LEADS[first.kind][0] : (DEPTH_OF[phase] ?? "NOTHING");
  let at = Math.min(begin, first ? Date.parse(first.started_at) : begin);
  const found: Stretch[] = [];
  const add = (to: number, of: Depth, operation: Operation | null): void => {
    if (to > at) found.push({ from: at, to, depth: of, operation });
    at = Math.max(at, to);
  };
  for (const operation of ordered) {
    const [from, to] = LEADS[operation.kind];
    add(Date.parse(operation.started_at), depth, null);
    // Something outside may have changed it meanwhile: a restart, or whoever pulled a plug.
    if (operation.kind !== "DELETING") depth = from;
    add(operation.ended_at ? Date.parse(operation.ended_at) : now, reaches(operation.outcome) ? to : depth, operation);
    if (operation.outcome === "DONE") depth = to;
  }
  const isResting = ordered.at(-1)?.ended_at !== null;
  add(now, (isResting && DEPTH_OF[phase]) || depth, null);
  return found
    .filter((stretch) => stretch.to > begin)
    .map((stretch) => (stretch.from < begin ? { ...stretch, from: begin } : stretch));
}

function reaches(outcome: Outcome | null): boolean {
  return outcome === "DONE" || outcome === null;
}

export const SPANS_S = [600, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400] as const;

const SHORTEST_S = 10;

/** How many seconds back the last few operations are seen, and a little before them. */
export function recent(operations: readonly Operation[], now: number, atLeast = 12): number {
  const starts = operations.map((one) => Date.parse(one.started_at)).sort((a, b) => b - a);
  const oldest = starts[Math.min(atLeast, starts.length) - 1];
  return oldest === undefined ? SHORTEST_S : Math.max(SHORTEST_S, ((now - oldest) / 1000) * 1.03);
}

/** How long a bar is for a duration, from 0 to 1: each doubling is as far as the one before, so that seconds show beside minutes. */
export function barLength(seconds: number, longest: number): number {
  return Math.min(1, Math.log2(1 + seconds * 4) / Math.log2(1 + Math.max(longest, 1) * 4));
}
