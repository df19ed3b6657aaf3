// What is it called, where is it, and when does it fall asleep by itself?

import { useState } from "preact/hooks";
import { may } from "../../actions.ts";
import { ask, of } from "../../api-client.ts";
import { useDoing } from "../../hooks.ts";
import { show } from "../../session.ts";
import { go } from "../../navigation.tsx";
import { Button, Card, Copyable, TextField, When } from "../../parts/controls.tsx";
import { Dialog } from "../../parts/Dialog.tsx";
import { size } from "../../sizes.ts";
import { parseDuration, ttl } from "../../time.ts";
import type { Me, Workspace } from "../../api-types.ts";

export function Times({ workspace, me, now }: { workspace: Workspace; me: Me; now: number }) {
  const [changing, setChanging] = useState(false);
  return (
    <Card
      title="Details"
      aside={
        may(workspace, me, "CHANGE") && workspace.deleted_at === null ? (
          <Button weight="quiet" onClick={() => setChanging(true)}>
            Change
          </Button>
        ) : null
      }
    >
      <dl class="facts">
        <dt>Address</dt>
        <dd>
          <Copyable text={workspace.url} label="its address" />
        </dd>
        <dt>
          <label for="port">A port of it</label>
        </dt>
        <dd>
          <Port workspace={workspace} />
        </dd>
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
        <dt>Sleeps after</dt>
        <dd>{ttl(workspace.standby_ttl)} without use</dd>
        <dt>Archived after</dt>
        <dd>{ttl(workspace.archive_ttl)} asleep</dd>
        <dt>Last used</dt>
        <dd>
          <When at={workspace.last_access_at} now={now} />
        </dd>
        <dt>Home</dt>
        <dd>
          generation {workspace.generation}, opened {workspace.revision} times
        </dd>
        <dt>Disk use</dt>
        <dd data-disk>
          {workspace.disk_bytes === null ? "not measured yet" : size(workspace.disk_bytes)}
          {workspace.disk_measured_at && (
            <>
              , measured <When at={workspace.disk_measured_at} now={now} />
            </>
          )}
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

/** A dev server inside has a host name of its own. */
function Port({ workspace }: { workspace: Workspace }) {
  const [port, setPort] = useState("");
  const number = Number(port);
  const isPort = /^[0-9]+$/.test(port) && number >= 1 && number <= 65535;
  const open = (event: Event): void => {
    event.preventDefault();
    if (!isPort) return;
    const where = new URL(workspace.url);
    where.hostname = `${number}--${where.hostname}`;
    window.open(where, "_blank", "noopener");
  };
  return (
    <form class="port" onSubmit={open}>
      <input
        id="port"
        inputMode="numeric"
        placeholder="5173"
        value={port}
        onInput={(event) => setPort(event.currentTarget.value.trim())}
      />
      <Button type="submit" icon="open" disabled={!isPort}>
        Open
      </Button>
    </form>
  );
}

function Change({ workspace, onClose }: { workspace: Workspace; onClose: () => void }) {
  const [name, setName] = useState(workspace.name);
  const [standby, setStandby] = useState(ttl(workspace.standby_ttl));
  const [archive, setArchive] = useState(ttl(workspace.archive_ttl));
  const doing = useDoing();
  const change = (): Promise<boolean> =>
    doing.run("change", async () => {
      const wanted: Record<string, unknown> = {};
      if (seconds(standby) !== workspace.standby_ttl) wanted["standby_ttl"] = seconds(standby);
      if (seconds(archive) !== workspace.archive_ttl) wanted["archive_ttl"] = seconds(archive);
      if (name !== workspace.name) wanted["name"] = name;
      const changed = await ask<Workspace>("PATCH", of(workspace.id), wanted);
      show(changed);
      onClose();
      if (changed.name !== workspace.name) go({ page: "workspace", name: changed.name });
    });
  return (
    <Dialog
      title={`Change ${workspace.name}`}
      confirm="Save"
      busy={doing.busy !== ""}
      wrong={doing.wrong}
      onConfirm={() => void change()}
      onClose={onClose}
    >
      <TextField
        label="Name"
        hint="Its address changes with it."
        value={name}
        onValue={setName}
        required
        maxLength={40}
        autocomplete="off"
      />
      <TextField
        label="Sleeps after"
        hint="without use, such as 5 min or 1 h"
        value={standby}
        onValue={setStandby}
        required
        autocomplete="off"
      />
      <TextField
        label="Archived after"
        hint="asleep, such as 24 h or 7 d"
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
  if (found === null) throw new Error(`“${text}” is no time: say a number and s, min, h or d.`);
  return found;
}
