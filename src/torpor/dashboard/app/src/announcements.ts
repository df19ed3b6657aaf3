// What has happened, for somebody who hears the page instead of seeing it?

import type { House } from "./workspace-list.ts";
import type { Workspace } from "./api-types.ts";
import { PHASE_SAYS } from "./labels.ts";

// More at once are a crowd: nobody wants to hear each name.
const MOST_NAMED = 3;

/** One sentence for each workspace that came into another phase; nothing of a list that was read for the first time. */
export function news(before: House, after: House): string {
  if (before.workspaces === null || after.workspaces === null || before.workspaces === after.workspaces) return "";
  const said: string[] = [];
  for (const [id, one] of after.workspaces) {
    const known = before.workspaces.get(id);
    if (known && known.phase !== one.phase) said.push(`${one.name}: ${PHASE_SAYS[one.phase]}.`);
    else if (known && one.sleeps_at && !known.sleeps_at) said.push(`${one.name} goes to sleep soon: it is not in use.`);
  }
  for (const [id, one] of before.workspaces) if (!after.workspaces.has(id)) said.push(gone(one));
  return said.length > MOST_NAMED ? `${said.length} workspaces have changed.` : said.join(" ");
}

function gone(workspace: Workspace): string {
  return `${workspace.name}: ${PHASE_SAYS.DELETED}.`;
}
