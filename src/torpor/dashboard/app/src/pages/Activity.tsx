// Who did what, when, and from where?

import { useEffect, useRef, useState } from "preact/hooks";
import { ask } from "../api-client.ts";
import { browser } from "../user-agent.ts";
import { useNow, useTitle, words } from "../hooks.ts";
import { Link } from "../navigation.tsx";
import { Badge, Button, Waiting, When, Wrong } from "../parts/controls.tsx";
import type { AuditEntry, Me, Page } from "../api-types.ts";
import { DEED_SAYS } from "../labels.ts";

export function Activity({ me }: { me: Me }) {
  useTitle("Activity");
  const now = useNow();
  const [busy, setBusy] = useState(false);
  const [wrong, setWrong] = useState("");
  const [items, setItems] = useState<AuditEntry[] | null>(null);
  const [cursor, setCursor] = useState<string | null>(null);
  const [username, setUsername] = useState("");
  const [workspace, setWorkspace] = useState("");
  const turn = useRef(0);
  // Whoever looks again while an answer is on its way wants the later one.
  const look = async (after: string | null): Promise<void> => {
    turn.current += 1;
    const mine = turn.current;
    setBusy(true);
    try {
      const query = new URLSearchParams({ limit: "50" });
      if (after) query.set("cursor", after);
      if (username.trim()) query.set("username", username.trim());
      if (workspace.trim()) query.set("workspace", workspace.trim());
      const page = await ask<Page<AuditEntry>>("GET", `/audit?${query}`);
      if (turn.current !== mine) return;
      setItems((before) => [...(after ? (before ?? []) : []), ...page.items]);
      setCursor(page.next_cursor);
      setWrong("");
    } catch (error) {
      if (turn.current === mine) setWrong(words(error));
    } finally {
      if (turn.current === mine) setBusy(false);
    }
  };
  useEffect(() => void look(null), []);
  return (
    <main class="page">
      <header class="page-head">
        <div>
          <h1>Activity</h1>
          <p class="room">{me.is_admin ? "What everybody did here" : "What you did, and what was done to your workspaces"}</p>
        </div>
        <Button icon="again" busy={busy} onClick={() => void look(null)}>
          Look again
        </Button>
      </header>
      <form
        class="filters"
        role="search"
        onSubmit={(event) => {
          event.preventDefault();
          void look(null);
        }}
      >
        {me.is_admin && (
          <input
            type="search"
            aria-label="Of this user"
            placeholder="User"
            value={username}
            onInput={(event) => setUsername(event.currentTarget.value)}
          />
        )}
        <input
          type="search"
          aria-label="To this workspace"
          placeholder="Workspace"
          value={workspace}
          onInput={(event) => setWorkspace(event.currentTarget.value)}
        />
        <Button type="submit">Find</Button>
      </form>
      <Wrong>{wrong}</Wrong>
      {items === null && !wrong && <Waiting lines={6} />}
      {items?.length === 0 && <p class="nothing">Nothing yet.</p>}
      <ol class="audit">
        {items?.map((one) => (
          <li key={one.id} data-outcome={one.outcome}>
            <span class="dim when">
              <When at={one.at} now={now} />
            </span>
            <span>
              <strong>{one.username}</strong> {DEED_SAYS[one.action] ?? one.action}
              {one.workspace && (
                <>
                  {" "}
                  <Link to={{ page: "workspace", name: one.workspace }}>{one.workspace}</Link>
                </>
              )}
              {details(one) && <small> {details(one)}</small>} {one.outcome !== "ok" && <Badge kind="bad">{one.outcome}</Badge>}
            </span>
            <span class="dim from">
              {one.how === "TOKEN"
                ? `token ${one.token_label}`
                : one.how === "SESSION" || one.how === "DOOR"
                  ? "browser"
                  : one.how.toLowerCase()}
              {one.came_from && ` · ${one.came_from}`}
            </span>
          </li>
        ))}
      </ol>
      {cursor && (
        <p class="more">
          <Button busy={busy} onClick={() => void look(cursor)}>
            Older
          </Button>
        </p>
      )}
    </main>
  );
}

function details({ detail }: AuditEntry): string {
  return Object.entries(detail)
    .filter(([, value]) => value !== null && value !== "" && value !== false)
    .map(([name, value]) =>
      name in SAYS_ITSELF ? (SAYS_ITSELF[name]?.(String(value)) ?? "") : `${name.replaceAll("_", " ")} ${plainly(value)}`,
    )
    .join(", ");
}

/** Details whose name would say nothing more. */
const SAYS_ITSELF: Record<string, (value: string) => string> = {
  desired_state: (value) => value,
  user_agent: browser,
  username: (value) => value,
};

function plainly(value: unknown): string {
  if (Array.isArray(value)) return value.join(" ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
