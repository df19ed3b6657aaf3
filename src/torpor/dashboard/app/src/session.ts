// The signed-in user and the live data of the page.

import { ApiError, handleSignOut, request, requestAll } from "./api-client.ts";
import type { ChangeEvent, Limits, Me, Workspace } from "./api-types.ts";
import { type Connection, follow } from "./change-feed.ts";
import { observable } from "./observable.ts";
import { nextPath } from "./routes.ts";
import { apply, listed, listFailed, listRequested, UNKNOWN, updated, type WorkspaceList } from "./workspace-list.ts";

export type SignInState = { state: "unknown" } | { state: "out"; why: string } | { state: "in"; me: Me };

export const signInState = observable<SignInState>({ state: "unknown" });
export const connection = observable<Connection>("connecting");
export const workspaceList = observable<WorkspaceList>(UNKNOWN);
export const limits = observable<Limits | null>(null);

const SESSION_ENDED = "Your session has ended. Sign in again.";
const RETRY_MS = 1500;
const LIST_RETRY_MS = 2000;
const LIMITS_DELAY_MS = 150;

let stopFeed: () => void = () => {};
let listing: Promise<void> | null = null;
let isListRequested = false;
let limitsTimer = 0;

const isSignedIn = (): boolean => signInState.get().state === "in";

/** Request the current user: the first request of the page, repeated after a sign-in. */
export async function begin(): Promise<void> {
  try {
    const me = await request<Me>("GET", "/me");
    signInState.set({ state: "in", me });
    const next = nextPath(location.search, location.origin);
    if (next !== null) leaveFor(next);
    else startFeed();
  } catch (error) {
    if (error instanceof ApiError && (error.status === 401 || error.status === 403)) showSignIn("");
    else {
      connection.set("reconnecting");
      setTimeout(() => void begin(), RETRY_MS);
    }
  }
}

const LEFT_AT = "left for next at";
const LOOP_MS = 5000;

/** Go to the requested page; a page that sends the user back within five seconds would cause a loop. */
function leaveFor(next: string): void {
  const before = Number(sessionStorage.getItem(LEFT_AT) ?? 0);
  if (Date.now() - before < LOOP_MS) {
    history.replaceState(null, "", "/");
    startFeed();
    return;
  }
  sessionStorage.setItem(LEFT_AT, String(Date.now()));
  location.assign(next);
}

function startFeed(): void {
  stopFeed();
  const end = follow({
    onEvent,
    onOpen: () => void readList(),
    onConnection(now) {
      if (now === "signed-out") showSignIn(SESSION_ENDED);
      else connection.set(now);
    },
  });
  stopFeed = () => {
    end();
    stopFeed = () => {};
  };
}

/** Show the sign-in page with this message. */
export function showSignIn(why: string): void {
  stopFeed();
  workspaceList.set(UNKNOWN);
  limits.set(null);
  if (signInState.get().state !== "out") signInState.set({ state: "out", why });
}

handleSignOut(() => {
  if (isSignedIn()) showSignIn(SESSION_ENDED);
});

export async function signIn(username: string, password: string): Promise<void> {
  await request("POST", "/login", { username, password });
  await begin();
}

export async function signOut(): Promise<void> {
  await request("POST", "/logout");
  history.replaceState(null, "", "/");
  showSignIn("");
}

function onEvent(event: ChangeEvent): void {
  if (event.event === "reset") void readList();
  if (!event.workspace) return;
  workspaceList.set(apply(workspaceList.get(), event));
  requestLimitsSoon();
}

/** Show the workspace that a response contains, before its event arrives. */
export function show(workspace: Workspace): void {
  workspaceList.set(updated(workspaceList.get(), workspace));
  requestLimitsSoon();
}

/** Read the list. Concurrent calls share one request; calls during a request cause exactly one more. */
export function readList(): Promise<void> {
  isListRequested = true;
  listing ??= (async () => {
    try {
      while (isListRequested && isSignedIn()) {
        isListRequested = false;
        workspaceList.set(listRequested(workspaceList.get()));
        const items = await requestAll<Workspace>("/workspaces?limit=500");
        if (isSignedIn()) workspaceList.set(listed(workspaceList.get(), items));
      }
      requestLimitsSoon();
    } catch {
      workspaceList.set(listFailed(workspaceList.get()));
      // The event stream usually breaks too, and reads the list when it is open again.
      setTimeout(() => isSignedIn() && workspaceList.get().workspaces === null && void readList(), LIST_RETRY_MS);
    } finally {
      listing = null;
    }
  })();
  return listing;
}

/** One request for all changes within LIMITS_DELAY_MS; a later change does not postpone it. */
export function requestLimitsSoon(): void {
  limitsTimer ||= window.setTimeout(async () => {
    limitsTimer = 0;
    if (!isSignedIn()) return;
    try {
      limits.set(await request<Limits>("GET", "/limits"));
    } catch {
      // The old number stays on the page.
    }
  }, limits.get() === null ? 0 : LIMITS_DELAY_MS);
}
