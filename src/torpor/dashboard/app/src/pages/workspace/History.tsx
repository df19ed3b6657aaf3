// The operations of a workspace.

import { useState } from "preact/hooks";
import { Badge, Button, Card, Placeholder, When } from "../../parts/controls.tsx";
import { StatusChart } from "../../parts/StatusChart.tsx";
import { barLength } from "../../status-chart.ts";
import { size } from "../../sizes.ts";
import { duration } from "../../time.ts";
import type { Operation, Phase } from "../../api-types.ts";
import { OPERATION_NAME, OUTCOME_LABEL } from "../../labels.ts";

const SHOWN_AT_FIRST = 8;

interface Props {
  operations: Operation[] | null;
  error: string;
  phase: Phase;
  now: number;
}

export function History({ operations, error, phase, now }: Props) {
  const [all, setAll] = useState(false);
  const longest = Math.max(1, ...(operations ?? []).map((one) => took(one, now)));
  const shown = all ? operations : operations?.slice(0, SHOWN_AT_FIRST);
  return (
    <Card title="Operations">
      {operations === null && (error ? <p class="dim">{error}</p> : <Placeholder lines={5} />)}
      {operations && <StatusChart operations={operations} phase={phase} now={now} />}
      {operations?.length === 0 && <p class="dim">No operations yet.</p>}
      <ol class="history">
        {shown?.map((one) => (
          <li key={`${one.op_id} ${one.attempt} ${one.started_at}`} data-outcome={one.outcome ?? "IN_PROGRESS"}>
            <span class="kind">
              {OPERATION_NAME[one.kind]}
              {one.attempt > 1 && <small> attempt {one.attempt}</small>}
            </span>
            <Bar part={barLength(took(one, now), longest)} />
            <span class="took">{duration(took(one, now))}</span>
            <span class="outcome">
              <Badge kind={one.outcome === "FAILED" ? "bad" : one.outcome === "DONE" ? "good" : ""}>
                {one.outcome ? OUTCOME_LABEL[one.outcome] : "in progress"}
              </Badge>
            </span>
            <span class="dim when">
              <When at={one.started_at} now={now} />
            </span>
            {(one.message || one.done_bytes > 0) && (
              <small class="message">
                {[one.reason, one.message, one.done_bytes > 0 ? size(one.done_bytes) : ""].filter(Boolean).join(" · ")}
              </small>
            )}
          </li>
        ))}
      </ol>
      {(operations?.length ?? 0) > SHOWN_AT_FIRST && (
        <Button weight="quiet" onClick={() => setAll(!all)}>
          {all ? "Show fewer" : `Show all ${operations?.length}`}
        </Button>
      )}
    </Card>
  );
}

function took(operation: Operation, now: number): number {
  return operation.seconds ?? Math.max(0, (now - Date.parse(operation.started_at)) / 1000);
}

function Bar({ part }: { part: number }) {
  return (
    <div class="bar" aria-hidden="true">
      <span style={{ width: `${part * 100}%` }} />
    </div>
  );
}
