// The buttons of a workspace and their dialogs.

import { Fragment } from "preact";
import { useState } from "preact/hooks";
import { ACTION_LABEL, ACTION_SENTENCE, actions, type Action } from "../actions.ts";
import { ApiError } from "../api-client.ts";
import { type PendingAction } from "../hooks.ts";
import { type Me, type Workspace } from "../api-types.ts";
import { recover, remove, undelete, type RecoverOptions, requestState } from "../commands.ts";
import { Command } from "./Command.tsx";
import { Button, type Weight } from "./controls.tsx";
import { Dialog } from "./Dialog.tsx";
import { Icon, type IconName } from "./Icon.tsx";

interface Props {
  workspace: Workspace;
  me: Me;
  pending: PendingAction;
  /** Actions that the page shows in another place. */
  without?: readonly Action[];
  /** Whether each button has a sentence that describes it. */
  described?: boolean;
}

type OpenDialog = { dialog: "delete" } | { dialog: "recover"; problem: ApiError } | null;

export function Actions({ workspace, me, pending, without = [], described }: Props) {
  const [dialog, setDialog] = useState<OpenDialog>(null);
  const offered = actions(workspace, me).filter((action) => !without.includes(action));
  const { name } = workspace;

  const act = async (action: Action): Promise<void> => {
    if (action === "delete") setDialog({ dialog: "delete" });
    else if (action === "undelete") await pending.run(action, () => undelete(workspace));
    else if (action !== "recover") await pending.run(action, () => requestState(workspace, action));
    else
      await pending.run(action, async () => {
        try {
          await recover(workspace);
        } catch (error) {
          if (!(error instanceof ApiError) || error.code !== "say_which_way") throw error;
          setDialog({ dialog: "recover", problem: error });
        }
      });
  };

  return (
    <>
      <div class={described ? "described-actions" : "actions"} role="group" aria-label={`Actions for ${name}`}>
        {offered.map((action) => (
          <Fragment key={action}>
            {action === "open" ? (
              <OpenLink workspace={workspace} />
            ) : (
              <Button
                icon={action as IconName}
                weight={weightOf(action, workspace)}
                danger={action === "delete"}
                busy={pending.busy === action}
                label={`${ACTION_LABEL[action]} ${name}`}
                data-action={action}
                onClick={() => void act(action)}
              >
                {ACTION_LABEL[action]}
              </Button>
            )}
            {described && <span class="dim">{ACTION_SENTENCE[action]}</span>}
          </Fragment>
        ))}
      </div>
      {dialog?.dialog === "delete" && (
        <DeleteDialog
          workspace={workspace}
          pending={pending}
          onClose={() => {
            pending.clear();
            setDialog(null);
          }}
        />
      )}
      {dialog?.dialog === "recover" && (
        <RecoverDialog workspace={workspace} pending={pending} problem={dialog.problem} onClose={() => setDialog(null)} />
      )}
    </>
  );
}

function weightOf(action: Action, workspace: Workspace): Weight {
  if (action === "recover" || action === "undelete") return "main";
  if (action === "start") return "strong";
  return action === "delete" && workspace.phase !== "ERROR" ? "quiet" : "plain";
}

/** Opening a stopped workspace wakes it. */
export function OpenLink({ workspace }: { workspace: Workspace }) {
  const isRunning = workspace.phase === "RUNNING";
  return (
    <a
      class={`button ${isRunning ? "main" : "plain"}`}
      href={workspace.url}
      target="_blank"
      rel="noopener"
      data-action="open"
      aria-label={`Open ${workspace.name} in a new tab${isRunning ? "" : " and wake it"}`}
    >
      <Icon name="open" />
      <span>Open</span>
    </a>
  );
}

function DeleteDialog({ workspace, pending, onClose }: { workspace: Workspace; pending: PendingAction; onClose: () => void }) {
  const [purge, setPurge] = useState(false);
  const confirm = async (): Promise<void> => {
    if (await pending.run("delete", () => remove(workspace, purge))) onClose();
  };
  return (
    <Dialog
      title={`Delete ${workspace.name}?`}
      confirm={purge ? "Purge" : "Delete"}
      cancel="Cancel"
      danger
      busy={pending.busy === "delete"}
      error={pending.error}
      onConfirm={() => void confirm()}
      onClose={onClose}
    >
      <p>The home is archived first. You can undelete the workspace for a limited time, here or with:</p>
      <Command words={`torpor undelete ${workspace.name}`} />
      <label class="check">
        <input type="checkbox" checked={purge} onChange={(event) => setPurge(event.currentTarget.checked)} />
        <span>
          <strong>Purge</strong>: also delete the home and all archives. You cannot undo this.
        </span>
      </label>
    </Dialog>
  );
}

interface RecoverProps {
  workspace: Workspace;
  pending: PendingAction;
  problem: ApiError;
  onClose: () => void;
}

function RecoverDialog({ workspace, pending, problem, onClose }: RecoverProps) {
  const keys = Array.isArray(problem.body["archive_keys"]) ? (problem.body["archive_keys"] as string[]) : [];
  const canAccept = problem.body["can_accept"] === true;
  const options: [RecoverOptions, string, string][] = [
    ...(canAccept ? [[{ accept: true }, "The home as it is", "Torpor writes a new marker."] as [RecoverOptions, string, string]] : []),
    ...keys.map((key, at): [RecoverOptions, string, string] => [
      { archive_key: key },
      at === 0 ? "The latest archive" : "An older archive",
      key,
    ]),
    [{ empty: true }, "An empty home", "The files of the old home are lost."],
  ];
  const [chosen, setChosen] = useState(0);
  const confirm = async (): Promise<void> => {
    if (await pending.run("recover", () => recover(workspace, options[chosen]?.[0]))) onClose();
  };
  return (
    <Dialog
      title={`Recover ${workspace.name}`}
      confirm="Recover"
      busy={pending.busy === "recover"}
      error={pending.error}
      onConfirm={() => void confirm()}
      onClose={onClose}
    >
      <p>{workspace.error?.message ?? problem.message}</p>
      <fieldset>
        <legend>Continue with</legend>
        {options.map(([, label, detail], at) => (
          <label class="check" key={detail}>
            <input type="radio" name="way" checked={at === chosen} onChange={() => setChosen(at)} />
            <span>
              {label} <small>{detail}</small>
            </span>
          </label>
        ))}
      </fieldset>
    </Dialog>
  );
}
