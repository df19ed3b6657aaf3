// Who am I here, where am I signed in, and which programs act for me?

import { useState } from "preact/hooks";
import { ask } from "../api-client.ts";
import { browser } from "../user-agent.ts";
import { useAsked, useDoing, useNow, useTitle } from "../hooks.ts";
import { out } from "../session.ts";
import { Badge, Button, Card, Choice, Copyable, TextField, Waiting, When, Wrong } from "../parts/controls.tsx";
import { Dialog } from "../parts/Dialog.tsx";
import type { Me, Scope, Session, Token } from "../api-types.ts";
import { SCOPE_SAYS } from "../labels.ts";

export function Account({ me }: { me: Me }) {
  useTitle("Account");
  const now = useNow();
  const [changes, setChanges] = useState(0);
  return (
    <main class="page narrow">
      <header class="page-head">
        <div>
          <h1>{me.username}</h1>
          <p class="room">{me.is_admin ? "Administrator" : "Member"}</p>
        </div>
      </header>
      <Sessions key={`sessions ${changes}`} now={now} />
      <Tokens key={`tokens ${changes}`} me={me} now={now} />
      <Password me={me} onChanged={() => setChanges(changes + 1)} />
    </main>
  );
}

function Sessions({ now }: { now: number }) {
  const { said, wrong, again } = useAsked<{ items: Session[] }>("/sessions");
  const doing = useDoing();
  const end = (one: Session) =>
    doing.run(one.id, async () => {
      await ask("DELETE", `/sessions/${one.id}`);
      if (one.is_current) out("");
      else again();
    });
  return (
    <Card title="Signed in at">
      {!said && (wrong ? <p class="dim">{wrong}</p> : <Waiting lines={2} />)}
      <ul class="lines">
        {said?.items.map((one) => (
          <li key={one.id}>
            <span>
              {browser(one.user_agent)} {one.is_current && <Badge kind="good">this one</Badge>}
              <small class="block">
                {one.came_from || "unknown address"}, since <When at={one.created_at} now={now} />
              </small>
            </span>
            <span class="dim">{one.last_used_at ? <When at={one.last_used_at} now={now} /> : "not used since"}</span>
            <Button
              busy={doing.busy === one.id}
              label={one.is_current ? "Sign out here" : `End the session of ${browser(one.user_agent)}`}
              onClick={() => void end(one)}
            >
              {one.is_current ? "Sign out" : "End"}
            </Button>
          </li>
        ))}
      </ul>
      <Wrong onClose={doing.clear}>{doing.wrong}</Wrong>
    </Card>
  );
}

function Tokens({ me, now }: { me: Me; now: number }) {
  const { said, wrong, again } = useAsked<{ items: Token[] }>("/tokens");
  const [making, setMaking] = useState(false);
  const [made, setMade] = useState<(Token & { token: string }) | null>(null);
  const doing = useDoing();
  const revoke = (one: Token) =>
    doing.run(one.id, async () => {
      await ask("DELETE", `/tokens/${one.id}`);
      again();
    });
  return (
    <Card
      title="Tokens"
      aside={
        <Button weight="quiet" icon="plus" onClick={() => setMaking(true)}>
          New token
        </Button>
      }
    >
      {!said && (wrong ? <p class="dim">{wrong}</p> : <Waiting lines={2} />)}
      {said?.items.length === 0 && (
        <p class="dim">None. A token lets a program act for you, for what you choose and no longer than you say.</p>
      )}
      <ul class="lines">
        {said?.items.map((one) => (
          <li key={one.id}>
            <span>
              {one.label}{" "}
              {one.scopes.map((scope) => (
                <Badge key={scope}>{scope}</Badge>
              ))}
              <small class="block">
                made <When at={one.created_at} now={now} />,{" "}
                {one.expires_at ? (
                  <>
                    ends <When at={one.expires_at} now={now} future />
                  </>
                ) : (
                  "lives until it is revoked"
                )}
              </small>
            </span>
            <span class="dim">{one.last_used_at ? <When at={one.last_used_at} now={now} /> : "never used"}</span>
            <Button busy={doing.busy === one.id} label={`Revoke ${one.label}`} onClick={() => void revoke(one)}>
              Revoke
            </Button>
          </li>
        ))}
      </ul>
      <Wrong onClose={doing.clear}>{doing.wrong}</Wrong>
      {making && (
        <NewToken
          me={me}
          onClose={() => setMaking(false)}
          onMade={(one) => {
            setMaking(false);
            setMade(one);
            again();
          }}
        />
      )}
      {made && (
        <Dialog title={`The token ${made.label}`} cancel="I have kept it" onClose={() => setMade(null)}>
          <p>This is the only time it is shown. Whoever has it can act for you.</p>
          <Copyable text={made.token} label="the token" secret />
          <p class="dim">
            Use it as <code>Authorization: Bearer …</code>, or as <code>TORPOR_TOKEN</code> of the command line.
          </p>
        </Dialog>
      )}
    </Card>
  );
}

const LIVES = [
  ["86400", "1 day"],
  ["604800", "7 days"],
  ["2592000", "30 days"],
  ["31536000", "a year"],
  ["", "until it is revoked"],
] as const;

interface NewTokenProps {
  me: Me;
  onClose: () => void;
  onMade: (made: Token & { token: string }) => void;
}

function NewToken({ me, onClose, onMade }: NewTokenProps) {
  const [label, setLabel] = useState("");
  const [scopes, setScopes] = useState<ReadonlySet<Scope>>(new Set<Scope>(["read", "use"]));
  const [lives, setLives] = useState<string>("2592000");
  const doing = useDoing();
  const make = (): Promise<boolean> =>
    doing.run("make", async () => {
      onMade(await ask("POST", "/tokens", { label, scopes: [...scopes], expires_in: lives ? Number(lives) : null }));
    });
  const toggle = (scope: Scope): void => {
    const next = new Set(scopes);
    if (!next.delete(scope)) next.add(scope);
    setScopes(next);
  };
  const offered = (Object.keys(SCOPE_SAYS) as Scope[]).filter((scope) => scope !== "admin" || me.is_admin);
  return (
    <Dialog
      title="New token"
      confirm="Make it"
      busy={doing.busy !== ""}
      wrong={doing.wrong}
      onConfirm={() => void make()}
      onClose={onClose}
    >
      <TextField
        label="What it is for"
        value={label}
        onValue={setLabel}
        required
        maxLength={100}
        autocomplete="off"
        placeholder="nightly build"
      />
      <fieldset>
        <legend>It may</legend>
        {offered.map((scope) => (
          <label class="check" key={scope}>
            <input type="checkbox" checked={scopes.has(scope)} onChange={() => toggle(scope)} />
            <span>
              <strong>{scope}</strong> <small>{SCOPE_SAYS[scope]}</small>
            </span>
          </label>
        ))}
      </fieldset>
      <Choice label="It lives" value={lives} onValue={setLives} options={LIVES} />
    </Dialog>
  );
}

function Password({ me, onChanged }: { me: Me; onChanged: () => void }) {
  const [old, setOld] = useState("");
  const [next, setNext] = useState("");
  const [endsTokens, setEndsTokens] = useState(false);
  const [done, setDone] = useState("");
  const doing = useDoing();
  const change = async (event: Event): Promise<void> => {
    event.preventDefault();
    setDone("");
    const wanted = { new: next, end_tokens: endsTokens, ...(me.has_password && { old }) };
    if (await doing.run("password", () => ask("POST", "/me/password", wanted))) {
      setOld("");
      setNext("");
      setEndsTokens(false);
      setDone(`Changed. Everywhere else you are signed out${endsTokens ? ", and no token of yours is good any more" : ""}.`);
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
          hint="Your other sessions end with the change."
        />
        <label class="check">
          <input type="checkbox" checked={endsTokens} onChange={(event) => setEndsTokens(event.currentTarget.checked)} />
          <span>
            End my tokens as well <small>somebody who knew the password may have made one</small>
          </span>
        </label>
        <div class="actions">
          <Button type="submit" weight="strong" busy={doing.busy !== ""}>
            {me.has_password ? "Change the password" : "Set a password"}
          </Button>
        </div>
      </form>
      {done && (
        <p class="good" role="status">
          {done}
        </p>
      )}
      <Wrong onClose={doing.clear}>{doing.wrong}</Wrong>
    </Card>
  );
}
