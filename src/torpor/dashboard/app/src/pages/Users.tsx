// Who may come in at all?

import { useEffect, useState } from "preact/hooks";
import { ask, askForAll } from "../api-client.ts";
import { useDoing, useNow, useTitle } from "../hooks.ts";
import { Badge, Button, TextField, Waiting, When, Wrong } from "../parts/controls.tsx";
import { Dialog } from "../parts/Dialog.tsx";
import type { Me, User } from "../api-types.ts";

export function Users({ me }: { me: Me }) {
  useTitle("Users");
  const now = useNow();
  const [users, setUsers] = useState<User[] | null>(null);
  const [asking, setAsking] = useState<"new" | User | null>(null);
  const doing = useDoing();
  const look = () => doing.run("look", async () => setUsers(await askForAll<User>("/users?limit=1000")));
  useEffect(() => void look(), []);
  const signOut = (one: User) => doing.run(one.id, () => ask("POST", `/users/${one.id}/sign-out`));
  return (
    <main class="page">
      <header class="page-head">
        <div>
          <h1>Users</h1>
          <p class="room">{users ? `${users.length} ${users.length === 1 ? "person" : "people"}` : "\u00a0"}</p>
        </div>
        <Button icon="plus" weight="main" onClick={() => setAsking("new")}>
          New user
        </Button>
      </header>
      <Wrong onClose={doing.clear}>{doing.wrong}</Wrong>
      {users === null ? (
        <Waiting />
      ) : (
        <ul class="rows people">
          {users.map((one) => (
            <li class="row" key={one.id} data-user={one.username} data-off={!one.is_active}>
              <span class="face" aria-hidden="true">
                {one.username.slice(0, 1)}
              </span>
              <div class="row-what">
                <h2>
                  {one.username}
                  {one.is_admin && <Badge kind="good">administrator</Badge>}
                  {!one.is_active && <Badge kind="bad">deactivated</Badge>}
                  {one.is_from_provider && <Badge>single sign-on</Badge>}
                  {one.id === me.id && <Badge>you</Badge>}
                </h2>
                <p class="row-says">
                  <span class="dim">
                    since <When at={one.created_at} now={now} />
                  </span>
                  <span class="dim">
                    {one.max_running === null ? "runs as many as everybody" : `runs at most ${one.max_running}`}
                  </span>
                </p>
              </div>
              <div class="actions">
                <Button label={`Change ${one.username}`} onClick={() => setAsking(one)}>
                  Change
                </Button>
                <Button
                  weight="quiet"
                  busy={doing.busy === one.id}
                  label={`Sign ${one.username} out everywhere`}
                  onClick={() => void signOut(one)}
                >
                  Sign out everywhere
                </Button>
              </div>
            </li>
          ))}
        </ul>
      )}
      {asking && (
        <UserDialog
          user={asking === "new" ? null : asking}
          isMe={asking !== "new" && asking.id === me.id}
          onClose={() => setAsking(null)}
          onDone={() => {
            setAsking(null);
            void look();
          }}
        />
      )}
    </main>
  );
}

interface UserDialogProps {
  user: User | null;
  isMe: boolean;
  onClose: () => void;
  onDone: () => void;
}

function UserDialog({ user, isMe, onClose, onDone }: UserDialogProps) {
  const [username, setUsername] = useState(user?.username ?? "");
  const [password, setPassword] = useState("");
  const [isAdmin, setAdmin] = useState(user?.is_admin ?? false);
  const [isActive, setActive] = useState(user?.is_active ?? true);
  const [most, setMost] = useState(user?.max_running?.toString() ?? "");
  const doing = useDoing();
  const limit = most.trim() === "" ? null : Number(most);
  const save = (): Promise<boolean> =>
    doing.run("save", async () => {
      if (user === null)
        await ask("POST", "/users", { username, password: password || null, is_admin: isAdmin, max_running: limit });
      else {
        const wanted: Record<string, unknown> = {};
        if (isAdmin !== user.is_admin) wanted["is_admin"] = isAdmin;
        if (isActive !== user.is_active) wanted["is_active"] = isActive;
        if (limit !== user.max_running) wanted["max_running"] = limit;
        if (password) wanted["password"] = password;
        await ask("PATCH", `/users/${user.id}`, wanted);
      }
      onDone();
    });
  return (
    <Dialog
      title={user ? `Change ${user.username}` : "New user"}
      confirm={user ? "Save" : "Create"}
      busy={doing.busy !== ""}
      wrong={doing.wrong}
      onConfirm={() => void save()}
      onClose={onClose}
    >
      {!user && <TextField label="Username" value={username} onValue={setUsername} required autocomplete="off" />}
      <TextField
        label={user ? "New password" : "Password"}
        secret
        value={password}
        onValue={setPassword}
        autocomplete="new-password"
        hint={
          user
            ? "Left empty, it stays. A new one ends every session and token of this user."
            : "Left empty, only a provider can let them in."
        }
      />
      <TextField
        label="May run at once"
        value={most}
        onValue={setMost}
        inputMode="numeric"
        pattern="[0-9]*"
        autocomplete="off"
        hint="A number; left empty, as everybody."
      />
      <label class="check">
        <input type="checkbox" checked={isAdmin} disabled={isMe} onChange={(event) => setAdmin(event.currentTarget.checked)} />
        <span>
          Administrator <small>sees every workspace, and this page</small>
        </span>
      </label>
      {user && (
        <label class="check">
          <input
            type="checkbox"
            checked={isActive}
            disabled={isMe}
            onChange={(event) => setActive(event.currentTarget.checked)}
          />
          <span>
            May come in <small>without this, every session and token ends at once</small>
          </span>
        </label>
      )}
    </Dialog>
  );
}
