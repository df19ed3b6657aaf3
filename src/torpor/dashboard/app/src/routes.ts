// Which page is at a path?

export type Place =
  | { page: "workspaces" }
  | { page: "workspace"; name: string }
  | { page: "shell"; name: string }
  | { page: "activity" }
  | { page: "system" }
  | { page: "users" }
  | { page: "account" }
  | { page: "nowhere" };

const PLAIN: Record<string, Place> = {
  "/": { page: "workspaces" },
  "/workspaces": { page: "workspaces" },
  "/activity": { page: "activity" },
  "/system": { page: "system" },
  "/users": { page: "users" },
  "/account": { page: "account" },
};

export function place(path: string): Place {
  const trimmed = path.length > 1 ? path.replace(/\/$/, "") : path;
  const plain = PLAIN[trimmed];
  if (plain) return plain;
  const [, name, rest] = /^\/workspaces\/([^/]+)(\/shell)?$/.exec(trimmed) ?? [];
  if (!name) return { page: "nowhere" };
  try {
    return { page: rest ? "shell" : "workspace", name: decodeURIComponent(name) };
  } catch {
    return { page: "nowhere" };
  }
}

export function path(to: Place): string {
  switch (to.page) {
    case "workspace":
      return `/workspaces/${encodeURIComponent(to.name)}`;
    case "shell":
      return `/workspaces/${encodeURIComponent(to.name)}/shell`;
    case "workspaces":
    case "nowhere":
      return "/";
    default:
      return `/${to.page}`;
  }
}

/** Where somebody wanted to go before they had to sign in: a path of this very origin, or null. */
export function wanted(search: string, origin: string): string | null {
  const next = new URLSearchParams(search).get("next");
  // Two slashes, or a backslash that browsers take for one, would lead to another host.
  if (!next || !next.startsWith("/") || /^\/[/\\]/.test(next) || /[\u0000-\u001f]/.test(next)) return null;
  try {
    return new URL(next, origin).origin === origin ? next : null;
  } catch {
    return null;
  }
}
