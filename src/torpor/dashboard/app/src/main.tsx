// Where does the page begin?

import { render } from "preact";
import { useKept } from "./observable.ts";
import { begin, connection, signed } from "./session.ts";
import "./style.css";
import { here, Link } from "./navigation.tsx";
import { Account } from "./pages/Account.tsx";
import { Activity } from "./pages/Activity.tsx";
import { Shell } from "./pages/Shell.tsx";
import { SignIn } from "./pages/SignIn.tsx";
import { System } from "./pages/System.tsx";
import { Users } from "./pages/Users.tsx";
import { WorkspacePage } from "./pages/WorkspacePage.tsx";
import { Workspaces } from "./pages/Workspaces.tsx";
import { Frame } from "./parts/Frame.tsx";
import { Moon } from "./parts/StatusIcon.tsx";
import type { Place } from "./routes.ts";
import type { Me } from "./api-types.ts";

function App() {
  const who = useKept(signed);
  const at = useKept(here);
  switch (who.state) {
    case "unknown":
      return <Beginning />;
    case "out":
      return <SignIn why={who.why} />;
    case "in":
      return (
        <Frame me={who.me}>
          <At place={at} me={who.me} />
        </Frame>
      );
  }
}

function At({ place, me }: { place: Place; me: Me }) {
  switch (place.page) {
    case "workspaces":
      return <Workspaces me={me} />;
    case "workspace":
      return <WorkspacePage key={place.name} me={me} name={place.name} />;
    case "shell":
      return <Shell key={place.name} me={me} name={place.name} />;
    case "activity":
      return <Activity me={me} />;
    case "account":
      return <Account me={me} />;
    case "system":
      return me.is_admin ? <System /> : <Nowhere />;
    case "users":
      return me.is_admin ? <Users me={me} /> : <Nowhere />;
    case "nowhere":
      return <Nowhere />;
  }
}

/** Until the first answer: nothing, and after a while that there is none. */
function Beginning() {
  const is = useKept(connection);
  return (
    <main class="beginning">
      <img src="/page/logo.svg" alt="" width="72" height="72" />
      <p role="status">{is === "reconnecting" ? "Torpor does not answer just now. This page tries again by itself." : ""}</p>
    </main>
  );
}

function Nowhere() {
  return (
    <main class="page">
      <section class="empty">
        <Moon phase="PENDING" size={72} />
        <h1>There is no such page</h1>
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
