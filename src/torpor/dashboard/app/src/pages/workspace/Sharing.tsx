// With whom is it shared, and what may they do?

import { useState } from "preact/hooks";
import { may } from "../../actions.ts";
import { ask, of } from "../../api-client.ts";
import { useDoing } from "../../hooks.ts";
import { show } from "../../session.ts";
import { Button, Card, Choice, TextField, Wrong } from "../../parts/controls.tsx";
import type { Me, Role, Workspace } from "../../api-types.ts";

const ROLES: readonly (readonly [Role, string])[] = [
  ["use", "use: open it, run commands"],
  ["manage", "manage: also start, stop, change"],
];

export function Sharing({ workspace, me }: { workspace: Workspace; me: Me }) {
  const doing = useDoing();
  const [username, setUsername] = useState("");
  const [role, setRole] = useState<Role>("use");
  const [adding, setAdding] = useState(false);
  const mayShare = may(workspace, me, "SHARE");
  const shares = Object.entries(workspace.shares);
  const path = (user: string): string => `${of(workspace.id)}/shares/${encodeURIComponent(user)}`;
  const again = async (): Promise<void> => show(await ask<Workspace>("GET", of(workspace.id)));
  const grant = (user: string, as: Role): Promise<boolean> =>
    doing.run(`grant ${user}`, async () => {
      await ask("PUT", path(user), { role: as });
      await again();
    });
  const revoke = (user: string): Promise<boolean> =>
    doing.run(`revoke ${user}`, async () => {
      await ask("DELETE", path(user));
      await again();
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
        <p class="dim">{mayShare ? "Only you, and administrators, see it." : `It is ${workspace.owner}’s.`}</p>
      )}
      <ul class="lines">
        {shares.map(([user, granted]) => (
          <li key={user}>
            <span>{user}</span>
            {mayShare ? (
              <>
                <Choice
                  bare
                  label={`What ${user} may do`}
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
                  busy={doing.busy === `revoke ${user}`}
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
          <Choice label="They may" value={role} onValue={setRole} options={ROLES} />
          <div class="actions">
            <Button type="submit" weight="strong" busy={doing.busy !== ""}>
              Share
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
