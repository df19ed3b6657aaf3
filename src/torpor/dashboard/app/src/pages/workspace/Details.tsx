// Conditions and operations of a workspace, collapsed until you open them.

import { useState } from "preact/hooks";
import { workspacePath } from "../../api-client.ts";
import type { Explanation as ExplanationData, Operation, Workspace } from "../../api-types.ts";
import { type RequestState, useRequest } from "../../hooks.ts";
import { Conditions } from "./Conditions.tsx";
import { Explanation } from "./Explanation.tsx";
import { History } from "./History.tsx";

interface Props {
  workspace: Workspace;
  explanation: RequestState<ExplanationData>;
  /** When this changes, the operations are requested again. */
  requestKey: string;
  now: number;
}

export function Details(props: Props) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details class="details" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        Details <small>conditions, generation and operations</small>
      </summary>
      {isOpen && <Content {...props} />}
    </details>
  );
}

function Content({ workspace, explanation, requestKey, now }: Props) {
  const path = `${workspacePath(workspace.id)}/operations?limit=100`;
  const operations = useRequest<{ items: Operation[] }>(path, requestKey);
  return (
    <div class="columns">
      <div class="column">
        <Explanation data={explanation.data} error={explanation.error} />
        <History operations={operations.data?.items ?? null} error={operations.error} phase={workspace.phase} now={now} />
      </div>
      <div class="column">
        <Conditions workspace={workspace} now={now} />
      </div>
    </div>
  );
}
