// The settings of a workspace.

import { useState } from "preact/hooks";
import { may } from "../../actions.ts";
import { request, workspacePath } from "../../api-client.ts";
import { usePendingAction } from "../../hooks.ts";
import { show } from "../../session.ts";
import { go } from "../../navigation.tsx";
import { Button, Card, TextField, When } from "../../parts/controls.tsx";
import { Dialog } from "../../parts/Dialog.tsx";
import { parseDuration, ttl } from "../../time.ts";
import type { Me, Workspace } from "../../api-types.ts";

export function Settings({ workspace, me, now }: { workspace: Workspace; me: Me; now: number }) {
  const [changing, setChanging] = useState(false);
  return (
    <Card
      title="Settings"
      aside={
        may(workspace, me, "CHANGE") && workspace.deleted_at === null ? (
          <Button weight="quiet" onClick={() => setChanging(true)}>
            Change
          </Button>
        ) : null
      }
    >
      <dl class="facts">
        <dt>Template</dt>
        <dd>{workspace.template}</dd>
        {workspace.image && (
          <>
            <dt>Image</dt>
            <dd>
              <code>{workspace.image}</code>
            </dd>
          </>
        )}
        <dt>Owner</dt>
        <dd>{workspace.owner}</dd>
        {workspace.command.length > 0 && (
          <>
            <dt>Command</dt>
            <dd>
              <code>{workspace.command.join(" ")}</code>
            </dd>
          </>
        )}
        <dt>Stops</dt>
        <dd>after {ttl(workspace.standby_ttl)} without use</dd>
        <dt>Archived</dt>
        <dd>{ttl(workspace.archive_ttl)} after it stops</dd>
        <dt>Last used</dt>
        <dd>
          <When at={workspace.last_access_at} now={now} />
        </dd>
        <dt>Created</dt>
        <dd>
          <When at={workspace.created_at} now={now} />
        </dd>
      </dl>
      {changing && <Change workspace={workspace} onClose={() => setChanging(false)} />}
    </Card>
  );
}

function Change({ workspace, onClose }: { workspace: Workspace; onClose: () => void }) {
  const [name, setName] = useState(workspace.name);
  const [standby, setStandby] = useState(ttl(workspace.standby_ttl));
  const [archive, setArchive] = useState(ttl(workspace.archive_ttl));
  const pending = usePendingAction();
  const change = (): Promise<boolean> =>
    pending.run("change", async () => {
      const wanted: Record<string, unknown> = {};
      if (seconds(standby) !== workspace.standby_ttl) wanted["standby_ttl"] = seconds(standby);
      if (seconds(archive) !== workspace.archive_ttl) wanted["archive_ttl"] = seconds(archive);
      if (name !== workspace.name) wanted["name"] = name;
      const changed = await request<Workspace>("PATCH", workspacePath(workspace.id), wanted);
      show(changed);
      onClose();
      if (changed.name !== workspace.name) go({ page: "workspace", name: changed.name });
    });
  return (
    <Dialog
      title={`Change ${workspace.name}`}
      confirm="Save"
      busy={pending.busy !== ""}
      error={pending.error}
      onConfirm={() => void change()}
      onClose={onClose}
    >
      <TextField
        label="Name"
        hint="The address changes too."
        value={name}
        onValue={setName}
        required
        maxLength={40}
        autocomplete="off"
      />
      <TextField
        label="Stop after"
        hint="Time without use, for example 5 min or 1 h."
        value={standby}
        onValue={setStandby}
        required
        autocomplete="off"
      />
      <TextField
        label="Archive after"
        hint="Time after the stop, for example 24 h or 7 d."
        value={archive}
        onValue={setArchive}
        required
        autocomplete="off"
      />
    </Dialog>
  );
}

function seconds(text: string): number {
  const found = parseDuration(text);
  if (found === null) throw new Error(`“${text}” is not a duration. Use a number and s, min, h or d, for example 5 min.`);
  return found;
}
