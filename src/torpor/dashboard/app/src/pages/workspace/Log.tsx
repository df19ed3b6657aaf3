// The log of a workspace.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { workspacePath } from "../../api-client.ts";
import { useRequest } from "../../hooks.ts";
import { Button, Card } from "../../parts/controls.tsx";
import type { Workspace } from "../../api-types.ts";

const FOLLOW_MS = 3000;

export function Log({ workspace }: { workspace: Workspace }) {
  const [open, setOpen] = useState(false);
  return (
    <Card
      title="Log"
      aside={
        <Button weight="quiet" onClick={() => setOpen(!open)}>
          {open ? "Hide" : "Show"}
        </Button>
      }
    >
      {open ? (
        <Lines workspace={workspace} />
      ) : (
        <p class="dim">The standard output and standard error of the program.</p>
      )}
    </Card>
  );
}

function Lines({ workspace }: { workspace: Workspace }) {
  const isRunning = workspace.phase === "RUNNING";
  const { data, error } = useRequest<string>(`${workspacePath(workspace.id)}/logs?tail=400`, workspace.phase, isRunning ? FOLLOW_MS : 0);
  const lines = useRef<HTMLPreElement>(null);
  const follows = useRef(true);
  useLayoutEffect(() => {
    const shown = lines.current;
    if (shown && follows.current) shown.scrollTop = shown.scrollHeight;
  }, [data]);
  return (
    <>
      <pre
        ref={lines}
        class="log"
        tabIndex={0}
        role="log"
        aria-label={`Log of ${workspace.name}`}
        aria-live="off"
        onScroll={(event) => {
          const shown = event.currentTarget;
          follows.current = shown.scrollHeight - shown.scrollTop - shown.clientHeight < 24;
        }}
      >
        {data || (error ? error : data === null ? "…" : "The log is empty.")}
      </pre>
      <p class="dim">{isRunning ? "Updates every 3 seconds." : "From the last run."}</p>
    </>
  );
}
