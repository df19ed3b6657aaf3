// The requests that change a workspace.

import { type Action, WISH_OF } from "./actions.ts";
import { request, workspacePath } from "./api-client.ts";
import { show } from "./session.ts";
import type { Workspace } from "./api-types.ts";

/** Request another state (start, stop, archive) and show the response at once. */
export async function requestState(workspace: Workspace, action: Action): Promise<void> {
  show(await request<Workspace>("PATCH", workspacePath(workspace.id), { desired_state: WISH_OF[action] }));
}

export async function remove(workspace: Workspace, purge: boolean): Promise<void> {
  show(await request<Workspace>("DELETE", `${workspacePath(workspace.id)}?purge=${purge}`));
}

export async function undelete(workspace: Workspace): Promise<void> {
  show(await request<Workspace>("POST", `${workspacePath(workspace.id)}/undelete`));
}

const HOUR_S = 3600;

/** Keep a workspace awake for one hour. The warning is removed at once, before the event that removes it arrives. */
export async function keepAwake(workspace: Workspace): Promise<void> {
  await request("POST", `${workspacePath(workspace.id)}/leases`, { reason: "kept awake for 1 hour", seconds: HOUR_S });
  show({ ...workspace, sleeps_at: null });
}

export interface RecoverOptions {
  archive_key?: string;
  empty?: boolean;
  accept?: boolean;
}

export async function recover(workspace: Workspace, options: RecoverOptions = {}): Promise<void> {
  show(await request<Workspace>("POST", `${workspacePath(workspace.id)}/recover`, options));
}

export async function restore(workspace: Workspace, archiveKey: string): Promise<void> {
  show(await request<Workspace>("POST", `${workspacePath(workspace.id)}/restore`, { archive_key: archiveKey }));
}

export async function cancelRestore(workspace: Workspace): Promise<void> {
  show(await request<Workspace>("DELETE", `${workspacePath(workspace.id)}/restore`));
}

/** Create a workspace with a copy of an archived home. With the same key a repeated request creates no second workspace. */
export async function fork(workspace: Workspace, body: { name: string; archive_key: string }, key: string): Promise<Workspace> {
  const path = `${workspacePath(workspace.id)}/fork`;
  const created = await request<Workspace>("POST", path, body, { headers: { "Idempotency-Key": key } });
  show(created);
  return created;
}

export interface NewWorkspaceRequest {
  name: string;
  template: string;
  image?: string;
  command?: string[];
}

/** Create a workspace. With the same key a repeated request creates no second workspace. */
export async function create(body: NewWorkspaceRequest, key: string): Promise<Workspace> {
  const created = await request<Workspace>("POST", "/workspaces", body, { headers: { "Idempotency-Key": key } });
  show(created);
  return created;
}
