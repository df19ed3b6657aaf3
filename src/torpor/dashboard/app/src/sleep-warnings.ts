// Select and describe the workspaces that go to sleep soon because they are not in use.

import { sortedByName, type WorkspaceList } from "./workspace-list.ts";
import type { Route } from "./routes.ts";
import { ahead, clock, countdown } from "./time.ts";
import type { Me, Workspace } from "./api-types.ts";

export type Warned = Workspace & { sleeps_at: string };

/** The user's own and shared workspaces. An administrator sees another user's only on its own page. */
export function sleepingSoon(list: WorkspaceList, me: Me, at: Route): Warned[] {
  return sortedByName(list).filter((one): one is Warned => Boolean(one.sleeps_at) && (concerns(one, me) || isOpenPage(one, at)));
}

function concerns(workspace: Workspace, me: Me): boolean {
  return workspace.owner === me.username || me.username in workspace.shares;
}

function isOpenPage(workspace: Workspace, at: Route): boolean {
  return (at.page === "workspace" || at.page === "shell") && (at.name === workspace.name || at.name === workspace.id);
}

/** The line that a terminal shows. */
export function sleepLine(sleepsAt: string, now: number): string {
  return `goes to sleep at ${clock(sleepsAt)} (${ahead(sleepsAt, now)}) because it is not in use; type to keep it awake`;
}

/** The text of a banner after the name. */
export function bannerText(sleepsAt: string, now: number): string {
  const left = countdown(sleepsAt, now);
  return left === "0:00" ? "goes to sleep now: it is not in use." : `goes to sleep in ${left}: it is not in use.`;
}
