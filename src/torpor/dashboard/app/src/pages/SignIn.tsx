// The sign-in page.

import { useState } from "preact/hooks";
import { useRequest, usePendingAction, useTitle } from "../hooks.ts";
import { signIn } from "../session.ts";
import { Button, TextField, ErrorMessage } from "../parts/controls.tsx";
import { SignInBackground } from "../parts/SignInBackground.tsx";
import { nextPath } from "../routes.ts";
import type { SignInWays } from "../api-types.ts";

export function SignIn({ why }: { why: string }) {
  useTitle("Sign in");
  const { data: ways } = useRequest<SignInWays>("/sign-in");
  const [username, setUsername] = useState("");
  const [password, setPassword] = useState("");
  const [reason, setReason] = useState(why);
  const pending = usePendingAction();
  const next = nextPath(location.search, location.origin) ?? location.pathname;
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setReason("");
    if (!(await pending.run("sign-in", () => signIn(username, password)))) setPassword("");
  };
  const byPassword = ways?.password ?? true;
  return (
    <main class="sign-in">
      <SignInBackground />
      <section class="sign-in-card" aria-labelledby="sign-in-title">
        <img src="/page/logo.svg" alt="" width="64" height="64" />
        <h1 id="sign-in-title">Sign in</h1>
        <p class="quiet">Development workspaces that sleep when you do not use them.</p>
        <ErrorMessage>{pending.error || reason}</ErrorMessage>
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
            <Button type="submit" weight="main" busy={pending.busy !== ""}>
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
          On a local installation, <code>torpor up</code> writes the username and password to <code>credentials.json</code> in its
          data directory.
        </p>
      </section>
    </main>
  );
}
