// How is something done to a workspace?

import { type Action, WISH_OF } from "./actions.ts";
import { ask, of } from "./api-client.ts";
import { show } from "./session.ts";
import type { Workspace } from "./api-types.ts";

/** start, stop, archive: a wish, shown at once as it was accepted. */
export async function wish(workspace: Workspace, action: Action): Promise<void> {
  show(await ask<Workspace>("PATCH", of(workspace.id), { desired_state: WISH_OF[action] }));
}

export async function remove(workspace: Workspace, purge: boolean): Promise<void> {
  show(await ask<Workspace>("DELETE", `${of(workspace.id)}?purge=${purge}`));
}

export async function undelete(workspace: Workspace): Promise<void> {
  show(await ask<Workspace>("POST", `${of(workspace.id)}/undelete`));
}

const HOUR_S = 3600;

/** A hold for one hour. The warning is taken back with it; the event says the same a moment later. */
export async function keepAwake(workspace: Workspace): Promise<void> {
  await ask("POST", `${of(workspace.id)}/leases`, { reason: "kept awake for 1 hour", seconds: HOUR_S });
  show({ ...workspace, sleeps_at: null });
}

export interface Way {
  archive_key?: string;
  empty?: boolean;
  accept?: boolean;
}

export async function recover(workspace: Workspace, way: Way = {}): Promise<void> {
  show(await ask<Workspace>("POST", `${of(workspace.id)}/recover`, way));
}

export interface New {
  name: string;
  template: string;
  command?: string[];
}

/** The key makes asking again the same creation: an answer that was lost is no second workspace. */
export async function create(wanted: New, key: string): Promise<Workspace> {
  const made = await ask<Workspace>("POST", "/workspaces", wanted, { headers: { "Idempotency-Key": key } });
  show(made);
  return made;
}
