// The page of one workspace.

import { isInProgress } from "../actions.ts";
import { workspacePath } from "../api-client.ts";
import type { ArchiveList, Explanation, Me, Phase, Workspace } from "../api-types.ts";
import { usePendingAction, useNow, useRequest, useTitle } from "../hooks.ts";
import { go, Link } from "../navigation.tsx";
import { useObservable } from "../observable.ts";
import { outage } from "../outage.ts";
import { Badge, Button, ErrorMessage, Placeholder } from "../parts/controls.tsx";
import { Icon } from "../parts/Icon.tsx";
import { StatusIcon } from "../parts/StatusIcon.tsx";
import { workspaceList } from "../session.ts";
import { findByName } from "../workspace-list.ts";
import { Archives } from "./workspace/Archives.tsx";
import { Connect } from "./workspace/Connect.tsx";
import { Details } from "./workspace/Details.tsx";
import { KeepAwake } from "./workspace/KeepAwake.tsx";
import { Log } from "./workspace/Log.tsx";
import { PossibleActions } from "./workspace/PossibleActions.tsx";
import { Problems } from "./workspace/Problems.tsx";
import { Settings } from "./workspace/Settings.tsx";
import { Sharing } from "./workspace/Sharing.tsx";
import { StatusLine } from "./workspace/StatusLine.tsx";
import { Usage } from "./workspace/Usage.tsx";
import { Progress } from "./Workspaces.tsx";

export function WorkspacePage({ me, name }: { me: Me; name: string }) {
  useTitle(name);
  const known = useObservable(workspaceList);
  const listed = findByName(known, name);
  // A deleted workspace is not in the list, but it has a page.
  const { data: alone, error } = useRequest<Workspace>(listed || known.workspaces === null ? null : workspacePath(name));
  const workspace = listed ?? alone;
  if (!workspace) {
    return (
      <main class="page">
        {known.workspaces === null || !error ? (
          <Placeholder lines={6} />
        ) : (
          <section class="empty">
            <StatusIcon phase="PENDING" size={72} />
            <h1>Workspace “{name}” not found</h1>
            <p>It was deleted or renamed, or it is not shared with you.</p>
            <Button onClick={() => go({ page: "workspaces" })}>All workspaces</Button>
          </section>
        )}
      </main>
    );
  }
  return <LoadedWorkspace key={workspace.id} workspace={workspace} me={me} />;
}

const CAN_SLEEP: readonly Phase[] = ["RUNNING", "STANDBY"];

function LoadedWorkspace({ workspace, me }: { workspace: Workspace; me: Me }) {
  const now = useNow();
  const pending = usePendingAction();
  const { name, phase, operation, desired_state: requested, error, generation, revision, sleeps_at, restore } = workspace;
  const moving = isInProgress(workspace);
  // When this changes, the page requests the data that is not part of the workspace again.
  const key = JSON.stringify([phase, operation, requested, error, outage(workspace)?.reason, generation, revision, sleeps_at, restore]);
  const path = workspacePath(workspace.id);
  const explanation = useRequest<Explanation>(`${path}/explain`, key, 15_000);
  const archives = useRequest<ArchiveList>(`${path}/archives`, key);
  return (
    <main class="page" data-workspace={name} data-phase={phase} data-moving={moving}>
      <nav class="crumbs" aria-label="Breadcrumb">
        <Link to={{ page: "workspaces" }}>
          <Icon name="back" /> Workspaces
        </Link>
      </nav>
      <header class="workspace-head">
        <StatusIcon phase={phase} moving={moving} size={52} />
        <div class="workspace-what">
          <h1>
            {name} {workspace.owner !== me.username && <Badge>{workspace.owner}</Badge>}
          </h1>
          <StatusLine
            workspace={workspace}
            me={me}
            pending={pending}
            reasons={explanation.data?.awake_because ?? []}
            now={now}
          />
        </div>
        <Progress workspace={workspace} />
      </header>
      <ErrorMessage onClose={pending.clear}>{pending.error}</ErrorMessage>
      <Problems workspace={workspace} me={me} pending={pending} archives={archives.data?.items ?? []} />
      <div class="columns">
        <div class="column">
          <Connect workspace={workspace} me={me} />
          <PossibleActions workspace={workspace} me={me} pending={pending} explanation={explanation.data} />
          <Usage workspace={workspace} now={now} />
          <Log workspace={workspace} />
        </div>
        <div class="column">
          <Settings workspace={workspace} me={me} now={now} />
          {CAN_SLEEP.includes(phase) && <KeepAwake workspace={workspace} me={me} now={now} />}
          <Archives list={archives.data} workspace={workspace} me={me} now={now} />
          <Sharing workspace={workspace} me={me} />
        </div>
      </div>
      <Details workspace={workspace} explanation={explanation} requestKey={key} now={now} />
    </main>
  );
}
