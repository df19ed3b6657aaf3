// Share a workspace with other users.

import { useState } from "preact/hooks";
import { may } from "../../actions.ts";
import { request, workspacePath } from "../../api-client.ts";
import { usePendingAction } from "../../hooks.ts";
import { show } from "../../session.ts";
import { Button, Card, Choice, TextField, ErrorMessage } from "../../parts/controls.tsx";
import type { Me, Role, Workspace } from "../../api-types.ts";

const ROLES: readonly (readonly [Role, string])[] = [
  ["use", "use: open, run commands"],
  ["manage", "manage: also start, stop, change"],
];

export function Sharing({ workspace, me }: { workspace: Workspace; me: Me }) {
  const pending = usePendingAction();
  const [username, setUsername] = useState("");
  const [role, setRole] = useState<Role>("use");
  const [adding, setAdding] = useState(false);
  const mayShare = may(workspace, me, "SHARE");
  const shares = Object.entries(workspace.shares);
  const path = (user: string): string => `${workspacePath(workspace.id)}/shares/${encodeURIComponent(user)}`;
  const reload = async (): Promise<void> => show(await request<Workspace>("GET", workspacePath(workspace.id)));
  const grant = (user: string, as: Role): Promise<boolean> =>
    pending.run(`grant ${user}`, async () => {
      await request("PUT", path(user), { role: as });
      await reload();
    });
  const revoke = (user: string): Promise<boolean> =>
    pending.run(`revoke ${user}`, async () => {
      await request("DELETE", path(user));
      await reload();
    });
  const add = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (!(await grant(username.trim(), role))) return;
    setUsername("");
    setAdding(false);
  };
  return (
    <Card
      title="Sharing"
      aside={
        mayShare && !adding ? (
          <Button weight="quiet" icon="plus" onClick={() => setAdding(true)}>
            Share
          </Button>
        ) : null
      }
    >
      {shares.length === 0 && !adding && (
        <p class="dim">{mayShare ? "Only you and administrators see this workspace." : `${workspace.owner} owns this workspace.`}</p>
      )}
      <ul class="lines">
        {shares.map(([user, granted]) => (
          <li key={user}>
            <span>{user}</span>
            {mayShare ? (
              <>
                <Choice
                  bare
                  label={`Role of ${user}`}
                  value={granted}
                  onValue={(as) => void grant(user, as)}
                  options={[
                    ["use", "use"],
                    ["manage", "manage"],
                  ]}
                />
                <Button
                  weight="quiet"
                  icon="close"
                  label={`Stop sharing with ${user}`}
                  busy={pending.busy === `revoke ${user}`}
                  onClick={() => void revoke(user)}
                />
              </>
            ) : (
              <span class="dim">{granted}</span>
            )}
          </li>
        ))}
      </ul>
      {adding && (
        <form class="inline-form" onSubmit={(event) => void add(event)}>
          <TextField label="Username" value={username} onValue={setUsername} required autocomplete="off" focus />
          <Choice label="Role" value={role} onValue={setRole} options={ROLES} />
          <div class="actions">
            <Button type="submit" weight="strong" busy={pending.busy !== ""}>
              Share
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
