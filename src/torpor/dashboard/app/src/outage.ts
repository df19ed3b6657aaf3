// Which provider does a workspace wait for that cannot be reached?

import type { Condition, Workspace } from "./api-types.ts";

/** Reasons of the condition `policy.healthy`; a test compares them with the source of those. */
export const OUTAGES = ["ArchiveStoreOut", "RuntimeOut"];

export function outage({ conditions }: Pick<Workspace, "conditions">): Condition | null {
  const healthy = conditions["policy.healthy"];
  return healthy && OUTAGES.includes(healthy.reason) ? healthy : null;
}

export function outageWords(workspace: Pick<Workspace, "conditions">): string {
  const message = outage(workspace)?.message;
  return message ? `${message[0]?.toUpperCase()}${message.slice(1)}. It is tried again until there is an answer.` : "";
}
