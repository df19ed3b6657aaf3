// What prevents a workspace from reaching the requested state, and what you can do.

import { type Action, ACTION_LABEL, may, WISHES } from "../../actions.ts";
import type { Archive, Me, OperationKind, Workspace } from "../../api-types.ts";
import { recover, remove, requestState } from "../../commands.ts";
import { type PendingAction, useNow } from "../../hooks.ts";
import { STATUS_OF_OPERATION, waitReason, WISH_LABEL } from "../../labels.ts";
import { outage, outageText } from "../../outage.ts";
import { Button, When } from "../../parts/controls.tsx";
import { Icon, type IconName } from "../../parts/Icon.tsx";
import { size } from "../../sizes.ts";

interface Props {
  workspace: Workspace;
  me: Me;
  pending: PendingAction;
  archives: Archive[];
}

export function Problems({ workspace, me, pending, archives }: Props) {
  const waits = waitReason(workspace);
  return (
    <>
      {outage(workspace) && <OutageCard workspace={workspace} />}
      {waits && (
        <section class="card problem">
          <p>{waits}</p>
        </section>
      )}
      {workspace.error && <ErrorCard workspace={workspace} me={me} pending={pending} archives={archives} />}
    </>
  );
}

function OutageCard({ workspace }: { workspace: Workspace }) {
  const now = useNow();
  const since = outage(workspace)?.last_transition_time;
  return (
    <section class="card problem" role="group" aria-labelledby="outage-title">
      <header class="card-head">
        <h2 id="outage-title">
          <Icon name="warning" /> Waiting for a service that does not respond
        </h2>
        {since && (
          <span class="dim">
            since <When at={since} now={now} />
          </span>
        )}
      </header>
      <p>{outageText(workspace)}</p>
    </section>
  );
}

const INSTEAD: Partial<Record<Action, string>> = {
  start: "Clear the error and start the workspace.",
  stop: "Clear the error and keep the home on disk. Nothing runs.",
  archive: "Clear the error and archive the home as it is.",
};

function ErrorCard({ workspace, me, pending, archives }: Props) {
  const { error } = workspace;
  if (!error) return null;
  const isUnmarked = error.reason === "MarkerUnreadable";
  const isLost = error.reason === "DataLost" || isUnmarked;
  const lastLines = typeof error.context["last_lines"] === "string" ? error.context["last_lines"] : "";
  const mayRecover = may(workspace, me, "RECOVER") && error.is_terminal;
  const isDeleting = workspace.deleted_at !== null;
  const operation = STATUS_OF_OPERATION[error.operation as OperationKind] ?? "";
  return (
    <section class="card problem" role="group" aria-labelledby="error-title">
      <header class="card-head">
        <h2 id="error-title">
          <Icon name="warning" />{" "}
          {error.is_terminal ? "Action required" : "An operation failed. Torpor retries automatically."}
        </h2>
      </header>
      <p>
        <strong>{error.reason}</strong>
        {operation && ` while ${operation.toLowerCase()}`}: {error.message}
      </p>
      {lastLines && <pre class="last-lines">{lastLines}</pre>}
      {mayRecover && (
        <ul class="solutions" aria-label="What you can do">
          {!isLost && (
            <li>
              <Button
                weight="main"
                icon="recover"
                busy={pending.busy === "recover"}
                onClick={() => void pending.run("recover", () => recover(workspace))}
              >
                Retry
              </Button>
              <span>Clear the error and continue to the requested state: {WISH_LABEL[workspace.desired_state]}.</span>
            </li>
          )}
          {!isLost &&
            !isDeleting &&
            WISHES[workspace.desired_state].map((action) => (
              <li key={action}>
                <Button
                  icon={action as IconName}
                  busy={pending.busy === action}
                  onClick={() => void pending.run(action, () => requestState(workspace, action))}
                >
                  {ACTION_LABEL[action]} instead
                </Button>
                <span>{INSTEAD[action]}</span>
              </li>
            ))}
          {isUnmarked && !isDeleting && (
            <li>
              <Button
                weight="main"
                icon="recover"
                busy={pending.busy === "accept"}
                onClick={() => void pending.run("accept", () => recover(workspace, { accept: true }))}
              >
                Continue with the home as it is
              </Button>
              <span>Keep all files. Torpor writes a new marker.</span>
            </li>
          )}
          {isLost &&
            archives.filter((one) => one.key !== workspace.error?.context["archive_key"]).map((one, at) => (
              <li key={one.key}>
                <Button
                  weight={at === 0 && !isUnmarked ? "main" : "plain"}
                  icon="archive"
                  busy={pending.busy === one.key}
                  onClick={() => void pending.run(one.key, () => recover(workspace, { archive_key: one.key }))}
                >
                  {at === 0 ? "Restore the latest archive" : "Restore an older archive"}
                </Button>
                <span>
                  {size(one.home_bytes)}, generation {one.generation}, revision {one.revision}.
                </span>
              </li>
            ))}
          {isLost && (
            <li>
              <Button
                icon="home"
                busy={pending.busy === "empty"}
                onClick={() => void pending.run("empty", () => recover(workspace, { empty: true }))}
              >
                Continue with an empty home
              </Button>
              <span>The files of the old home are lost. The archives stay.</span>
            </li>
          )}
          {isDeleting && may(workspace, me, "DELETE") && (
            <li>
              <Button
                danger
                icon="delete"
                busy={pending.busy === "purge"}
                onClick={() => void pending.run("purge", () => remove(workspace, true))}
              >
                Purge
              </Button>
              <span>Delete the home and all archives. You cannot undo this.</span>
            </li>
          )}
        </ul>
      )}
    </section>
  );
}
