// Start the page and show the current route.

import { render } from "preact";
import type { Me } from "./api-types.ts";
import { currentRoute, Link } from "./navigation.tsx";
import { useObservable } from "./observable.ts";
import { Account } from "./pages/Account.tsx";
import { Activity } from "./pages/Activity.tsx";
import { Shell } from "./pages/Shell.tsx";
import { SignIn } from "./pages/SignIn.tsx";
import { System } from "./pages/System.tsx";
import { Users } from "./pages/Users.tsx";
import { WorkspacePage } from "./pages/WorkspacePage.tsx";
import { Workspaces } from "./pages/Workspaces.tsx";
import { Frame } from "./parts/Frame.tsx";
import { StatusIcon } from "./parts/StatusIcon.tsx";
import type { Route } from "./routes.ts";
import { begin, connection, signInState } from "./session.ts";
import "./style.css";

function App() {
  const user = useObservable(signInState);
  const route = useObservable(currentRoute);
  switch (user.state) {
    case "unknown":
      return <Loading />;
    case "out":
      return <SignIn why={user.why} />;
    case "in":
      return (
        <Frame me={user.me}>
          <RoutePage route={route} me={user.me} />
        </Frame>
      );
  }
}

function RoutePage({ route, me }: { route: Route; me: Me }) {
  switch (route.page) {
    case "workspaces":
      return <Workspaces me={me} />;
    case "workspace":
      return <WorkspacePage key={route.name} me={me} name={route.name} />;
    case "shell":
      return <Shell key={route.name} me={me} name={route.name} />;
    case "activity":
      return <Activity me={me} />;
    case "account":
      return <Account me={me} />;
    case "system":
      return me.is_admin ? <System /> : <NotFound />;
    case "users":
      return me.is_admin ? <Users me={me} /> : <NotFound />;
    case "not-found":
      return <NotFound />;
  }
}

/** Shown until the first response arrives. */
function Loading() {
  const is = useObservable(connection);
  return (
    <main class="loading">
      <img src="/page/logo.svg" alt="" width="72" height="72" />
      <p role="status">{is === "reconnecting" ? "Torpor does not respond. This page retries automatically." : ""}</p>
    </main>
  );
}

function NotFound() {
  return (
    <main class="page">
      <section class="empty">
        <StatusIcon phase="PENDING" size={72} />
        <h1>Page not found</h1>
        <p>
          <Link to={{ page: "workspaces" }}>All workspaces</Link>
        </p>
      </section>
    </main>
  );
}

const root = document.getElementById("app");
if (root) render(<App />, root);
void begin();
