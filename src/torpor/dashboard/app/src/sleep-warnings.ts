// Which workspaces are stopped soon because they are not in use, and in which words is that told?

import { inOrder, type House } from "./workspace-list.ts";
import type { Place } from "./routes.ts";
import { ahead, clock, countdown } from "./time.ts";
import type { Me, Workspace } from "./api-types.ts";

export type Warned = Workspace & { sleeps_at: string };

/** Those of this user and those shared with them; an administrator is told of another user's only where they look at it. */
export function sleepingSoon(house: House, me: Me, at: Place): Warned[] {
  return inOrder(house).filter((one): one is Warned => Boolean(one.sleeps_at) && (concerns(one, me) || isLookedAt(one, at)));
}

function concerns(workspace: Workspace, me: Me): boolean {
  return workspace.owner === me.username || me.username in workspace.shares;
}

function isLookedAt(workspace: Workspace, at: Place): boolean {
  return (at.page === "workspace" || at.page === "shell") && (at.name === workspace.name || at.name === workspace.id);
}

/** The line in a terminal. */
export function sleepLine(sleepsAt: string, now: number): string {
  return `goes to sleep at ${clock(sleepsAt)} (${ahead(sleepsAt, now)}) because it is not in use; type to keep it awake`;
}

/** What a banner says after the name. */
export function bannerWords(sleepsAt: string, now: number): string {
  const left = countdown(sleepsAt, now);
  return left === "0:00" ? "goes to sleep now: it is not in use." : `goes to sleep in ${left}: it is not in use.`;
}
