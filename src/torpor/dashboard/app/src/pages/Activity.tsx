// The audit log.

import { useEffect, useRef, useState } from "preact/hooks";
import { request } from "../api-client.ts";
import { browser } from "../user-agent.ts";
import { useNow, useTitle, errorMessage } from "../hooks.ts";
import { Link } from "../navigation.tsx";
import { Badge, Button, Placeholder, When, ErrorMessage } from "../parts/controls.tsx";
import type { AuditEntry, Me, Page, Wish } from "../api-types.ts";
import { AUDIT_LABEL, WISH_LABEL } from "../labels.ts";

export function Activity({ me }: { me: Me }) {
  useTitle("Activity");
  const now = useNow();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const [items, setItems] = useState<AuditEntry[] | null>(null);
  const [cursor, setCursor] = useState<string | null>(null);
  const [username, setUsername] = useState("");
  const [workspace, setWorkspace] = useState("");
  const turn = useRef(0);
  // A response is used only if no later request was sent.
  const load = async (after: string | null): Promise<void> => {
    turn.current += 1;
    const mine = turn.current;
    setBusy(true);
    try {
      const query = new URLSearchParams({ limit: "50" });
      if (after) query.set("cursor", after);
      if (username.trim()) query.set("username", username.trim());
      if (workspace.trim()) query.set("workspace", workspace.trim());
      const page = await request<Page<AuditEntry>>("GET", `/audit?${query}`);
      if (turn.current !== mine) return;
      setItems((before) => [...(after ? (before ?? []) : []), ...page.items]);
      setCursor(page.next_cursor);
      setError("");
    } catch (error) {
      if (turn.current === mine) setError(errorMessage(error));
    } finally {
      if (turn.current === mine) setBusy(false);
    }
  };
  useEffect(() => void load(null), []);
  return (
    <main class="page">
      <header class="page-head">
        <div>
          <h1>Activity</h1>
          <p class="subtitle">{me.is_admin ? "Actions of all users" : "Your actions, and actions of others on your workspaces"}</p>
        </div>
        <Button icon="again" busy={busy} onClick={() => void load(null)}>
          Refresh
        </Button>
      </header>
      <form
        class="filters"
        role="search"
        onSubmit={(event) => {
          event.preventDefault();
          void load(null);
        }}
      >
        {me.is_admin && (
          <input
            type="search"
            aria-label="Filter by user"
            placeholder="User"
            value={username}
            onInput={(event) => setUsername(event.currentTarget.value)}
          />
        )}
        <input
          type="search"
          aria-label="Filter by workspace"
          placeholder="Workspace"
          value={workspace}
          onInput={(event) => setWorkspace(event.currentTarget.value)}
        />
        <Button type="submit">Filter</Button>
      </form>
      <ErrorMessage>{error}</ErrorMessage>
      {items === null && !error && <Placeholder lines={6} />}
      {items?.length === 0 && <p class="nothing">No entries.</p>}
      <ol class="audit">
        {items?.map((one) => (
          <li key={one.id} data-outcome={one.outcome}>
            <span class="dim when">
              <When at={one.at} now={now} />
            </span>
            <span>
              <strong>{one.username}</strong> {AUDIT_LABEL[one.action] ?? one.action}
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
                ? `API token ${one.token_label}`
                : one.how === "SESSION" || one.how === "DOOR"
                  ? "browser"
                  : one.how === "SYSTEM"
                    ? "system"
                    : "not signed in"}
              {one.came_from && ` · ${one.came_from}`}
            </span>
          </li>
        ))}
      </ol>
      {cursor && (
        <p class="more">
          <Button busy={busy} onClick={() => void load(cursor)}>
            Show older entries
          </Button>
        </p>
      )}
    </main>
  );
}

function details({ action, detail }: AuditEntry): string {
  return Object.entries(detail)
    .filter(([, value]) => value !== null && value !== "" && value !== false)
    .map(([name, value]) =>
      name in DETAIL_TEXT ? (DETAIL_TEXT[name]?.(String(value), action) ?? "") : `${name.replaceAll("_", " ")} ${textOf(value)}`,
    )
    .join(", ");
}

/** Details with their own words. */
const DETAIL_TEXT: Record<string, (value: string, action: string) => string> = {
  desired_state: (value, action) => `${action === "workspace.wish" ? "to" : "requested state"} ${WISH_LABEL[value as Wish] ?? value}`,
  user_agent: browser,
  username: (value) => value,
};

function textOf(value: unknown): string {
  if (Array.isArray(value)) return value.join(" ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
