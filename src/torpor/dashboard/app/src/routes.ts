// Map paths to pages and back.

export type Route =
  | { page: "workspaces" }
  | { page: "workspace"; name: string }
  | { page: "shell"; name: string }
  | { page: "activity" }
  | { page: "system" }
  | { page: "users" }
  | { page: "account" }
  | { page: "not-found" };

const FIXED: Record<string, Route> = {
  "/": { page: "workspaces" },
  "/workspaces": { page: "workspaces" },
  "/activity": { page: "activity" },
  "/system": { page: "system" },
  "/users": { page: "users" },
  "/account": { page: "account" },
};

export function routeOf(path: string): Route {
  const trimmed = path.length > 1 ? path.replace(/\/$/, "") : path;
  const fixed = FIXED[trimmed];
  if (fixed) return fixed;
  const [, name, rest] = /^\/workspaces\/([^/]+)(\/shell)?$/.exec(trimmed) ?? [];
  if (!name) return { page: "not-found" };
  try {
    return { page: rest ? "shell" : "workspace", name: decodeURIComponent(name) };
  } catch {
    return { page: "not-found" };
  }
}

export function pathOf(to: Route): string {
  switch (to.page) {
    case "workspace":
      return `/workspaces/${encodeURIComponent(to.name)}`;
    case "shell":
      return `/workspaces/${encodeURIComponent(to.name)}/shell`;
    case "workspaces":
    case "not-found":
      return "/";
    default:
      return `/${to.page}`;
  }
}

/** The page to open after the sign-in: a path of this origin, or null. */
export function nextPath(search: string, origin: string): string | null {
  const next = new URLSearchParams(search).get("next");
  // Two slashes lead to another host; browsers read a backslash as a slash.
  if (!next || !next.startsWith("/") || /^\/[/\\]/.test(next) || /[\u0000-\u001f]/.test(next)) return null;
  try {
    return new URL(next, origin).origin === origin ? next : null;
  } catch {
    return null;
  }
}
