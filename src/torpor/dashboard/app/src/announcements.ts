// Describe changes for screen readers.

import type { Workspace } from "./api-types.ts";
import { STATUS_OF_PHASE } from "./labels.ts";
import type { WorkspaceList } from "./workspace-list.ts";

// A longer announcement would be too long to listen to.
const MOST_NAMED = 3;

/** One sentence for each workspace whose status changed; empty for the first list. */
export function announcement(before: WorkspaceList, after: WorkspaceList): string {
  if (before.workspaces === null || after.workspaces === null || before.workspaces === after.workspaces) return "";
  const sentences: string[] = [];
  for (const [id, one] of after.workspaces) {
    const known = before.workspaces.get(id);
    if (known && known.phase !== one.phase) sentences.push(`${one.name}: ${STATUS_OF_PHASE[one.phase]}.`);
    else if (known && one.sleeps_at && !known.sleeps_at) sentences.push(`${one.name} goes to sleep soon: it is not in use.`);
  }
  for (const [id, one] of before.workspaces) if (!after.workspaces.has(id)) sentences.push(deleted(one));
  return sentences.length > MOST_NAMED ? `${sentences.length} workspaces have changed.` : sentences.join(" ");
}

function deleted(workspace: Workspace): string {
  return `${workspace.name}: ${STATUS_OF_PHASE.DELETED}.`;
}
