// Keep a workspace awake for a time.

import { useState } from "preact/hooks";
import { may } from "../../actions.ts";
import { request, workspacePath } from "../../api-client.ts";
import { useRequest, usePendingAction } from "../../hooks.ts";
import { Button, Card, Choice, TextField, When, ErrorMessage } from "../../parts/controls.tsx";
import type { Lease, Me, Workspace } from "../../api-types.ts";

const DURATIONS = [
  ["1800", "30 min"],
  ["3600", "1 h"],
  ["14400", "4 h"],
  ["28800", "8 h"],
  ["86400", "1 day"],
  ["604800", "7 days"],
] as const;

export function KeepAwake({ workspace, me, now }: { workspace: Workspace; me: Me; now: number }) {
  const path = `${workspacePath(workspace.id)}/leases`;
  const { data, reload } = useRequest<{ items: Lease[] }>(path, `${workspace.phase} ${workspace.sleeps_at}`, 30_000);
  const [reason, setReason] = useState("");
  const [seconds, setSeconds] = useState<string>("3600");
  const [adding, setAdding] = useState(false);
  const pending = usePendingAction();
  const hold = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (!(await pending.run("hold", () => request("POST", path, { reason, seconds: Number(seconds) })))) return;
    setReason("");
    setAdding(false);
    reload();
  };
  const end = (lease: Lease) => pending.run(lease.id, () => request("DELETE", `${path}/${lease.id}`)).then(reload);
  const mayHold = may(workspace, me, "HOLD");
  return (
    <Card
      title="Keep awake"
      aside={
        mayHold && !adding ? (
          <Button weight="quiet" icon="plus" onClick={() => setAdding(true)}>
            Keep awake
          </Button>
        ) : null
      }
    >
      {data?.items.length === 0 && !adding && <p class="dim">The workspace goes to sleep when it is not in use.</p>}
      <ul class="lines">
        {data?.items.map((one) => (
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
                busy={pending.busy === one.id}
                label={`Stop keeping awake: ${one.reason}`}
                onClick={() => void end(one)}
              />
            )}
          </li>
        ))}
      </ul>
      {adding && (
        <form class="inline-form" onSubmit={(event) => void hold(event)}>
          <TextField
            label="Reason"
            value={reason}
            onValue={setReason}
            required
            maxLength={200}
            placeholder="a long training run"
            focus
          />
          <Choice label="Duration" value={seconds} onValue={setSeconds} options={DURATIONS} />
          <div class="actions">
            <Button type="submit" weight="strong" busy={pending.busy === "hold"}>
              Keep awake
            </Button>
            <Button weight="quiet" onClick={() => setAdding(false)}>
              Cancel
            </Button>
          </div>
        </form>
      )}
      <ErrorMessage onClose={pending.clear}>{pending.error}</ErrorMessage>
    </Card>
  );
}
