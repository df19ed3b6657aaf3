// The list of workspaces.

import { useState } from "preact/hooks";
import { ACTION_LABEL, access, isInProgress } from "../actions.ts";
import { requestAll } from "../api-client.ts";
import { usePendingAction, useNow, useTitle } from "../hooks.ts";
import { sortedByName } from "../workspace-list.ts";
import { useObservable } from "../observable.ts";
import { workspaceList, limits } from "../session.ts";
import { go, Link } from "../navigation.tsx";
import { Actions } from "../parts/ActionButtons.tsx";
import { Command } from "../parts/Command.tsx";
import { Badge, Button, Placeholder, When, ErrorMessage } from "../parts/controls.tsx";
import { StatusIcon } from "../parts/StatusIcon.tsx";
import { outage, outageText } from "../outage.ts";
import type { Me, Workspace } from "../api-types.ts";
import { size } from "../sizes.ts";
import { errorText, STATUS_OF_OPERATION, STATUS_OF_PHASE, progressText, statusText, waitReason } from "../labels.ts";
import { undelete } from "../commands.ts";
import { NewWorkspace } from "./NewWorkspace.tsx";

const FILTER_FROM = 7;
const SHOWN_AT_FIRST = 200;

type Whose = "all" | "mine" | "shared";

export function Workspaces({ me }: { me: Me }) {
  useTitle("Workspaces");
  const known = useObservable(workspaceList);
  const now = useNow();
  const [creating, setCreating] = useState(false);
  const [filter, setFilter] = useState("");
  const [whose, setWhose] = useState<Whose>("all");
  const [most, setMost] = useState(SHOWN_AT_FIRST);
  const all = sortedByName(known);
  const found = all.filter((one) => matches(one, filter) && belongs(one, me, whose));
  const hasOthers = all.some((one) => one.owner !== me.username);
  return (
    <main class="page">
      <header class="page-head">
        <div>
          <h1>Workspaces</h1>
          <RunningCount />
        </div>
        <Button icon="plus" weight="main" onClick={() => setCreating(true)}>
          New workspace
        </Button>
      </header>
      {(all.length >= FILTER_FROM || hasOthers) && (
        <div class="filters">
          <input
            type="search"
            placeholder="Filter by name, owner, template or status"
            aria-label="Filter workspaces"
            value={filter}
            onInput={(event) => setFilter(event.currentTarget.value)}
          />
          {hasOthers && (
            <div class="segments" role="group" aria-label="Owner">
              {(["all", "mine", "shared"] as const).map((one) => (
                <button key={one} type="button" aria-pressed={one === whose} onClick={() => setWhose(one)}>
                  {{ all: "All", mine: "Mine", shared: me.is_admin ? "Other users’" : "Shared with me" }[one]}
                </button>
              ))}
            </div>
          )}
        </div>
      )}
      {known.workspaces === null ? (
        <Placeholder lines={4} />
      ) : all.length === 0 ? (
        <Empty onCreate={() => setCreating(true)} />
      ) : (
        <ul class="rows" aria-label="Workspaces">
          {found.slice(0, most).map((one) => (
            <Row key={one.id} workspace={one} me={me} now={now} />
          ))}
        </ul>
      )}
      {known.workspaces !== null && all.length > 0 && found.length === 0 && <p class="nothing">No workspace matches the filter.</p>}
      {found.length > most && (
        <p class="more">
          <Button onClick={() => setMost(most + SHOWN_AT_FIRST)}>Show more ({found.length - most} hidden)</Button>
        </p>
      )}
      {known.workspaces !== null && <Deleted me={me} now={now} />}
      {creating && (
        <NewWorkspace
          onClose={() => setCreating(false)}
          onCreated={(created) => {
            setCreating(false);
            go({ page: "workspace", name: created.name });
          }}
        />
      )}
    </main>
  );
}

function matches(workspace: Workspace, filter: string): boolean {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const text = [workspace.name, workspace.owner, workspace.template, workspace.phase, STATUS_OF_PHASE[workspace.phase]]
    .join(" ")
    .toLowerCase();
  return words.every((word) => text.includes(word));
}

function belongs(workspace: Workspace, me: Me, whose: Whose): boolean {
  return whose === "all" || (workspace.owner === me.username) === (whose === "mine");
}

/** The number of running workspaces and the limit. */
function RunningCount() {
  const known = useObservable(limits);
  if (!known) return <p class="subtitle">&nbsp;</p>;
  const { running_mine: running, max_running_per_user: most } = known;
  return (
    <p class="subtitle">
      <span class="meter" role="img" aria-label={`${running} of ${most} running`}>
        {Array.from({ length: Math.min(most, 12) }, (_, at) => (
          <span key={at} data-on={at < running} />
        ))}
      </span>
      {running} of {most} running
    </p>
  );
}

function Row({ workspace, me, now }: { workspace: Workspace; me: Me; now: number }) {
  const pending = usePendingAction();
  const { name, phase, template, owner } = workspace;
  const moving = isInProgress(workspace);
  return (
    <li class="row" data-workspace={name} data-phase={phase} data-moving={moving}>
      <StatusIcon phase={phase} moving={moving} size={30} />
      <div class="row-what">
        <h2>
          <Link to={{ page: "workspace", name }}>{name}</Link>
          {owner !== me.username && <Badge>{owner}</Badge>}
          {Object.keys(workspace.shares).length > 0 && owner === me.username && <Badge>shared</Badge>}
          {access(workspace, me) === "USE" && <Badge>use only</Badge>}
        </h2>
        <p class="row-status">
          <span class="phase">{statusText(workspace)}</span>
          {progressText(workspace) && <span class="dim">{progressText(workspace)}</span>}
          <span class="dim">{template}</span>
          {workspace.disk_bytes !== null && workspace.disk_bytes > 0 && (
            <span class="dim" data-disk title="Disk use of the home">
              {size(workspace.disk_bytes)}
            </span>
          )}
          {!moving && (
            <span class="dim">
              <When at={workspace.phase_changed_at} now={now} />
            </span>
          )}
        </p>
        {(workspace.error || outage(workspace)) && <p class="row-error">{outageText(workspace) || errorText(workspace)}</p>}
        {waitReason(workspace) && <p class="row-error">{waitReason(workspace)}</p>}
        <ErrorMessage onClose={pending.clear}>{pending.error}</ErrorMessage>
      </div>
      <Actions workspace={workspace} me={me} pending={pending} without={["delete"]} />
      <Progress workspace={workspace} />
    </li>
  );
}

/** At the lower edge, so that the layout does not change. */
export function Progress({ workspace }: { workspace: Workspace }) {
  if (!isInProgress(workspace)) return null;
  return (
    <progress
      max="100"
      aria-label={STATUS_OF_OPERATION[workspace.operation]}
      {...(workspace.progress === null ? {} : { value: workspace.progress })}
    />
  );
}

function Empty({ onCreate }: { onCreate: () => void }) {
  return (
    <section class="empty">
      <img src="/page/logo.svg" alt="" width="96" height="96" />
      <h2>No workspaces yet</h2>
      <p>
        A workspace is a home folder and a program that you open in your browser. It goes to sleep when you do not use it, and
        wakes when you open it.
      </p>
      <Button icon="plus" weight="main" onClick={onCreate}>
        Create a workspace
      </Button>
      <p class="dim">Or in a terminal:</p>
      <Command words="torpor create my-first" />
    </section>
  );
}

/** The deleted workspaces that can be undeleted. */
function Deleted({ me, now }: { me: Me; now: number }) {
  const [items, setItems] = useState<Workspace[] | null>(null);
  const pending = usePendingAction();
  const open = async (event: Event): Promise<void> => {
    if (!(event.currentTarget as HTMLDetailsElement).open) return;
    await pending.run("load", async () => setItems(await requestAll<Workspace>("/workspaces?phase=DELETED&limit=500")));
  };
  const restore = (one: Workspace) =>
    pending.run(one.id, async () => {
      await undelete(one);
      setItems((before) => before?.filter((other) => other.id !== one.id) ?? null);
    });
  return (
    <details class="deleted" onToggle={(event) => void open(event)}>
      <summary>Deleted workspaces</summary>
      <ErrorMessage onClose={pending.clear}>{pending.error}</ErrorMessage>
      {items?.length === 0 && <p class="dim">None. You can undelete a workspace for a limited time.</p>}
      <ul class="lines">
        {items
          ?.filter((one) => access(one, me) === "OWN" && !one.purge)
          .map((one) => (
            <li key={one.id}>
              <span>
                {one.name} <small>{one.template}</small>
              </span>
              <span class="dim">{one.deleted_at && <When at={one.deleted_at} now={now} />}</span>
              <Button
                icon="undelete"
                busy={pending.busy === one.id}
                label={`Undelete ${one.name}`}
                onClick={() => void restore(one)}
              >
                {ACTION_LABEL.undelete}
              </Button>
            </li>
          ))}
      </ul>
    </details>
  );
}
