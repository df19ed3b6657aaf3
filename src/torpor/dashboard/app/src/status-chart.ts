// The data of the chart that shows the status of a workspace over time.

import type { Operation, OperationKind, Outcome, Phase } from "./api-types.ts";

export type Level = "RUNNING" | "STANDBY" | "ARCHIVED" | "NOTHING";

export const LEVELS: readonly Level[] = ["RUNNING", "STANDBY", "ARCHIVED", "NOTHING"];

/** The level before each operation and after its success. */
export const LEADS: Record<OperationKind, [from: Level, to: Level]> = {
  PROVISIONING: ["NOTHING", "STANDBY"],
  RESTORING: ["ARCHIVED", "STANDBY"],
  ACCEPTING: ["STANDBY", "STANDBY"],
  STARTING: ["STANDBY", "RUNNING"],
  STOPPING: ["RUNNING", "STANDBY"],
  ARCHIVING: ["STANDBY", "ARCHIVED"],
  COPYING: ["NOTHING", "ARCHIVED"],
  CREATE_EMPTY_ARCHIVE: ["NOTHING", "ARCHIVED"],
  DELETING: ["ARCHIVED", "NOTHING"],
};

const LEVEL_OF: Partial<Record<Phase, Level>> = {
  RUNNING: "RUNNING",
  STANDBY: "STANDBY",
  ARCHIVED: "ARCHIVED",
  PENDING: "NOTHING",
};

/** A time at one level, or an operation between two levels. All times in milliseconds. */
export interface Segment {
  from: number;
  to: number;
  level: Level;
  /** The operation in progress, if any; then `level` is the level that it leads to. */
  operation: Operation | null;
}

/** The segments between two times, without gaps. `operations` has any order; `phase` is the current phase. */
export function segments(operations: readonly Operation[], phase: Phase, begin: number, now: number): Segment[] {
  const ordered = [...operations].sort((a, b) => Date.parse(a.started_at) - Date.parse(b.started_at));
  const first = ordered[0];
  let level: Level = first ? LEADS[first.kind][0] : (LEVEL_OF[phase] ?? "NOTHING");
  let at = Math.min(begin, first ? Date.parse(first.started_at) : begin);
  const found: Segment[] = [];
  const add = (to: number, of: Level, operation: Operation | null): void => {
    if (to > at) found.push({ from: at, to, level: of, operation });
    at = Math.max(at, to);
  };
  for (const operation of ordered) {
    const [from, to] = LEADS[operation.kind];
    add(Date.parse(operation.started_at), level, null);
    // The level may have changed without an operation, for example by a restart of the machine.
    if (operation.kind !== "DELETING") level = from;
    add(operation.ended_at ? Date.parse(operation.ended_at) : now, reaches(operation.outcome) ? to : level, operation);
    if (operation.outcome === "DONE") level = to;
  }
  const isResting = ordered.at(-1)?.ended_at !== null;
  add(now, (isResting && LEVEL_OF[phase]) || level, null);
  return found
    .filter((stretch) => stretch.to > begin)
    .map((stretch) => (stretch.from < begin ? { ...stretch, from: begin } : stretch));
}

function reaches(outcome: Outcome | null): boolean {
  return outcome === "DONE" || outcome === null;
}

export const SPANS_S = [600, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400] as const;

const SHORTEST_S = 10;

/** The number of seconds that includes the last operations and a short time before them. */
export function recent(operations: readonly Operation[], now: number, atLeast = 12): number {
  const starts = operations.map((one) => Date.parse(one.started_at)).sort((a, b) => b - a);
  const oldest = starts[Math.min(atLeast, starts.length) - 1];
  return oldest === undefined ? SHORTEST_S : Math.max(SHORTEST_S, ((now - oldest) / 1000) * 1.03);
}

/** The length of a bar for a duration, from 0 to 1. The scale is logarithmic, so that seconds are visible beside minutes. */
export function barLength(seconds: number, longest: number): number {
  return Math.min(1, Math.log2(1 + seconds * 4) / Math.log2(1 + Math.max(longest, 1) * 4));
}
