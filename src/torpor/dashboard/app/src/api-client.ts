// Send requests to the API and report errors.

const API = "/api/v1";
const TIMEOUT_MS = 20_000;

/** The API refused a request. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;
  readonly body: Record<string, unknown>;

  constructor(status: number, body: Record<string, unknown>) {
    super(String(body["detail"] || body["title"] || `The server responded with status ${status}.`));
    this.status = status;
    this.code = String(body["code"] ?? "");
    this.body = body;
  }
}

/** The server sent no response. The request itself may be correct. */
export class Unreachable extends Error {
  constructor() {
    super("Torpor does not respond. Try again in a moment.");
  }
}

export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

let onSignedOut: () => void = () => {};

/** Set the function that is called when a response shows that the session has ended. */
export function handleSignOut(handler: () => void): void {
  onSignedOut = handler;
}

export interface RequestOptions {
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

async function send(method: Method, path: string, body: unknown, { signal, headers: more }: RequestOptions): Promise<Response> {
  const headers: Record<string, string> = { Accept: "application/json", ...more };
  const init: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  init.signal = signal ? AbortSignal.any([signal, timeout]) : timeout;
  return fetch(path, init);
}

/** The body of the response; throws ApiError or Unreachable. `path` is relative to /api/v1, except for /health. */
export async function request<Data>(
  method: Method,
  path: string,
  body?: unknown,
  options: RequestOptions = {},
): Promise<Data> {
  const target = path.startsWith("/health") ? path : API + path;
  let response: Response;
  let text: string;
  try {
    response = await send(method, target, body, options);
    text = await response.text();
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Unreachable();
  }
  const contentType = response.headers.get("Content-Type") ?? "";
  const isJson = contentType.includes("json");
  // The health routes send their JSON with status 503 too.
  if (target.startsWith("/health") && isJson) return JSON.parse(text) as Data;
  // The proxy responds without JSON when the API is not reachable.
  if (response.status >= 502 && response.status <= 504 && !isJson) throw new Unreachable();
  if (response.ok) return (isJson ? JSON.parse(text) : text) as Data;
  let problem: Record<string, unknown> = {};
  try {
    problem = JSON.parse(text) as Record<string, unknown>;
  } catch {
    // An incomplete body counts as an empty one.
  }
  const error = new ApiError(response.status, problem);
  if (error.status === 401 && error.code === "unauthorized") onSignedOut();
  throw error;
}

/** The items of all pages of a list. */
export async function requestAll<Item>(path: string): Promise<Item[]> {
  const items: Item[] = [];
  let cursor: string | null = null;
  do {
    const more: string = cursor ? `${path.includes("?") ? "&" : "?"}cursor=${encodeURIComponent(cursor)}` : "";
    const page: { items: Item[]; next_cursor: string | null } = await request("GET", path + more);
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor);
  return items;
}

export function workspacePath(name: string): string {
  return `/workspaces/${encodeURIComponent(name)}`;
}
