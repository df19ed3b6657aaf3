// Which workspaces are there, and what are they doing?

import { useState } from "preact/hooks";
import { ACTION_SAYS, access, isMoving } from "../actions.ts";
import { askForAll } from "../api-client.ts";
import { useDoing, useNow, useTitle } from "../hooks.ts";
import { inOrder } from "../workspace-list.ts";
import { useKept } from "../observable.ts";
import { house, limits } from "../session.ts";
import { go, Link } from "../navigation.tsx";
import { Actions } from "../parts/ActionButtons.tsx";
import { Command } from "../parts/Command.tsx";
import { Badge, Button, Waiting, When, Wrong } from "../parts/controls.tsx";
import { Moon } from "../parts/StatusIcon.tsx";
import { outage, outageWords } from "../outage.ts";
import type { Me, Workspace } from "../api-types.ts";
import { size } from "../sizes.ts";
import { diskTrouble, OPERATION_SAYS, PHASE_SAYS } from "../labels.ts";
import { undelete } from "../commands.ts";
import { NewWorkspace } from "./NewWorkspace.tsx";

const FILTER_FROM = 7;
const SHOWN_AT_FIRST = 200;

type Whose = "all" | "mine" | "shared";

export function Workspaces({ me }: { me: Me }) {
  useTitle("Workspaces");
  const known = useKept(house);
  const now = useNow();
  const [creating, setCreating] = useState(false);
  const [looked, setLooked] = useState("");
  const [whose, setWhose] = useState<Whose>("all");
  const [most, setMost] = useState(SHOWN_AT_FIRST);
  const all = inOrder(known);
  const found = all.filter((one) => matches(one, looked) && belongs(one, me, whose));
  const hasOthers = all.some((one) => one.owner !== me.username);
  return (
    <main class="page">
      <header class="page-head">
        <div>
          <h1>Workspaces</h1>
          <Room />
        </div>
        <Button icon="plus" weight="main" onClick={() => setCreating(true)}>
          New workspace
        </Button>
      </header>
      {(all.length >= FILTER_FROM || hasOthers) && (
        <div class="filters">
          <input
            type="search"
            placeholder="Find by name, owner, template or phase"
            aria-label="Find workspaces"
            value={looked}
            onInput={(event) => setLooked(event.currentTarget.value)}
          />
          {hasOthers && (
            <div class="segments" role="group" aria-label="Whose">
              {(["all", "mine", "shared"] as const).map((one) => (
                <button key={one} type="button" aria-pressed={one === whose} onClick={() => setWhose(one)}>
                  {{ all: "All", mine: "Mine", shared: me.is_admin ? "Others’" : "Shared with me" }[one]}
                </button>
              ))}
            </div>
          )}
        </div>
      )}
      {known.workspaces === null ? (
        <Waiting lines={4} />
      ) : all.length === 0 ? (
        <Empty onCreate={() => setCreating(true)} />
      ) : (
        <ul class="rows" aria-label="Workspaces">
          {found.slice(0, most).map((one) => (
            <Row key={one.id} workspace={one} me={me} now={now} />
          ))}
        </ul>
      )}
      {known.workspaces !== null && all.length > 0 && found.length === 0 && <p class="nothing">Nothing here is called that.</p>}
      {found.length > most && (
        <p class="more">
          <Button onClick={() => setMost(most + SHOWN_AT_FIRST)}>Show more ({found.length - most} left)</Button>
        </p>
      )}
      {known.workspaces !== null && <Deleted me={me} now={now} />}
      {creating && (
        <NewWorkspace
          onClose={() => setCreating(false)}
          onMade={(made) => {
            setCreating(false);
            go({ page: "workspace", name: made.name });
          }}
        />
      )}
    </main>
  );
}

function matches(workspace: Workspace, looked: string): boolean {
  const words = looked.toLowerCase().split(/\s+/).filter(Boolean);
  const text = [workspace.name, workspace.owner, workspace.template, workspace.phase, PHASE_SAYS[workspace.phase]]
    .join(" ")
    .toLowerCase();
  return words.every((word) => text.includes(word));
}

function belongs(workspace: Workspace, me: Me, whose: Whose): boolean {
  return whose === "all" || (workspace.owner === me.username) === (whose === "mine");
}

/** How many run, and how many may. */
function Room() {
  const known = useKept(limits);
  if (!known) return <p class="room">&nbsp;</p>;
  const { running_mine: running, max_running_per_user: most } = known;
  return (
    <p class="room">
      <span class="meter" role="img" aria-label={`${running} of ${most} running`}>
        {Array.from({ length: Math.min(most, 12) }, (_, at) => (
          <span key={at} data-on={at < running} />
        ))}
      </span>
      {running} of your {most} places to run in use
    </p>
  );
}

function Row({ workspace, me, now }: { workspace: Workspace; me: Me; now: number }) {
  const doing = useDoing();
  const { name, phase, template, owner } = workspace;
  const moving = isMoving(workspace);
  return (
    <li class="row" data-workspace={name} data-phase={phase} data-moving={moving}>
      <Moon phase={phase} moving={moving} size={30} />
      <div class="row-what">
        <h2>
          <Link to={{ page: "workspace", name }}>{name}</Link>
          {owner !== me.username && <Badge>{owner}</Badge>}
          {Object.keys(workspace.shares).length > 0 && owner === me.username && <Badge>shared</Badge>}
          {access(workspace, me) === "USE" && <Badge>use only</Badge>}
        </h2>
        <p class="row-says">
          <span class="phase">{PHASE_SAYS[phase]}</span>
          <span class="dim">{template}</span>
          {workspace.disk_bytes !== null && workspace.disk_bytes > 0 && (
            <span class="dim" data-disk title="What its home takes on the disk">
              {size(workspace.disk_bytes)}
            </span>
          )}
          {moving ? (
            <span class="moving">{sayMoving(workspace)}</span>
          ) : (
            <span class="dim">
              <When at={workspace.phase_changed_at} now={now} />
            </span>
          )}
        </p>
        {(workspace.error || outage(workspace)) && <p class="row-error">{outageWords(workspace) || errorWords(workspace)}</p>}
        {diskTrouble(workspace) && <p class="row-error">{diskTrouble(workspace)}</p>}
        <Wrong onClose={doing.clear}>{doing.wrong}</Wrong>
      </div>
      <Actions workspace={workspace} me={me} doing={doing} without={["delete"]} />
      <Progress workspace={workspace} />
    </li>
  );
}

export function sayMoving(workspace: Workspace): string {
  if (!isMoving(workspace)) return "";
  const says = OPERATION_SAYS[workspace.operation];
  return workspace.progress === null ? `${says}…` : `${says} · ${workspace.progress} %`;
}

export function errorWords({ error }: Workspace): string {
  if (!error) return "";
  return `${error.reason}: ${error.message}${error.is_terminal ? "" : " It is tried again by itself."}`;
}

/** Along the lower edge, so that nothing moves when it comes and goes. */
export function Progress({ workspace }: { workspace: Workspace }) {
  if (!isMoving(workspace)) return null;
  return (
    <progress
      max="100"
      aria-label={OPERATION_SAYS[workspace.operation]}
      {...(workspace.progress === null ? {} : { value: workspace.progress })}
    />
  );
}

function Empty({ onCreate }: { onCreate: () => void }) {
  return (
    <section class="empty">
      <img src="/page/logo.svg" alt="" width="96" height="96" />
      <h2>Nothing sleeps here yet</h2>
      <p>
        A workspace is a home and a program that opens in your browser. Left alone it falls asleep, and wakes when you knock.
      </p>
      <Button icon="plus" weight="main" onClick={onCreate}>
        Create the first one
      </Button>
      <p class="dim">or, in a terminal,</p>
      <Command words="torpor create my-first" />
    </section>
  );
}

/** Those that are gone, for as long as they can be brought back. */
function Deleted({ me, now }: { me: Me; now: number }) {
  const [items, setItems] = useState<Workspace[] | null>(null);
  const doing = useDoing();
  const open = async (event: Event): Promise<void> => {
    if (!(event.currentTarget as HTMLDetailsElement).open) return;
    await doing.run("look", async () => setItems(await askForAll<Workspace>("/workspaces?phase=DELETED&limit=500")));
  };
  const bring = (one: Workspace) =>
    doing.run(one.id, async () => {
      await undelete(one);
      setItems((before) => before?.filter((other) => other.id !== one.id) ?? null);
    });
  return (
    <details class="deleted" onToggle={(event) => void open(event)}>
      <summary>Deleted workspaces</summary>
      <Wrong onClose={doing.clear}>{doing.wrong}</Wrong>
      {items?.length === 0 && <p class="dim">None. What is deleted can be brought back from here for a while.</p>}
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
                busy={doing.busy === one.id}
                label={`Bring back ${one.name}`}
                onClick={() => void bring(one)}
              >
                {ACTION_SAYS.undelete}
              </Button>
            </li>
          ))}
      </ul>
    </details>
  );
}
