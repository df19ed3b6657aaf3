// Who keeps it awake, and why?

import { useState } from "preact/hooks";
import { may } from "../../actions.ts";
import { ask, of } from "../../api-client.ts";
import { useAsked, useDoing } from "../../hooks.ts";
import { Button, Card, Choice, TextField, When, Wrong } from "../../parts/controls.tsx";
import type { Lease, Me, Workspace } from "../../api-types.ts";

const LONG = [
  ["1800", "30 min"],
  ["3600", "1 h"],
  ["14400", "4 h"],
  ["28800", "8 h"],
  ["86400", "1 day"],
  ["604800", "7 days"],
] as const;

export function Holds({ workspace, me, now }: { workspace: Workspace; me: Me; now: number }) {
  const path = `${of(workspace.id)}/leases`;
  const { said, again } = useAsked<{ items: Lease[] }>(path, `${workspace.phase} ${workspace.sleeps_at}`, 30_000);
  const [reason, setReason] = useState("");
  const [seconds, setSeconds] = useState<string>("3600");
  const [adding, setAdding] = useState(false);
  const doing = useDoing();
  const hold = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (!(await doing.run("hold", () => ask("POST", path, { reason, seconds: Number(seconds) })))) return;
    setReason("");
    setAdding(false);
    again();
  };
  const end = (lease: Lease) => doing.run(lease.id, () => ask("DELETE", `${path}/${lease.id}`)).then(again);
  const mayHold = may(workspace, me, "HOLD");
  return (
    <Card
      title="Holds"
      aside={
        mayHold && !adding ? (
          <Button weight="quiet" icon="plus" onClick={() => setAdding(true)}>
            Hold awake
          </Button>
        ) : null
      }
    >
      {said?.items.length === 0 && !adding && <p class="dim">Nothing holds it awake: it sleeps when nobody uses it.</p>}
      <ul class="lines">
        {said?.items.map((one) => (
          <li key={one.id}>
            <span>
              {one.reason} <small>by {one.created_by}</small>
            </span>
            <span class="dim">
              ends <When at={one.expires_at} now={now} future />
            </span>
            {(may(workspace, me, "WISH") || one.created_by === me.username) && (
              <Button
                weight="quiet"
                icon="close"
                busy={doing.busy === one.id}
                label={`End the hold: ${one.reason}`}
                onClick={() => void end(one)}
              />
            )}
          </li>
        ))}
      </ul>
      {adding && (
        <form class="inline-form" onSubmit={(event) => void hold(event)}>
          <TextField
            label="Why"
            value={reason}
            onValue={setReason}
            required
            maxLength={200}
            placeholder="a long training run"
            focus
          />
          <Choice label="For how long" value={seconds} onValue={setSeconds} options={LONG} />
          <div class="actions">
            <Button type="submit" weight="strong" busy={doing.busy === "hold"}>
              Hold
            </Button>
            <Button weight="quiet" onClick={() => setAdding(false)}>
              Cancel
            </Button>
          </div>
        </form>
      )}
      <Wrong onClose={doing.clear}>{doing.wrong}</Wrong>
    </Card>
  );
}
