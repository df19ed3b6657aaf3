// The account of the signed-in user: sessions, API tokens and password.

import { useState } from "preact/hooks";
import { request } from "../api-client.ts";
import { browser } from "../user-agent.ts";
import { useRequest, usePendingAction, useNow, useTitle } from "../hooks.ts";
import { showSignIn } from "../session.ts";
import { Badge, Button, Card, Choice, Copyable, TextField, Placeholder, When, ErrorMessage } from "../parts/controls.tsx";
import { Dialog } from "../parts/Dialog.tsx";
import type { Me, Scope, Session, Token } from "../api-types.ts";
import { SCOPE_LABEL } from "../labels.ts";

export function Account({ me }: { me: Me }) {
  useTitle("Account");
  const now = useNow();
  const [changes, setChanges] = useState(0);
  return (
    <main class="page narrow">
      <header class="page-head">
        <div>
          <h1>{me.username}</h1>
          <p class="subtitle">{me.is_admin ? "Administrator" : "User"}</p>
        </div>
      </header>
      <Sessions key={`sessions ${changes}`} now={now} />
      <Tokens key={`tokens ${changes}`} me={me} now={now} />
      <Password me={me} onChanged={() => setChanges(changes + 1)} />
    </main>
  );
}

function Sessions({ now }: { now: number }) {
  const { data, error, reload } = useRequest<{ items: Session[] }>("/sessions");
  const pending = usePendingAction();
  const end = (one: Session) =>
    pending.run(one.id, async () => {
      await request("DELETE", `/sessions/${one.id}`);
      if (one.is_current) showSignIn("");
      else reload();
    });
  return (
    <Card title="Sessions">
      {!data && (error ? <p class="dim">{error}</p> : <Placeholder lines={2} />)}
      <ul class="lines">
        {data?.items.map((one) => (
          <li key={one.id}>
            <span>
              {browser(one.user_agent)} {one.is_current && <Badge kind="good">this session</Badge>}
              <small class="block">
                {one.came_from || "unknown address"}, started <When at={one.created_at} now={now} />
              </small>
            </span>
            <span class="dim">
              {one.last_used_at ? (
                <>
                  used <When at={one.last_used_at} now={now} />
                </>
              ) : (
                "not used yet"
              )}
            </span>
            <Button
              busy={pending.busy === one.id}
              label={one.is_current ? "Sign out of this session" : `End the session in ${browser(one.user_agent)}`}
              onClick={() => void end(one)}
            >
              {one.is_current ? "Sign out" : "End"}
            </Button>
          </li>
        ))}
      </ul>
      <ErrorMessage onClose={pending.clear}>{pending.error}</ErrorMessage>
    </Card>
  );
}

function Tokens({ me, now }: { me: Me; now: number }) {
  const { data, error, reload } = useRequest<{ items: Token[] }>("/tokens");
  const [making, setMaking] = useState(false);
  const [made, setMade] = useState<(Token & { token: string }) | null>(null);
  const pending = usePendingAction();
  const revoke = (one: Token) =>
    pending.run(one.id, async () => {
      await request("DELETE", `/tokens/${one.id}`);
      reload();
    });
  return (
    <Card
      title="API tokens"
      aside={
        <Button weight="quiet" icon="plus" onClick={() => setMaking(true)}>
          New API token
        </Button>
      }
    >
      {!data && (error ? <p class="dim">{error}</p> : <Placeholder lines={2} />)}
      {data?.items.length === 0 && (
        <p class="dim">You have no API tokens. A program uses an API token to act as you, within the scopes and the time that you choose.</p>
      )}
      <ul class="lines">
        {data?.items.map((one) => (
          <li key={one.id}>
            <span>
              {one.label}
              <span class="badges">
                {one.scopes.map((scope) => (
                  <Badge key={scope}>{scope}</Badge>
                ))}
              </span>
              <small class="block">
                created <When at={one.created_at} now={now} />,{" "}
                {one.expires_at ? (
                  <>
                    expires <When at={one.expires_at} now={now} future />
                  </>
                ) : (
                  "does not expire"
                )}
              </small>
            </span>
            <span class="dim">
              {one.last_used_at ? (
                <>
                  used <When at={one.last_used_at} now={now} />
                </>
              ) : (
                "not used yet"
              )}
            </span>
            <Button busy={pending.busy === one.id} label={`Revoke ${one.label}`} onClick={() => void revoke(one)}>
              Revoke
            </Button>
          </li>
        ))}
      </ul>
      <ErrorMessage onClose={pending.clear}>{pending.error}</ErrorMessage>
      {making && (
        <NewToken
          me={me}
          onClose={() => setMaking(false)}
          onMade={(one) => {
            setMaking(false);
            setMade(one);
            reload();
          }}
        />
      )}
      {made && (
        <Dialog title={`API token “${made.label}”`} cancel="Done" onClose={() => setMade(null)}>
          <p>Copy the token now. It is not shown again. A program that has it can act as you.</p>
          <Copyable text={made.token} label="the API token" secret />
          <p class="dim">
            Send it as <code>Authorization: Bearer …</code>, or set it as <code>TORPOR_TOKEN</code> for the command line.
          </p>
        </Dialog>
      )}
    </Card>
  );
}

const LIFETIMES = [
  ["86400", "1 day"],
  ["604800", "7 days"],
  ["2592000", "30 days"],
  ["31536000", "1 year"],
  ["", "never"],
] as const;

interface NewTokenProps {
  me: Me;
  onClose: () => void;
  onMade: (made: Token & { token: string }) => void;
}

function NewToken({ me, onClose, onMade }: NewTokenProps) {
  const [label, setLabel] = useState("");
  const [scopes, setScopes] = useState<ReadonlySet<Scope>>(new Set<Scope>(["read", "use"]));
  const [lifetime, setLifetime] = useState<string>("2592000");
  const pending = usePendingAction();
  const make = (): Promise<boolean> =>
    pending.run("make", async () => {
      onMade(await request("POST", "/tokens", { label, scopes: [...scopes], expires_in: lifetime ? Number(lifetime) : null }));
    });
  const toggle = (scope: Scope): void => {
    const next = new Set(scopes);
    if (!next.delete(scope)) next.add(scope);
    setScopes(next);
  };
  const offered = (Object.keys(SCOPE_LABEL) as Scope[]).filter((scope) => scope !== "admin" || me.is_admin);
  return (
    <Dialog
      title="New API token"
      confirm="Create"
      busy={pending.busy !== ""}
      error={pending.error}
      onConfirm={() => void make()}
      onClose={onClose}
    >
      <TextField
        label="Label"
        value={label}
        onValue={setLabel}
        required
        maxLength={100}
        autocomplete="off"
        placeholder="nightly build"
      />
      <fieldset>
        <legend>Scopes</legend>
        {offered.map((scope) => (
          <label class="check" key={scope}>
            <input type="checkbox" checked={scopes.has(scope)} onChange={() => toggle(scope)} />
            <span>
              <strong>{scope}</strong> <small>{SCOPE_LABEL[scope]}</small>
            </span>
          </label>
        ))}
      </fieldset>
      <Choice label="Expires after" value={lifetime} onValue={setLifetime} options={LIFETIMES} />
    </Dialog>
  );
}

function Password({ me, onChanged }: { me: Me; onChanged: () => void }) {
  const [old, setOld] = useState("");
  const [next, setNext] = useState("");
  const [endsTokens, setEndsTokens] = useState(false);
  const [done, setDone] = useState("");
  const pending = usePendingAction();
  const change = async (event: Event): Promise<void> => {
    event.preventDefault();
    setDone("");
    const wanted = { new: next, end_tokens: endsTokens, ...(me.has_password && { old }) };
    if (await pending.run("password", () => request("POST", "/me/password", wanted))) {
      setOld("");
      setNext("");
      setEndsTokens(false);
      setDone(`Password changed. Your other sessions have ended${endsTokens ? ", and your API tokens are revoked" : ""}.`);
      onChanged();
    }
  };
  return (
    <Card title="Password">
      <form class="inline-form" onSubmit={(event) => void change(event)}>
        <input
          type="text"
          class="aside"
          autocomplete="username"
          value={me.username}
          readOnly
          tabIndex={-1}
          aria-hidden="true"
        />
        {me.has_password && (
          <TextField label="Old password" secret value={old} onValue={setOld} required autocomplete="current-password" />
        )}
        <TextField
          label="New password"
          secret
          value={next}
          onValue={setNext}
          required
          autocomplete="new-password"
          hint="Your other sessions end when you change the password."
        />
        <label class="check">
          <input type="checkbox" checked={endsTokens} onChange={(event) => setEndsTokens(event.currentTarget.checked)} />
          <span>
            Revoke my API tokens <small>recommended if another person knew your password</small>
          </span>
        </label>
        <div class="actions">
          <Button type="submit" weight="strong" busy={pending.busy !== ""}>
            {me.has_password ? "Change password" : "Set password"}
          </Button>
        </div>
      </form>
      {done && (
        <p class="good" role="status">
          {done}
        </p>
      )}
      <ErrorMessage onClose={pending.clear}>{pending.error}</ErrorMessage>
    </Card>
  );
}
