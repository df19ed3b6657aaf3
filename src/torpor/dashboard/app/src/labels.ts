// Which words does the page use for the product's words?
//
// Tables over the product's enumerations; a test compares their keys with the source of those.

import type { Condition, OperationKind, Outcome, Phase, Scope, Wish } from "./api-types.ts";

export const PHASE_SAYS: Record<Phase, string> = {
  PENDING: "No home yet",
  ARCHIVED: "In torpor",
  STANDBY: "Asleep",
  RUNNING: "Awake",
  ERROR: "In trouble",
  DELETING: "Being deleted",
  DELETED: "Deleted",
};

export const PHASE_MEANS: Record<Phase, string> = {
  PENDING: "Nothing of it is there yet.",
  ARCHIVED: "Its home sleeps in the archive and costs next to nothing.",
  STANDBY: "Its home is at hand, nothing runs.",
  RUNNING: "Its program answers.",
  ERROR: "It needs a word from you.",
  DELETING: "What is left of it is being removed.",
  DELETED: "For a while it can be brought back.",
};

export const OPERATION_SAYS: Record<OperationKind, string> = {
  PROVISIONING: "Making an empty home",
  RESTORING: "Restoring its home",
  ACCEPTING: "Accepting its home as it is",
  STARTING: "Starting its program",
  STOPPING: "Stopping its program",
  ARCHIVING: "Putting its home into the archive",
  CREATE_EMPTY_ARCHIVE: "Writing an empty archive",
  DELETING: "Removing what is left of it",
};

/** The same as a short noun, for the history. */
export const OPERATION_NAME: Record<OperationKind, string> = {
  PROVISIONING: "New home",
  RESTORING: "Restore",
  ACCEPTING: "Accept",
  STARTING: "Start",
  STOPPING: "Stop",
  ARCHIVING: "Archive",
  CREATE_EMPTY_ARCHIVE: "Empty archive",
  DELETING: "Delete",
};

export const OUTCOME_SAYS: Record<Outcome, string> = {
  DONE: "done",
  FAILED: "failed",
  TURNED: "turned round",
  ABANDONED: "abandoned",
};

export const WISH_SAYS: Record<Wish, string> = {
  RUNNING: "to run",
  STANDBY: "to stand by",
  ARCHIVED: "to be archived",
  DELETED: "to be deleted",
};

export const CONDITION_SAYS: Record<string, string> = {
  "infra.container_ready": "Program answers",
  "storage.volume_ready": "Home is at hand",
  "storage.archive_ready": "Archive is proven",
  "policy.healthy": "Nothing is wrong",
};

/** Why it waits for disk space: it is neither started nor restored, or processes of it are paused; empty when it does not. */
export function diskTrouble({ conditions }: { conditions: Record<string, Condition> }): string {
  const healthy = conditions["policy.healthy"];
  const container = conditions["infra.container_ready"];
  if (healthy?.reason === "DiskLow") return `Waits for disk space: ${healthy.message}. It goes on by itself.`;
  if (container?.reason === "Paused") return `Paused: ${container.message}.`;
  return "";
}

export const SCOPE_SAYS: Record<Scope, string> = {
  read: "look at what you may see",
  use: "open, wake, run commands, hold awake",
  manage: "create, start, stop, change, delete and share",
  account: "your tokens, sessions and password",
  admin: "what only administrators may",
};

/** What somebody did, as the rest of a sentence that begins with their name. */
export const DEED_SAYS: Record<string, string> = {
  "session.begin": "signed in",
  "session.end": "ended a session",
  "session.refused": "was refused at the door",
  "token.create": "made a token",
  "token.revoke": "revoked a token",
  "user.create": "created a user",
  "user.change": "changed a user",
  "workspace.create": "created",
  "workspace.wish": "wished",
  "workspace.change": "changed",
  "workspace.delete": "deleted",
  "workspace.undelete": "brought back",
  "workspace.recover": "recovered",
  "workspace.share": "shared",
  "workspace.unshare": "stopped sharing",
  "workspace.hold": "held awake",
  "workspace.unhold": "let sleep again",
  "workspace.exec": "ran a command in",
  "workspace.shell": "opened a shell in",
  "workspace.wake": "woke",
  "latch.release": "released a latch",
  "gc.request": "asked for a collection",
};
