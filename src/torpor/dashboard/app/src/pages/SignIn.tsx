// How does somebody come in?

import { useState } from "preact/hooks";
import { useAsked, useDoing, useTitle } from "../hooks.ts";
import { signIn } from "../session.ts";
import { Button, TextField, Wrong } from "../parts/controls.tsx";
import { Night } from "../parts/SignInBackground.tsx";
import { wanted } from "../routes.ts";
import type { SignInWays } from "../api-types.ts";

export function SignIn({ why }: { why: string }) {
  useTitle("Sign in");
  const { said: ways } = useAsked<SignInWays>("/sign-in");
  const [username, setUsername] = useState("");
  const [password, setPassword] = useState("");
  const [told, setTold] = useState(why);
  const doing = useDoing();
  const next = wanted(location.search, location.origin) ?? location.pathname;
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setTold("");
    if (!(await doing.run("sign-in", () => signIn(username, password)))) setPassword("");
  };
  const byPassword = ways?.password ?? true;
  return (
    <main class="door">
      <Night />
      <section class="door-card" aria-labelledby="door-title">
        <img src="/page/logo.svg" alt="" width="64" height="64" />
        <h1 id="door-title">Sign in</h1>
        <p class="quiet">Workspaces that sleep when their people do.</p>
        <Wrong>{doing.wrong || told}</Wrong>
        {byPassword && (
          <form onSubmit={(event) => void submit(event)}>
            <TextField label="Username" value={username} onValue={setUsername} autocomplete="username" required focus />
            <TextField
              label="Password"
              secret
              value={password}
              onValue={setPassword}
              autocomplete="current-password"
              required
            />
            <Button type="submit" weight="main" busy={doing.busy !== ""}>
              Sign in
            </Button>
          </form>
        )}
        {ways?.oidc && (
          <>
            {byPassword && <p class="or">or</p>}
            <a class="button plain" href={`/oidc/begin?next=${encodeURIComponent(next)}`}>
              Continue with {ways.oidc.name}
            </a>
          </>
        )}
        <p class="hint">
          On this machine, <code>torpor up</code> has written username and password to <code>credentials.json</code> in its data
          folder.
        </p>
      </section>
    </main>
  );
}
