// How is the installation, who runs what, and what would be collected?

import { isMoving } from "../actions.ts";
import { ask } from "../api-client.ts";
import { lacking, summary } from "../confinement.ts";
import { useAsked, useDoing, useNow, useTitle } from "../hooks.ts";
import { inOrder } from "../workspace-list.ts";
import { useKept } from "../observable.ts";
import { house, limits } from "../session.ts";
import { Link } from "../navigation.tsx";
import { Badge, Button, Card, Waiting, When, Wrong } from "../parts/controls.tsx";
import { Icon } from "../parts/Icon.tsx";
import { Moon } from "../parts/StatusIcon.tsx";
import { size } from "../sizes.ts";
import type { CollectionPreview, Confinement, Latch, Member, Readiness, Workspace } from "../api-types.ts";
import { PHASE_SAYS } from "../labels.ts";
import { sayMoving } from "./Workspaces.tsx";

export function System() {
  useTitle("System");
  const now = useNow();
  return (
    <main class="page">
      <header class="page-head">
        <div>
          <h1>System</h1>
          <p class="room">What runs here, and who sees to it</p>
        </div>
      </header>
      <div class="columns">
        <div class="column">
          <Running now={now} />
          <Collection now={now} />
        </div>
        <div class="column">
          <Health />
          <Controllers now={now} />
          <ConfinementCard />
          <Latches now={now} />
        </div>
      </div>
    </main>
  );
}

const counts = (one: Workspace): boolean => one.desired_state === "RUNNING" || one.observed_status === "RUNNING";

function Running({ now }: { now: number }) {
  const known = useKept(house);
  const allowed = useKept(limits);
  const running = inOrder(known).filter(counts);
  const byOwner = Map.groupBy(running, (one) => one.owner);
  const most = allowed?.max_running_global ?? 0;
  return (
    <Card title="Who runs what" aside={<span class="dim">{allowed && `${running.length} of ${most} places`}</span>}>
      {allowed && (
        <>
          <progress class="fill" max={Math.max(most, 1)} value={running.length} aria-label="Places in use" />
          <p class="dim">
            At most {most} run at once in all, and {allowed.default_max_running_per_user} of each user, unless something else is said of
            them.
          </p>
        </>
      )}
      {known.workspaces === null && <Waiting />}
      {known.workspaces !== null && running.length === 0 && <p class="dim">Everybody is asleep.</p>}
      {[...byOwner].map(([owner, theirs]) => (
        <div class="owner" key={owner}>
          <h3>
            {owner} <small>{theirs.length}</small>
          </h3>
          <ul class="lines">
            {theirs.map((one) => (
              <li key={one.id}>
                <span class="with-moon">
                  <Moon phase={one.phase} moving={isMoving(one)} size={18} />
                  <Link to={{ page: "workspace", name: one.name }}>{one.name}</Link>
                </span>
                <span class="dim">{isMoving(one) ? sayMoving(one) : PHASE_SAYS[one.phase]}</span>
                <span class="dim">
                  <When at={one.phase_changed_at} now={now} />
                </span>
              </li>
            ))}
          </ul>
        </div>
      ))}
    </Card>
  );
}

function Health() {
  const { said, wrong } = useAsked<Readiness>("/health/ready", "", 10_000);
  const checks: [string, boolean | undefined, string][] = [
    ["Database", said?.database, ""],
    ["Bus", said?.bus, ""],
    ["Archive store", said?.archive_store, ""],
    ["A leader", said ? said.leader !== null : undefined, ""],
    ["Nothing held back", said ? said.held_back.length === 0 : undefined, said?.held_back.join(", ") ?? ""],
    ["Every loop turns", said ? said.stalled_loops.length === 0 : undefined, said?.stalled_loops.join(", ") ?? ""],
  ];
  return (
    <Card title="Health" aside={said && <Badge kind={said.ready ? "good" : "bad"}>{said.ready ? "ready" : "not ready"}</Badge>}>
      {wrong && <p class="dim">{wrong}</p>}
      <ul class="conditions">
        {checks.map(([name, is, more]) => (
          <li key={name} data-status={is === undefined ? "" : is ? "True" : "False"}>
            <Icon name={is === false ? "close" : "check"} />
            <span>
              {name} {more && <small>{more}</small>}
            </span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function Controllers({ now }: { now: number }) {
  const { said, wrong } = useAsked<{ members: Member[] }>("/health/coordinator", "", 10_000);
  return (
    <Card title="Controllers">
      {!said && (wrong ? <p class="dim">{wrong}</p> : <Waiting lines={2} />)}
      {said?.members.length === 0 && <p class="dim">None lives: nothing moves until one does.</p>}
      <ul class="lines">
        {said?.members.map((one) => (
          <li key={one.node_id}>
            <span>
              {one.node_id} {one.is_leader && <Badge kind="good">leader</Badge>}
              <small class="block">epoch {one.epoch}</small>
            </span>
            <span class="dim">
              since <When at={one.started_at} now={now} />
            </span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function ConfinementCard() {
  const { said, wrong } = useAsked<{ items: Confinement[] }>("/confinement", "", 30_000);
  const unconfined = lacking(said?.items ?? []);
  return (
    <Card title="Confinement">
      {!said && (wrong ? <p class="dim">{wrong}</p> : <Waiting lines={2} />)}
      {said && unconfined.length === 0 && <p class="dim">{summary(said.items)}</p>}
      {unconfined.map((one) => (
        <div key={one.node_id} data-controller={one.node_id}>
          {unconfined.length > 1 && <h3>{one.node_id}</h3>}
          <ul class="conditions">
            {one.missing.map(({ what, why, remedy }) => (
              <li key={what} data-status="False">
                <Icon name="close" />
                <span>
                  Not confined: {what} <small class="block">{why}</small>
                  {remedy && (
                    <small class="block">
                      To fix: <code>{remedy}</code>
                    </small>
                  )}
                </span>
              </li>
            ))}
          </ul>
          <p>{one.summary}</p>
        </div>
      ))}
    </Card>
  );
}

function Latches({ now }: { now: number }) {
  const { said, again } = useAsked<{ items: Latch[] }>("/latches", "", 15_000);
  const doing = useDoing();
  const standing = said?.items.filter((one) => one.released_at === null) ?? [];
  if (standing.length === 0) return null;
  return (
    <Card title="Held back" kind="trouble">
      <p>So many homes are missing that nothing is touched until they are seen again, or until you say go.</p>
      <ul class="lines">
        {standing.map((one) => (
          <li key={one.provider}>
            <span>
              {one.provider}{" "}
              <small>
                {one.missing} of {one.expected} missing
              </small>
            </span>
            <span class="dim">
              <When at={one.since} now={now} />
            </span>
            <Button
              danger
              busy={doing.busy === one.provider}
              onClick={() =>
                void doing
                  .run(one.provider, () => ask("POST", `/latches/${encodeURIComponent(one.provider)}/release`))
                  .then(again)
              }
            >
              Go on
            </Button>
          </li>
        ))}
      </ul>
      <Wrong onClose={doing.clear}>{doing.wrong}</Wrong>
    </Card>
  );
}

function Collection({ now }: { now: number }) {
  const { said, wrong, again } = useAsked<CollectionPreview>("/gc");
  const doing = useDoing();
  const collect = () => doing.run("collect", () => ask("POST", "/gc")).then(again);
  const kept = Object.values(said?.kept ?? {}).reduce((sum, one) => sum + one, 0);
  return (
    <Card
      title="Archives that nobody needs"
      aside={
        <Button busy={doing.busy === "collect"} onClick={() => void collect()}>
          Collect now
        </Button>
      }
    >
      {!said && (wrong ? <p class="dim">{wrong}</p> : <Waiting />)}
      {said && (
        <>
          {said.would_skip && <p class="dim">A collection would touch nothing just now: {said.would_skip}</p>}
          <ul class="numbers">
            <li>
              <strong>{kept}</strong> kept
            </li>
            <li>
              <strong>{said.would_mark + said.waiting}</strong> in their grace period
            </li>
            <li>
              <strong>{said.would_remove}</strong> would go now
            </li>
            <li>
              <strong>{size(said.would_free_bytes)}</strong> would be free
            </li>
          </ul>
          {said.unknown_count > 0 && (
            <p class="dim">{said.unknown_count} objects in the store are known to nobody; they are never removed.</p>
          )}
          {said.missing_count > 0 && (
            <p class="wrong-words">
              <Icon name="warning" /> {said.missing_count} archives are in the database and not in the store.
            </p>
          )}
          {said.items.length > 0 && (
            <ul class="lines">
              {said.items.slice(0, 20).map((one) => (
                <li key={one.key}>
                  <span>
                    {one.workspace} <small>{one.means}</small>
                    <small class="block key">{one.key}</small>
                  </span>
                  <span class="dim">{one.size_bytes === null ? "" : size(one.size_bytes)}</span>
                  <span class="dim">{one.goes_at ? <When at={one.goes_at} now={now} future /> : one.action.toLowerCase()}</span>
                </li>
              ))}
            </ul>
          )}
          {said.items.length + said.left_out > 20 && <p class="dim">and {said.items.length + said.left_out - 20} more</p>}
          <p class="dim">
            {said.last.ran_at ? (
              <>
                Last collected <When at={said.last.ran_at} now={now} />
                {said.last.report && `: ${said.last.report.removed} removed, ${size(said.last.report.freed_bytes)} freed`}.
              </>
            ) : (
              "Not collected yet."
            )}
          </p>
        </>
      )}
      <Wrong onClose={doing.clear}>{doing.wrong}</Wrong>
    </Card>
  );
}
