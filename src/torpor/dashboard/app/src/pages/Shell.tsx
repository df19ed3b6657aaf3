// A terminal with a shell in a workspace.

import { useEffect, useRef, useState } from "preact/hooks";
import { may } from "../actions.ts";
import { usePendingAction, useTitle } from "../hooks.ts";
import { findByName } from "../workspace-list.ts";
import { useObservable } from "../observable.ts";
import { workspaceList } from "../session.ts";
import { Link } from "../navigation.tsx";
import { Button, Placeholder, ErrorMessage } from "../parts/controls.tsx";
import { Icon } from "../parts/Icon.tsx";
import { StatusIcon } from "../parts/StatusIcon.tsx";
import type { Me, Workspace } from "../api-types.ts";
import { statusText } from "../labels.ts";
import { requestState } from "../commands.ts";

export function Shell({ me, name }: { me: Me; name: string }) {
  useTitle(`Shell in ${name}`);
  const known = useObservable(workspaceList);
  const workspace = findByName(known, name);
  const [turn, setTurn] = useState(0);
  const [ended, setEnded] = useState("");
  const isRunning = workspace?.phase === "RUNNING";
  return (
    <main class="shell-page">
      <header class="shell-head">
        <Link to={{ page: "workspace", name }}>
          <Icon name="back" />
          <span>{name}</span>
        </Link>
        {workspace && <StatusIcon phase={workspace.phase} moving={workspace.operation !== "NONE"} size={18} />}
        <span class="dim" role="status">
          {ended}
        </span>
        {ended && isRunning && (
          <Button
            weight="strong"
            onClick={() => {
              setEnded("");
              setTurn(turn + 1);
            }}
          >
            New shell
          </Button>
        )}
      </header>
      {workspace && (isRunning || turn > 0 || ended) ? (
        <Terminal key={turn} workspace={workspace} onEnd={setEnded} />
      ) : known.workspaces === null ? (
        <Placeholder />
      ) : (
        <NotRunning workspace={workspace} me={me} />
      )}
    </main>
  );
}

function NotRunning({ workspace, me }: { workspace: Workspace | null; me: Me }) {
  const pending = usePendingAction();
  return (
    <section class="empty">
      <StatusIcon phase={workspace?.phase ?? "PENDING"} moving={workspace ? workspace.operation !== "NONE" : false} size={72} />
      <h1>{workspace ? `${workspace.name} is ${statusText(workspace).toLowerCase()}` : "Workspace not found"}</h1>
      {workspace && <p>A shell needs a running workspace.</p>}
      {workspace && workspace.desired_state !== "RUNNING" && may(workspace, me, "WISH") && (
        <Button
          weight="main"
          icon="start"
          busy={pending.busy !== ""}
          onClick={() => void pending.run("start", () => requestState(workspace, "start"))}
        >
          Start
        </Button>
      )}
      <ErrorMessage onClose={pending.clear}>{pending.error}</ErrorMessage>
    </section>
  );
}

function Terminal({ workspace, onEnd }: { workspace: Workspace; onEnd: (why: string) => void }) {
  const screen = useRef<HTMLDivElement>(null);
  const end = useRef(onEnd);
  end.current = onEnd;
  useEffect(() => {
    let close: (() => void) | null = null;
    let isGone = false;
    // The terminal is the largest module of the page, so it is loaded only here.
    void import("../terminal.ts").then(({ open }) => {
      if (!isGone && screen.current) close = open(screen.current, workspace.id, (why) => end.current(why));
    });
    return () => {
      isGone = true;
      close?.();
    };
  }, [workspace.id]);
  return (
    <div
      ref={screen}
      class="shell-screen"
      role="group"
      aria-label={`Shell in ${workspace.name}. Press Alt+F1 to leave it.`}
    />
  );
}
