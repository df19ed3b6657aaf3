// The observed conditions of a workspace.

import type { Workspace } from "../../api-types.ts";
import { CONDITION_LABEL, WISH_LABEL } from "../../labels.ts";
import { Card, When } from "../../parts/controls.tsx";
import { Icon } from "../../parts/Icon.tsx";

export function Conditions({ workspace, now }: { workspace: Workspace; now: number }) {
  return (
    <Card
      title="Conditions"
      aside={<span class="dim">{workspace.observed_at && <When at={workspace.observed_at} now={now} />}</span>}
    >
      <ul class="conditions">
        {Object.entries(CONDITION_LABEL).map(([name, label]) => {
          const condition = workspace.conditions[name];
          return (
            <li key={name} data-status={condition?.status ?? "False"}>
              <Icon name={condition?.status === "True" ? "check" : "close"} />
              <span>
                {label} <small>{condition?.reason}</small>
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
      <dl class="facts">
        <dt>Requested state</dt>
        <dd>{WISH_LABEL[workspace.desired_state]}</dd>
        <dt>Home</dt>
        <dd>
          generation {workspace.generation}, revision {workspace.revision}
        </dd>
      </dl>
    </Card>
  );
}
