// Which buttons does a workspace have, and what do they ask first?

import { type ComponentChildren, Fragment } from "preact";
import { useState } from "preact/hooks";
import { ACTION_SAYS, actions, type Action } from "../actions.ts";
import { Problem } from "../api-client.ts";
import { type Doing } from "../hooks.ts";
import { type Me, type Workspace } from "../api-types.ts";
import { recover, remove, undelete, type Way, wish } from "../commands.ts";
import { Command } from "./Command.tsx";
import { Button, type Weight } from "./controls.tsx";
import { Dialog } from "./Dialog.tsx";
import { Icon, type IconName } from "./Icon.tsx";

interface Props {
  workspace: Workspace;
  me: Me;
  doing: Doing;
  /** Left out where they stand elsewhere. */
  without?: readonly Action[];
  /** What stands beside the way to open it. */
  beside?: ComponentChildren;
}

type Asking = { dialog: "delete" } | { dialog: "recover"; problem: Problem } | null;

export function Actions({ workspace, me, doing, without = [], beside }: Props) {
  const [asking, setAsking] = useState<Asking>(null);
  const offered = actions(workspace, me).filter((action) => !without.includes(action));
  const { name } = workspace;

  const act = async (action: Action): Promise<void> => {
    if (action === "delete") setAsking({ dialog: "delete" });
    else if (action === "undelete") await doing.run(action, () => undelete(workspace));
    else if (action !== "recover") await doing.run(action, () => wish(workspace, action));
    else
      await doing.run(action, async () => {
        try {
          await recover(workspace);
        } catch (error) {
          if (!(error instanceof Problem) || error.code !== "say_which_way") throw error;
          setAsking({ dialog: "recover", problem: error });
        }
      });
  };

  return (
    <>
      <div class="actions" role="group" aria-label={`What can be done with ${name}`}>
        {offered.map((action) =>
          action === "open" ? (
            <Fragment key={action}>
              <OpenLink workspace={workspace} />
              {beside}
            </Fragment>
          ) : (
            <Button
              key={action}
              icon={action as IconName}
              weight={weightOf(action, workspace)}
              danger={action === "delete"}
              busy={doing.busy === action}
              label={`${ACTION_SAYS[action]} ${name}`}
              data-action={action}
              onClick={() => void act(action)}
            >
              {ACTION_SAYS[action]}
            </Button>
          ),
        )}
      </div>
      {asking?.dialog === "delete" && (
        <DeleteDialog
          workspace={workspace}
          doing={doing}
          onClose={() => {
            doing.clear();
            setAsking(null);
          }}
        />
      )}
      {asking?.dialog === "recover" && (
        <RecoverDialog workspace={workspace} doing={doing} problem={asking.problem} onClose={() => setAsking(null)} />
      )}
    </>
  );
}

function weightOf(action: Action, workspace: Workspace): Weight {
  if (action === "recover" || action === "undelete") return "main";
  if (action === "start") return "strong";
  return action === "delete" && workspace.phase !== "ERROR" ? "quiet" : "plain";
}

/** Opening one that sleeps wakes it. */
export function OpenLink({ workspace }: { workspace: Workspace }) {
  const isAwake = workspace.phase === "RUNNING";
  return (
    <a
      class={`button ${isAwake ? "main" : "plain"}`}
      href={workspace.url}
      target="_blank"
      rel="noopener"
      data-action="open"
      aria-label={`Open ${workspace.name} in a new tab${isAwake ? "" : ", which wakes it"}`}
    >
      <Icon name="open" />
      <span>Open</span>
    </a>
  );
}

function DeleteDialog({ workspace, doing, onClose }: { workspace: Workspace; doing: Doing; onClose: () => void }) {
  const [purge, setPurge] = useState(false);
  const confirm = async (): Promise<void> => {
    if (await doing.run("delete", () => remove(workspace, purge))) onClose();
  };
  return (
    <Dialog
      title={`Delete ${workspace.name}?`}
      confirm={purge ? "Purge it" : "Delete"}
      cancel="Keep it"
      danger
      busy={doing.busy === "delete"}
      wrong={doing.wrong}
      onConfirm={() => void confirm()}
      onClose={onClose}
    >
      <p>Its home goes into the archive first. For a while it can be brought back, here or with</p>
      <Command words={`torpor undelete ${workspace.name}`} />
      <label class="check">
        <input type="checkbox" checked={purge} onChange={(event) => setPurge(event.currentTarget.checked)} />
        <span>
          <strong>Purge</strong>: give up its home and its archives too. This cannot be taken back.
        </span>
      </label>
    </Dialog>
  );
}

interface RecoverProps {
  workspace: Workspace;
  doing: Doing;
  problem: Problem;
  onClose: () => void;
}

function RecoverDialog({ workspace, doing, problem, onClose }: RecoverProps) {
  const keys = Array.isArray(problem.body["archive_keys"]) ? (problem.body["archive_keys"] as string[]) : [];
  const canAccept = problem.body["can_accept"] === true;
  const ways: [Way, string, string][] = [
    ...(canAccept ? [[{ accept: true }, "The home as it is", "a new marker is written"] as [Way, string, string]] : []),
    ...keys.map((key, at): [Way, string, string] => [
      { archive_key: key },
      at === 0 ? "The latest archive" : "An older archive",
      key,
    ]),
    [{ empty: true }, "An empty home", "what was in it is given up"],
  ];
  const [chosen, setChosen] = useState(0);
  const confirm = async (): Promise<void> => {
    if (await doing.run("recover", () => recover(workspace, ways[chosen]?.[0]))) onClose();
  };
  return (
    <Dialog
      title={`How should ${workspace.name} go on?`}
      confirm="Recover"
      cancel="Not now"
      busy={doing.busy === "recover"}
      wrong={doing.wrong}
      onConfirm={() => void confirm()}
      onClose={onClose}
    >
      <p>{workspace.error?.message ?? problem.message}</p>
      <fieldset>
        <legend>Go on from</legend>
        {ways.map(([, says, detail], at) => (
          <label class="check" key={detail}>
            <input type="radio" name="way" checked={at === chosen} onChange={() => setChosen(at)} />
            <span>
              {says} <small>{detail}</small>
            </span>
          </label>
        ))}
      </fieldset>
    </Dialog>
  );
}
