// How is the API asked, and what can come of it?

const API = "/api/v1";
const PATIENCE_MS = 20_000;

/** The API understood and said no. */
export class Problem extends Error {
  readonly status: number;
  readonly code: string;
  readonly body: Record<string, unknown>;

  constructor(status: number, body: Record<string, unknown>) {
    super(String(body["detail"] || body["title"] || `The server answered ${status}.`));
    this.status = status;
    this.code = String(body["code"] ?? "");
    this.body = body;
  }
}

/** No answer at all: nothing is wrong with what was asked. */
export class Away extends Error {
  constructor() {
    super("Torpor does not answer just now. Try that again in a moment.");
  }
}

export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

let onSignedOut: () => void = () => {};

/** Who is to be told when a session turns out to be over. */
export function whenSignedOut(tell: () => void): void {
  onSignedOut = tell;
}

export interface Besides {
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

async function fetched(method: Method, path: string, body: unknown, { signal, headers: more }: Besides): Promise<Response> {
  const headers: Record<string, string> = { Accept: "application/json", ...more };
  const init: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  const patience = AbortSignal.timeout(PATIENCE_MS);
  init.signal = signal ? AbortSignal.any([signal, patience]) : patience;
  return fetch(path, init);
}

/** What the answer says; Problem or Away when there is none. `path` without /api/v1, unless it begins with another word. */
export async function ask<Said>(method: Method, path: string, body?: unknown, besides: Besides = {}): Promise<Said> {
  const where = path.startsWith("/health") ? path : API + path;
  let answer: Response;
  let text: string;
  try {
    answer = await fetched(method, where, body, besides);
    text = await answer.text();
  } catch (error) {
    if (besides.signal?.aborted) throw error;
    throw new Away();
  }
  const kind = answer.headers.get("Content-Type") ?? "";
  // Readiness is told with 503, in its own words.
  if (where.startsWith("/health") && kind.includes("json")) return JSON.parse(text) as Said;
  // The front answers by itself, without JSON, when there is nobody behind it.
  if (answer.status >= 502 && answer.status <= 504 && !kind.includes("json")) throw new Away();
  if (answer.ok) return (kind.includes("json") ? JSON.parse(text) : text) as Said;
  let said: Record<string, unknown> = {};
  try {
    said = JSON.parse(text) as Record<string, unknown>;
  } catch {
    // Half an answer is none.
  }
  const problem = new Problem(answer.status, said);
  if (problem.status === 401 && problem.code === "unauthorized") onSignedOut();
  throw problem;
}

/** Every page of a list. */
export async function askForAll<Item>(path: string): Promise<Item[]> {
  const items: Item[] = [];
  let cursor: string | null = null;
  do {
    const more: string = cursor ? `${path.includes("?") ? "&" : "?"}cursor=${encodeURIComponent(cursor)}` : "";
    const page: { items: Item[]; next_cursor: string | null } = await ask("GET", path + more);
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor);
  return items;
}

export function of(name: string): string {
  return `/workspaces/${encodeURIComponent(name)}`;
}
