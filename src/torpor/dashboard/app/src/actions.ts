// What may somebody do with a workspace now?
//
// Only which buttons make sense: whether something is allowed is the API's to say, and it is asked each time.

import type { Me, OperationKind, Phase, Role, Wish, Workspace } from "./api-types.ts";

/** How near somebody is to a workspace; each includes those before it. */
export const ACCESS = ["NONE", "USE", "MANAGE", "OWN"] as const;
export type Access = (typeof ACCESS)[number];

export type Deed = "SEE" | "OPEN" | "RUN" | "HOLD" | "WISH" | "CHANGE" | "RECOVER" | "DELETE" | "SHARE";

export const NEEDS: Record<Deed, Access> = {
  SEE: "USE",
  OPEN: "USE",
  RUN: "USE",
  HOLD: "USE",
  WISH: "MANAGE",
  CHANGE: "MANAGE",
  RECOVER: "MANAGE",
  DELETE: "OWN",
  SHARE: "OWN",
};

export const GRANTS: Record<Role, Access> = { use: "USE", manage: "MANAGE" };

export function access(workspace: Pick<Workspace, "owner" | "shares">, me: Me): Access {
  if (me.is_admin || workspace.owner === me.username) return "OWN";
  const role = workspace.shares[me.username];
  return role ? GRANTS[role] : "NONE";
}

export function may(workspace: Pick<Workspace, "owner" | "shares">, me: Me, deed: Deed): boolean {
  return ACCESS.indexOf(access(workspace, me)) >= ACCESS.indexOf(NEEDS[deed]);
}

export type Action = "open" | "start" | "recover" | "stop" | "archive" | "delete" | "undelete";

// Which wishes can be made, by the wish there is now. A wish may change at any time, whatever is under way.
export const WISHES: Record<Wish, Action[]> = {
  RUNNING: ["stop", "archive"],
  STANDBY: ["start", "archive"],
  ARCHIVED: ["start"],
  DELETED: [],
};

// Opening one that sleeps wakes it, so whoever may only open it can still do that.
export const ACTIONS: Record<Phase, (wishes: Action[]) => Action[]> = {
  PENDING: (wishes) => [...wishes, "delete"],
  ARCHIVED: (wishes) => ["open", ...wishes, "delete"],
  STANDBY: (wishes) => ["open", ...wishes, "delete"],
  RUNNING: (wishes) => ["open", ...wishes, "delete"],
  ERROR: () => ["recover", "delete"],
  DELETING: () => ["undelete"],
  DELETED: () => ["undelete"],
};

export const DEED_OF: Record<Action, Deed> = {
  open: "OPEN",
  start: "WISH",
  recover: "RECOVER",
  stop: "WISH",
  archive: "WISH",
  delete: "DELETE",
  undelete: "DELETE",
};

export const WISH_OF: Partial<Record<Action, Wish>> = { start: "RUNNING", stop: "STANDBY", archive: "ARCHIVED" };

export const ACTION_SAYS: Record<Action, string> = {
  open: "Open",
  start: "Start",
  recover: "Recover",
  stop: "Stop",
  archive: "Archive",
  delete: "Delete",
  undelete: "Bring back",
};

/** What is offered, in the order of the buttons. */
export function actions(workspace: Workspace, me: Me): Action[] {
  return ACTIONS[workspace.phase](WISHES[workspace.desired_state]).filter((action) => may(workspace, me, DEED_OF[action]));
}

export function isMoving(workspace: Pick<Workspace, "operation">): workspace is Workspace & { operation: OperationKind } {
  return workspace.operation !== "NONE";
}
