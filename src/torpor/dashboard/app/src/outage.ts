// Detect that a workspace waits for the runtime or the archive store.

import type { Condition, Workspace } from "./api-types.ts";

/** Reasons of the condition `policy.healthy`; a test compares them with the Python source. */
export const OUTAGES = ["ArchiveStoreOut", "RuntimeOut"];

export function outage({ conditions }: Pick<Workspace, "conditions">): Condition | null {
  const healthy = conditions["policy.healthy"];
  return healthy && OUTAGES.includes(healthy.reason) ? healthy : null;
}

export function outageText(workspace: Pick<Workspace, "conditions">): string {
  const message = outage(workspace)?.message;
  return message ? `${message[0]?.toUpperCase()}${message.slice(1)}. Torpor retries until it responds.` : "";
}
