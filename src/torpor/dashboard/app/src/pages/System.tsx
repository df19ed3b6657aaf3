// The state of the installation, for administrators.

import { isInProgress } from "../actions.ts";
import { request } from "../api-client.ts";
import { lacking, summary } from "../confinement.ts";
import { useRequest, usePendingAction, useNow, useTitle } from "../hooks.ts";
import { sortedByName } from "../workspace-list.ts";
import { useObservable } from "../observable.ts";
import { workspaceList, limits } from "../session.ts";
import { Link } from "../navigation.tsx";
import { Badge, Button, Card, Placeholder, When, ErrorMessage } from "../parts/controls.tsx";
import { Icon } from "../parts/Icon.tsx";
import { StatusIcon } from "../parts/StatusIcon.tsx";
import { size } from "../sizes.ts";
import type { CollectionPreview, Confinement, Latch, Member, Readiness, RuntimeState, Workspace } from "../api-types.ts";
import { statusText } from "../labels.ts";

export function System() {
  useTitle("System");
  const now = useNow();
  return (
    <main class="page">
      <header class="page-head">
        <div>
          <h1>System</h1>
          <p class="subtitle">Running workspaces, health and controllers</p>
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
          <Runtime />
          <ConfinementCard />
          <Latches now={now} />
        </div>
      </div>
    </main>
  );
}

const counts = (one: Workspace): boolean => one.desired_state === "RUNNING" || one.observed_status === "RUNNING";

function Running({ now }: { now: number }) {
  const known = useObservable(workspaceList);
  const allowed = useObservable(limits);
  const running = sortedByName(known).filter(counts);
  const byOwner = Map.groupBy(running, (one) => one.owner);
  const most = allowed?.max_running_global ?? 0;
  return (
    <Card title="Running workspaces" aside={<span class="dim">{allowed && `${running.length} of ${most}`}</span>}>
      {allowed && (
        <>
          <progress class="fill" max={Math.max(most, 1)} value={running.length} aria-label="Running workspaces" />
          <p class="dim">
            At most {most} workspaces run at once. The default limit of a user is {allowed.default_max_running_per_user}.
          </p>
        </>
      )}
      {known.workspaces === null && <Placeholder />}
      {known.workspaces !== null && running.length === 0 && <p class="dim">No workspace is running.</p>}
      {[...byOwner].map(([owner, theirs]) => (
        <div class="owner" key={owner}>
          <h3>
            {owner} <small>{theirs.length}</small>
          </h3>
          <ul class="lines">
            {theirs.map((one) => (
              <li key={one.id}>
                <span class="with-icon">
                  <StatusIcon phase={one.phase} moving={isInProgress(one)} size={18} />
                  <Link to={{ page: "workspace", name: one.name }}>{one.name}</Link>
                </span>
                <span class="dim">{statusText(one)}</span>
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
  const { data, error } = useRequest<Readiness>("/health/ready", "", 10_000);
  const checks: [string, boolean | undefined, string][] = [
    ["Database", data?.database, ""],
    ["Bus (Redis)", data?.bus, ""],
    ["Archive store", data?.archive_store, ""],
    ["Runtime", data?.runtime, ""],
    ["Leader elected", data ? data.leader !== null : undefined, ""],
    ["No latch set", data ? data.held_back.length === 0 : undefined, data?.held_back.join(", ") ?? ""],
    ["All loops run", data ? data.stalled_loops.length === 0 : undefined, data?.stalled_loops.join(", ") ?? ""],
  ];
  return (
    <Card title="Health" aside={data && <Badge kind={data.ready ? "good" : "bad"}>{data.ready ? "ready" : "not ready"}</Badge>}>
      {error && <p class="dim">{error}</p>}
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

function Runtime() {
  const { data, error } = useRequest<RuntimeState>("/runtime", "", 5_000);
  const move = data?.switch;
  return (
    <Card title="Runtime" aside={move && <Badge kind="warn">moving to {move.target}</Badge>}>
      {!data && (error ? <p class="dim">{error}</p> : <Placeholder lines={1} />)}
      {data && <p>{data.world ?? "No controller has started yet."}</p>}
      {move && move.homes_left > 0 && <p>Workspaces that are not archived yet: {move.homes_left}. None can start meanwhile.</p>}
      {move?.homes_left === 0 && <p>All workspaces are archived. Restart Torpor with the runtime {move.target}.</p>}
      <ul class="lines">
        {move?.stuck.map((one) => (
          <li key={one.workspace}>
            <Link to={{ page: "workspace", name: one.workspace }}>{one.workspace}</Link>
            <span class="dim">{one.message}</span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function Controllers({ now }: { now: number }) {
  const { data, error } = useRequest<{ members: Member[] }>("/health/coordinator", "", 10_000);
  return (
    <Card title="Controllers">
      {!data && (error ? <p class="dim">{error}</p> : <Placeholder lines={2} />)}
      {data?.members.length === 0 && <p class="dim">No controller is running. Operations start when one does.</p>}
      <ul class="lines">
        {data?.members.map((one) => (
          <li key={one.node_id}>
            <span>
              {one.node_id} {one.is_leader && <Badge kind="good">leader</Badge>}
              <small class="block">epoch {one.epoch}</small>
            </span>
            <span class="dim">
              started <When at={one.started_at} now={now} />
            </span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function ConfinementCard() {
  const { data, error } = useRequest<{ items: Confinement[] }>("/confinement", "", 30_000);
  const unconfined = lacking(data?.items ?? []);
  return (
    <Card title="Confinement">
      {!data && (error ? <p class="dim">{error}</p> : <Placeholder lines={2} />)}
      {data && unconfined.length === 0 && <p class="dim">{summary(data.items)}</p>}
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
  const { data, reload } = useRequest<{ items: Latch[] }>("/latches", "", 15_000);
  const pending = usePendingAction();
  const standing = data?.items.filter((one) => one.released_at === null) ?? [];
  if (standing.length === 0) return null;
  return (
    <Card title="Latches" kind="problem">
      <p>Many homes are missing. Operations are paused until the homes are found again or you release the latch.</p>
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
              busy={pending.busy === one.provider}
              onClick={() =>
                void pending
                  .run(one.provider, () => request("POST", `/latches/${encodeURIComponent(one.provider)}/release`))
                  .then(reload)
              }
            >
              Release
            </Button>
          </li>
        ))}
      </ul>
      <ErrorMessage onClose={pending.clear}>{pending.error}</ErrorMessage>
    </Card>
  );
}

function Collection({ now }: { now: number }) {
  const { data, error, reload } = useRequest<CollectionPreview>("/gc");
  const pending = usePendingAction();
  const collect = () => pending.run("collect", () => request("POST", "/gc")).then(reload);
  const kept = Object.values(data?.kept ?? {}).reduce((sum, one) => sum + one, 0);
  return (
    <Card
      title="Garbage collection"
      aside={
        <Button busy={pending.busy === "collect"} onClick={() => void collect()}>
          Collect now
        </Button>
      }
    >
      {!data && (error ? <p class="dim">{error}</p> : <Placeholder />)}
      {data && (
        <>
          {data.would_skip && <p class="dim">A collection would be skipped: {data.would_skip}</p>}
          <ul class="numbers">
            <li>
              <strong>{kept}</strong> archives kept
            </li>
            <li>
              <strong>{data.would_mark + data.waiting}</strong> in their grace period
            </li>
            <li>
              <strong>{data.would_remove}</strong> to remove now
            </li>
            <li>
              <strong>{size(data.would_free_bytes + data.packs.would_free_bytes)}</strong> to free
            </li>
          </ul>
          {data.unknown_count > 0 && (
            <p class="dim">{data.unknown_count} objects in the store are not in the database. They are never removed.</p>
          )}
          {data.missing_count > 0 && (
            <p class="wrong-words">
              <Icon name="warning" /> {data.missing_count} archives are in the database but not in the store.
            </p>
          )}
          {data.packs.missing_count > 0 && (
            <p class="wrong-words">
              <Icon name="warning" /> {data.packs.missing_count} packs of archives are missing or have another size in the store.
            </p>
          )}
          {data.items.length > 0 && (
            <ul class="lines">
              {data.items.slice(0, 20).map((one) => (
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
          {data.items.length + data.left_out > 20 && <p class="dim">and {data.items.length + data.left_out - 20} more</p>}
          <p class="dim">
            {data.last.ran_at ? (
              <>
                Last collected <When at={data.last.ran_at} now={now} />
                {data.last.report && `: ${data.last.report.removed} removed, ${size(data.last.report.freed_bytes)} freed`}.
              </>
            ) : (
              "Not collected yet."
            )}
          </p>
        </>
      )}
      <ErrorMessage onClose={pending.clear}>{pending.error}</ErrorMessage>
    </Card>
  );
}
