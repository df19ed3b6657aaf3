// What is there to know about one workspace, and what can be done with it?

import { useState } from "preact/hooks";
import { isMoving, may } from "../actions.ts";
import { of } from "../api-client.ts";
import { useAsked, useDoing, useNow, useTitle } from "../hooks.ts";
import { named } from "../workspace-list.ts";
import { useKept } from "../observable.ts";
import { house } from "../session.ts";
import { go, Link } from "../navigation.tsx";
import { Actions } from "../parts/ActionButtons.tsx";
import { Badge, Button, Card, Copyable, Waiting, When, Wrong } from "../parts/controls.tsx";
import { Icon } from "../parts/Icon.tsx";
import { Moon } from "../parts/StatusIcon.tsx";
import { ttl } from "../time.ts";
import type { Archive, Me, Operation, Workspace } from "../api-types.ts";
import { size } from "../sizes.ts";
import { outage } from "../outage.ts";
import { CONDITION_SAYS, PHASE_MEANS, PHASE_SAYS, WISH_SAYS } from "../labels.ts";
import { Explained } from "./workspace/Problems.tsx";
import { History } from "./workspace/History.tsx";
import { Holds } from "./workspace/KeepAwake.tsx";
import { Log } from "./workspace/Log.tsx";
import { Sharing } from "./workspace/Sharing.tsx";
import { Times } from "./workspace/Settings.tsx";
import { Progress, sayMoving } from "./Workspaces.tsx";

export function WorkspacePage({ me, name }: { me: Me; name: string }) {
  useTitle(name);
  const known = useKept(house);
  const listed = named(known, name);
  // What is deleted is not in the list; it can still be looked at.
  const { said: alone, wrong } = useAsked<Workspace>(listed || known.workspaces === null ? null : of(name));
  const workspace = listed ?? alone;
  if (!workspace) {
    return (
      <main class="page">
        {known.workspaces === null || !wrong ? (
          <Waiting lines={6} />
        ) : (
          <section class="empty">
            <Moon phase="PENDING" size={72} />
            <h1>There is no workspace {name}</h1>
            <p>It may have been deleted or renamed, or it is not shared with you.</p>
            <Button onClick={() => go({ page: "workspaces" })}>All workspaces</Button>
          </section>
        )}
      </main>
    );
  }
  return <Whole key={workspace.id} workspace={workspace} me={me} />;
}

function Whole({ workspace, me }: { workspace: Workspace; me: Me }) {
  const now = useNow();
  const doing = useDoing();
  const { name, phase, operation, desired_state: wish, error, generation, revision } = workspace;
  const moving = isMoving(workspace);
  // Whatever is asked besides the workspace itself is asked again when this changes.
  const key = JSON.stringify([phase, operation, wish, error, outage(workspace)?.reason, generation, revision, workspace.sleeps_at]);
  const path = of(workspace.id);
  const history = useAsked<{ items: Operation[] }>(`${path}/operations?limit=100`, key);
  const archives = useAsked<{ items: Archive[] }>(`${path}/archives`, key);
  return (
    <main class="page" data-workspace={name} data-phase={phase} data-moving={moving}>
      <nav class="crumbs" aria-label="Where this is">
        <Link to={{ page: "workspaces" }}>
          <Icon name="back" /> Workspaces
        </Link>
      </nav>
      <header class="workspace-head">
        <Moon phase={phase} moving={moving} size={56} />
        <div class="workspace-what">
          <h1>{name}</h1>
          <p class="row-says">
            <span class="phase">{PHASE_SAYS[phase]}</span>
            <span class="dim">{workspace.template}</span>
            {workspace.owner !== me.username && <Badge>{workspace.owner}</Badge>}
            <span class={moving ? "moving" : "dim"}>{moving ? sayMoving(workspace) : PHASE_MEANS[phase]}</span>
          </p>
        </div>
        <Actions
          workspace={workspace}
          me={me}
          doing={doing}
          without={["recover"]}
          beside={
            may(workspace, me, "RUN") &&
            phase === "RUNNING" && (
              <Link class="button plain" to={{ page: "shell", name }}>
                <Icon name="shell" />
                <span>Shell</span>
              </Link>
            )
          }
        />
        <Progress workspace={workspace} />
      </header>
      <Wrong onClose={doing.clear}>{doing.wrong}</Wrong>
      <div class="columns">
        <div class="column">
          <Explained workspace={workspace} me={me} asKey={key} doing={doing} archives={archives.said?.items ?? []} />
          <History operations={history.said?.items ?? null} wrong={history.wrong} phase={phase} now={now} />
          <Log workspace={workspace} />
        </div>
        <div class="column">
          <Standing workspace={workspace} now={now} />
          <Archives archives={archives.said?.items ?? null} workspace={workspace} now={now} />
          <Holds workspace={workspace} me={me} now={now} />
          <Sharing workspace={workspace} me={me} />
          <Times workspace={workspace} me={me} now={now} />
        </div>
      </div>
    </main>
  );
}

function Standing({ workspace, now }: { workspace: Workspace; now: number }) {
  return (
    <Card
      title="What was seen"
      aside={<span class="dim">{workspace.observed_at && <When at={workspace.observed_at} now={now} />}</span>}
    >
      <ul class="conditions">
        {Object.entries(CONDITION_SAYS).map(([name, says]) => {
          const condition = workspace.conditions[name];
          return (
            <li key={name} data-status={condition?.status ?? "False"}>
              <Icon name={condition?.status === "True" ? "check" : "close"} />
              <span>
                {says} <small>{condition?.reason}</small>
                {condition?.message && <small class="block">{condition.message}</small>}
              </span>
              {condition?.last_transition_time && (
                <span class="dim">
                  <When at={condition.last_transition_time} now={now} />
                </span>
              )}
            </li>
          );
        })}
      </ul>
      <p class="dim">It is wished {WISH_SAYS[workspace.desired_state]}.</p>
    </Card>
  );
}

function Archives({ archives, workspace, now }: { archives: Archive[] | null; workspace: Workspace; now: number }) {
  const [all, setAll] = useState(false);
  const latest = archives?.[0];
  return (
    <Card title="Archives">
      {archives === null && <Waiting lines={2} />}
      {archives?.length === 0 && (
        <p class="dim">
          None yet. The first is made when it is archived: by you, or by itself after {ttl(workspace.archive_ttl)} asleep.
        </p>
      )}
      {latest && (
        <p class="proof">
          <Icon name="check" />
          <span>
            Last proven restorable <When at={latest.proven_at} now={now} />
            <small class="block">Read back and compared with its manifest, file by file.</small>
          </span>
        </p>
      )}
      <ul class="lines">
        {(all ? archives : archives?.slice(0, 3))?.map((one) => (
          <li key={one.key}>
            <span>
              {size(one.home_bytes)} <small>{size(one.size_bytes)} stored</small>{" "}
              {one.key === workspace.archive_key && <Badge kind="good">latest</Badge>}
              <small class="block key">
                <Copyable text={one.key} label="its key" />
              </small>
            </span>
            <span class="dim">
              <When at={one.proven_at} now={now} />
            </span>
          </li>
        ))}
      </ul>
      {(archives?.length ?? 0) > 3 && (
        <Button weight="quiet" onClick={() => setAll(!all)}>
          {all ? "Fewer" : `All ${archives?.length}`}
        </Button>
      )}
    </Card>
  );
}
