// What did its program write?

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { of } from "../../api-client.ts";
import { useAsked } from "../../hooks.ts";
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
        <p class="dim">What its program writes to standard output and standard error.</p>
      )}
    </Card>
  );
}

function Lines({ workspace }: { workspace: Workspace }) {
  const isAwake = workspace.phase === "RUNNING";
  const { said, wrong } = useAsked<string>(`${of(workspace.id)}/logs?tail=400`, workspace.phase, isAwake ? FOLLOW_MS : 0);
  const lines = useRef<HTMLPreElement>(null);
  const follows = useRef(true);
  useLayoutEffect(() => {
    const shown = lines.current;
    if (shown && follows.current) shown.scrollTop = shown.scrollHeight;
  }, [said]);
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
        {said || (wrong ? wrong : said === null ? "…" : "It wrote nothing.")}
      </pre>
      <p class="dim">{isAwake ? "Looked at every few seconds." : "As of the last time it ran."}</p>
    </>
  );
}
