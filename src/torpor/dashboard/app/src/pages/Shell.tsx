// How does somebody type in a workspace, from the page?

import { useEffect, useRef, useState } from "preact/hooks";
import { may } from "../actions.ts";
import { useDoing, useTitle } from "../hooks.ts";
import { named } from "../workspace-list.ts";
import { useKept } from "../observable.ts";
import { house } from "../session.ts";
import { Link } from "../navigation.tsx";
import { Button, Waiting, Wrong } from "../parts/controls.tsx";
import { Icon } from "../parts/Icon.tsx";
import { Moon } from "../parts/StatusIcon.tsx";
import type { Me, Workspace } from "../api-types.ts";
import { PHASE_SAYS } from "../labels.ts";
import { wish } from "../commands.ts";
import { sayMoving } from "./Workspaces.tsx";

export function Shell({ me, name }: { me: Me; name: string }) {
  useTitle(`Shell in ${name}`);
  const known = useKept(house);
  const workspace = named(known, name);
  const [turn, setTurn] = useState(0);
  const [ended, setEnded] = useState("");
  const isAwake = workspace?.phase === "RUNNING";
  return (
    <main class="shell-page">
      <header class="shell-head">
        <Link to={{ page: "workspace", name }}>
          <Icon name="back" />
          <span>{name}</span>
        </Link>
        {workspace && <Moon phase={workspace.phase} moving={workspace.operation !== "NONE"} size={18} />}
        <span class="dim" role="status">
          {ended}
        </span>
        {ended && isAwake && (
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
      {workspace && (isAwake || turn > 0 || ended) ? (
        <Terminal key={turn} workspace={workspace} onEnd={setEnded} />
      ) : known.workspaces === null ? (
        <Waiting />
      ) : (
        <Asleep workspace={workspace} me={me} />
      )}
    </main>
  );
}

function Asleep({ workspace, me }: { workspace: Workspace | null; me: Me }) {
  const doing = useDoing();
  return (
    <section class="empty">
      <Moon phase={workspace?.phase ?? "PENDING"} moving={workspace ? workspace.operation !== "NONE" : false} size={72} />
      <h1>{workspace ? `${workspace.name}: ${PHASE_SAYS[workspace.phase].toLowerCase()}` : "There is no such workspace"}</h1>
      {workspace && <p>{sayMoving(workspace) || "A shell needs it awake."}</p>}
      {workspace && workspace.desired_state !== "RUNNING" && may(workspace, me, "WISH") && (
        <Button
          weight="main"
          icon="start"
          busy={doing.busy !== ""}
          onClick={() => void doing.run("start", () => wish(workspace, "start"))}
        >
          Start it
        </Button>
      )}
      <Wrong onClose={doing.clear}>{doing.wrong}</Wrong>
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
    // Fetched when it is needed: it is the largest part of the page, and most never open it.
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
      aria-label={`Shell in ${workspace.name}. Alt and F1 leads out of it.`}
    />
  );
}
