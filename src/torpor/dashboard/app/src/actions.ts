// Which actions the page offers for a workspace.
//
// This decides only which buttons are shown. The API checks each request.

import type { Me, OperationKind, Phase, Role, Wish, Workspace } from "./api-types.ts";

/** The access of a user to a workspace; each level includes the levels before it. */
export const ACCESS = ["NONE", "USE", "MANAGE", "OWN"] as const;
export type Access = (typeof ACCESS)[number];

export type Permission = "SEE" | "OPEN" | "RUN" | "HOLD" | "WISH" | "CHANGE" | "SECRETS" | "RECOVER" | "READ_ARCHIVES" | "FORK" | "RESTORE" | "DELETE" | "SHARE";

export const NEEDS: Record<Permission, Access> = {
  SEE: "USE",
  OPEN: "USE",
  RUN: "USE",
  HOLD: "USE",
  WISH: "MANAGE",
  CHANGE: "MANAGE",
  SECRETS: "MANAGE",
  RECOVER: "MANAGE",
  READ_ARCHIVES: "MANAGE",
  FORK: "MANAGE",
  RESTORE: "MANAGE",
  DELETE: "OWN",
  SHARE: "OWN",
};

export const GRANTS: Record<Role, Access> = { use: "USE", manage: "MANAGE" };

export function access(workspace: Pick<Workspace, "owner" | "shares">, me: Me): Access {
  if (me.is_admin || workspace.owner === me.username) return "OWN";
  const role = workspace.shares[me.username];
  return role ? GRANTS[role] : "NONE";
}

export function may(workspace: Pick<Workspace, "owner" | "shares">, me: Me, permission: Permission): boolean {
  return ACCESS.indexOf(access(workspace, me)) >= ACCESS.indexOf(NEEDS[permission]);
}

export type Action = "open" | "start" | "recover" | "stop" | "archive" | "delete" | "undelete";

// The states that can be requested, by the requested state. It can change at any time, even while an operation is in progress.
export const WISHES: Record<Wish, Action[]> = {
  RUNNING: ["stop", "archive"],
  STANDBY: ["start", "archive"],
  ARCHIVED: ["start"],
  DELETED: [],
};

// Opening a stopped workspace wakes it, so `open` is offered to users who cannot start it.
export const ACTIONS: Record<Phase, (wishes: Action[]) => Action[]> = {
  PENDING: (wishes) => [...wishes, "delete"],
  ARCHIVED: (wishes) => ["open", ...wishes, "delete"],
  STANDBY: (wishes) => ["open", ...wishes, "delete"],
  RUNNING: (wishes) => ["open", ...wishes, "delete"],
  ERROR: () => ["recover", "delete"],
  DELETING: () => ["undelete"],
  DELETED: () => ["undelete"],
};

export const PERMISSION_OF: Record<Action, Permission> = {
  open: "OPEN",
  start: "WISH",
  recover: "RECOVER",
  stop: "WISH",
  archive: "WISH",
  delete: "DELETE",
  undelete: "DELETE",
};

export const WISH_OF: Partial<Record<Action, Wish>> = { start: "RUNNING", stop: "STANDBY", archive: "ARCHIVED" };

export const ACTION_LABEL: Record<Action, string> = {
  open: "Open",
  start: "Start",
  recover: "Recover",
  stop: "Stop",
  archive: "Archive",
  delete: "Delete",
  undelete: "Undelete",
};

/** What an action does. */
export const ACTION_SENTENCE: Record<Action, string> = {
  open: "Open the workspace in your browser.",
  start: "Start the program of the workspace.",
  recover: "Clear the error and continue.",
  stop: "Stop the program. The home stays on disk.",
  archive: "Stop the program and move the home to the archive.",
  delete: "You can undelete the workspace for a limited time.",
  undelete: "Restore the workspace. Its home is in the archive.",
};

/** The actions in the order of the buttons. */
export function actions(workspace: Workspace, me: Me): Action[] {
  return ACTIONS[workspace.phase](WISHES[workspace.desired_state]).filter((action) => may(workspace, me, PERMISSION_OF[action]));
}

export function isInProgress(workspace: Pick<Workspace, "operation">): workspace is Workspace & { operation: OperationKind } {
  return workspace.operation !== "NONE";
}
