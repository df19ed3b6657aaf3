// The words that the page shows for the values of the API.
//
// Tables over the enumerations of the product; a test compares their keys with the Python source.

import type { Condition, OperationKind, Outcome, Phase, Scope, Wish, Workspace } from "./api-types.ts";
import { size } from "./sizes.ts";

/** The status of a workspace that has no operation in progress. */
export const STATUS_OF_PHASE: Record<Phase, string> = {
  PENDING: "Pending",
  ARCHIVED: "Archived",
  STANDBY: "Stopped",
  RUNNING: "Running",
  ERROR: "Error",
  DELETING: "Deleting",
  DELETED: "Deleted",
};

export const PHASE_SENTENCE: Record<Phase, string> = {
  PENDING: "The home is not created yet.",
  ARCHIVED: "The home is in the archive. Nothing runs.",
  STANDBY: "The home is on disk. Nothing runs.",
  RUNNING: "The workspace is running.",
  ERROR: "Action required.",
  DELETING: "The workspace is being deleted.",
  DELETED: "You can undelete it for a limited time.",
};

/** The status while an operation is in progress. */
export const STATUS_OF_OPERATION: Record<OperationKind, string> = {
  PROVISIONING: "Creating",
  RESTORING: "Restoring",
  ACCEPTING: "Recovering",
  STARTING: "Starting",
  STOPPING: "Stopping",
  ARCHIVING: "Archiving",
  COPYING: "Copying",
  CREATE_EMPTY_ARCHIVE: "Creating empty archive",
  DELETING: "Deleting",
};

/** "Running", or "Starting 40 %" while an operation is in progress. */
export function statusText({ phase, operation, progress }: Pick<Workspace, "phase" | "operation" | "progress">): string {
  if (operation === "NONE") return STATUS_OF_PHASE[phase];
  return progress === null ? STATUS_OF_OPERATION[operation] : `${STATUS_OF_OPERATION[operation]} ${progress} %`;
}

/** "1.2 GiB of 2.0 GiB, 51,000 of 117,000 files"; empty if no home is archived or restored. */
export function progressText({ progress_detail: told }: Pick<Workspace, "progress_detail">): string {
  if (!told) return "";
  const bytes = told.bytes_total === null ? size(told.bytes) : `${size(told.bytes)} of ${size(told.bytes_total)}`;
  const files = told.files_total === null ? count(told.files) : `${count(told.files)} of ${count(told.files_total)}`;
  return `${bytes}, ${files} files`;
}

function count(files: number): string {
  return files.toLocaleString("en-US");
}

/** The operation as a short noun, for the history. */
export const OPERATION_NAME: Record<OperationKind, string> = {
  PROVISIONING: "Create",
  RESTORING: "Restore",
  ACCEPTING: "Recover",
  STARTING: "Start",
  STOPPING: "Stop",
  ARCHIVING: "Archive",
  COPYING: "Copy archive",
  CREATE_EMPTY_ARCHIVE: "Create empty archive",
  DELETING: "Delete",
};

export const OUTCOME_LABEL: Record<Outcome, string> = {
  DONE: "done",
  FAILED: "failed",
  TURNED: "canceled",
  ABANDONED: "abandoned",
};

/** The requested state. */
export const WISH_LABEL: Record<Wish, string> = {
  RUNNING: "Running",
  STANDBY: "Stopped",
  ARCHIVED: "Archived",
  DELETED: "Deleted",
};

export const CONDITION_LABEL: Record<string, string> = {
  "infra.container_ready": "Container ready",
  "storage.volume_ready": "Home on disk",
  "storage.archive_ready": "Archive verified",
  "policy.healthy": "Healthy",
};

/** What the workspace waits for: disk space, its cluster, or a restart; empty when it waits for nothing. */
export function waitReason({ conditions }: { conditions: Record<string, Condition> }): string {
  const healthy = conditions["policy.healthy"];
  const container = conditions["infra.container_ready"];
  if (healthy?.reason === "DiskLow") return `Waiting for disk space: ${healthy.message}. It continues automatically.`;
  if (container?.reason === "Paused") return `Paused: ${container.message}.`;
  if (container?.reason === "Waiting") return `Waiting: ${container.message}.`;
  if (container?.reason === "StoppedOutside") return `It is started again: ${container.message}.`;
  return "";
}

export function errorText({ error }: Pick<Workspace, "error">): string {
  if (!error) return "";
  return `${error.reason}: ${error.message}${error.is_terminal ? "" : " Torpor retries automatically."}`;
}

export const SCOPE_LABEL: Record<Scope, string> = {
  read: "view everything that you can view",
  use: "open and wake workspaces, run commands, keep awake",
  manage: "create, start, stop, change, delete and share workspaces",
  account: "manage your API tokens, sessions and password",
  admin: "everything that requires an administrator",
};

/** An audit entry as the rest of a sentence that starts with a username. */
export const AUDIT_LABEL: Record<string, string> = {
  "session.begin": "signed in",
  "session.end": "ended a session",
  "session.refused": "failed to sign in",
  "token.create": "created an API token",
  "token.revoke": "revoked an API token",
  "user.create": "created a user",
  "user.change": "changed a user",
  "workspace.create": "created",
  "workspace.wish": "changed the requested state of",
  "workspace.change": "changed",
  "workspace.delete": "deleted",
  "workspace.undelete": "undeleted",
  "workspace.recover": "recovered",
  "workspace.restore": "restored an archive",
  "workspace.cancel_restore": "canceled a restore",
  "workspace.fork": "forked",
  "workspace.read_archive": "read an archive",
  "workspace.share": "shared",
  "workspace.unshare": "stopped sharing",
  "secret.set": "set a secret of",
  "secret.remove": "removed a secret of",
  "workspace.hold": "kept awake",
  "workspace.unhold": "stopped keeping awake",
  "workspace.exec": "ran a command in",
  "workspace.shell": "opened a shell in",
  "workspace.wake": "woke",
  "latch.release": "released a latch",
  "runtime.switch": "began a move to another runtime",
  "runtime.switch.cancel": "canceled a move to another runtime",
  "gc.request": "requested a garbage collection",
};
