// The users of the installation, for administrators.

import { useEffect, useState } from "preact/hooks";
import { request, requestAll } from "../api-client.ts";
import { usePendingAction, useNow, useTitle } from "../hooks.ts";
import { Badge, Button, TextField, Placeholder, When, ErrorMessage } from "../parts/controls.tsx";
import { Dialog } from "../parts/Dialog.tsx";
import type { Me, User } from "../api-types.ts";

export function Users({ me }: { me: Me }) {
  useTitle("Users");
  const now = useNow();
  const [users, setUsers] = useState<User[] | null>(null);
  const [dialog, setDialog] = useState<"new" | User | null>(null);
  const pending = usePendingAction();
  const load = () => pending.run("load", async () => setUsers(await requestAll<User>("/users?limit=1000")));
  useEffect(() => void load(), []);
  const signOut = (one: User) => pending.run(one.id, () => request("POST", `/users/${one.id}/sign-out`));
  return (
    <main class="page">
      <header class="page-head">
        <div>
          <h1>Users</h1>
          <p class="subtitle">{users ? `${users.length} ${users.length === 1 ? "user" : "users"}` : "\u00a0"}</p>
        </div>
        <Button icon="plus" weight="main" onClick={() => setDialog("new")}>
          New user
        </Button>
      </header>
      <ErrorMessage onClose={pending.clear}>{pending.error}</ErrorMessage>
      {users === null ? (
        <Placeholder />
      ) : (
        <ul class="rows users">
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
                <p class="row-status">
                  <span class="dim">
                    created <When at={one.created_at} now={now} />
                  </span>
                  <span class="dim">
                    {one.max_running === null ? "default limit" : `at most ${one.max_running} running`}
                  </span>
                </p>
              </div>
              <div class="actions">
                <Button label={`Change ${one.username}`} onClick={() => setDialog(one)}>
                  Change
                </Button>
                <Button
                  weight="quiet"
                  busy={pending.busy === one.id}
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
      {dialog && (
        <UserDialog
          user={dialog === "new" ? null : dialog}
          isMe={dialog !== "new" && dialog.id === me.id}
          onClose={() => setDialog(null)}
          onDone={() => {
            setDialog(null);
            void load();
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
  const pending = usePendingAction();
  const limit = most.trim() === "" ? null : Number(most);
  const save = (): Promise<boolean> =>
    pending.run("save", async () => {
      if (user === null)
        await request("POST", "/users", { username, password: password || null, is_admin: isAdmin, max_running: limit });
      else {
        const wanted: Record<string, unknown> = {};
        if (isAdmin !== user.is_admin) wanted["is_admin"] = isAdmin;
        if (isActive !== user.is_active) wanted["is_active"] = isActive;
        if (limit !== user.max_running) wanted["max_running"] = limit;
        if (password) wanted["password"] = password;
        await request("PATCH", `/users/${user.id}`, wanted);
      }
      onDone();
    });
  return (
    <Dialog
      title={user ? `Change ${user.username}` : "New user"}
      confirm={user ? "Save" : "Create"}
      busy={pending.busy !== ""}
      error={pending.error}
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
            ? "Leave empty to keep the password. A new password ends all sessions and API tokens of this user."
            : "Leave empty if the user signs in with single sign-on."
        }
      />
      <TextField
        label="Limit of running workspaces"
        value={most}
        onValue={setMost}
        inputMode="numeric"
        pattern="[0-9]*"
        autocomplete="off"
        hint="Leave empty for the default."
      />
      <label class="check">
        <input type="checkbox" checked={isAdmin} disabled={isMe} onChange={(event) => setAdmin(event.currentTarget.checked)} />
        <span>
          Administrator <small>can view and manage all workspaces and users</small>
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
            Active <small>if you deactivate a user, all their sessions and API tokens end</small>
          </span>
        </label>
      )}
    </Dialog>
  );
}
