// Who is signed in, and what do they see, kept right while things happen?

import { ask, askForAll, Problem, whenSignedOut } from "./api-client.ts";
import { type Connection, follow } from "./change-feed.ts";
import { asked, gaveUp, listed, shown, tell, UNKNOWN, type House } from "./workspace-list.ts";
import { kept } from "./observable.ts";
import { wanted } from "./routes.ts";
import type { Limits, Me, Told, Workspace } from "./api-types.ts";

export type Signed = { state: "unknown" } | { state: "out"; why: string } | { state: "in"; me: Me };

export const signed = kept<Signed>({ state: "unknown" });
export const connection = kept<Connection>("connecting");
export const house = kept<House>(UNKNOWN);
export const limits = kept<Limits | null>(null);

let stop: () => void = () => {};
let listing: Promise<void> | null = null;
let isListWanted = false;
let limitsTimer = 0;
const LIMITS_AGAIN_MS = 150;

/** Asks who is there; the first thing that the page does, and again after signing in. */
export async function begin(): Promise<void> {
  try {
    const me = await ask<Me>("GET", "/me");
    signed.set({ state: "in", me });
    const next = wanted(location.search, location.origin);
    if (next !== null) leaveFor(next);
    else live();
  } catch (error) {
    if (error instanceof Problem && (error.status === 401 || error.status === 403)) out("");
    else {
      connection.set("reconnecting");
      setTimeout(() => void begin(), 1500);
    }
  }
}

// Where somebody came from may send them here again: then they stay.
const RETURNED = "went to next at";

function leaveFor(next: string): void {
  const before = Number(sessionStorage.getItem(RETURNED) ?? 0);
  if (Date.now() - before < 5000) {
    history.replaceState(null, "", "/");
    live();
    return;
  }
  sessionStorage.setItem(RETURNED, String(Date.now()));
  location.assign(next);
}

function live(): void {
  stop();
  const end = follow({
    told: heard,
    begun: () => void list(),
    connection(now) {
      if (now === "signed-out") out("Your session has ended. Sign in again.");
      else connection.set(now);
    },
  });
  stop = () => {
    end();
    stop = () => {};
  };
}

export function out(why: string): void {
  stop();
  house.set(UNKNOWN);
  limits.set(null);
  if (signed.get().state !== "out") signed.set({ state: "out", why });
}

whenSignedOut(() => {
  if (signed.get().state === "in") out("Your session has ended. Sign in again.");
});

export async function signIn(username: string, password: string): Promise<void> {
  await ask("POST", "/login", { username, password });
  await begin();
}

export async function signOut(): Promise<void> {
  await ask("POST", "/logout");
  history.replaceState(null, "", "/");
  out("");
}

function heard(told: Told): void {
  if (told.event === "reset") void list();
  if (!told.workspace) return;
  house.set(tell(house.get(), told));
  askLimitsSoon();
}

/** What an answer to something that was done here says, without waiting for the stream. */
export function show(workspace: Workspace): void {
  house.set(shown(house.get(), workspace));
  askLimitsSoon();
}

/** Reads the list anew; several who ask at once share one reading, and one more follows for those who came too late. */
export function list(): Promise<void> {
  isListWanted = true;
  listing ??= (async () => {
    try {
      while (isListWanted && signed.get().state === "in") {
        isListWanted = false;
        house.set(asked(house.get()));
        const items = await askForAll<Workspace>("/workspaces?limit=500");
        if (signed.get().state === "in") house.set(listed(house.get(), items));
      }
      askLimitsSoon();
    } catch {
      house.set(gaveUp(house.get()));
      // The stream is broken as well, then, or soon will be: it asks again when it is back.
      setTimeout(() => signed.get().state === "in" && house.get().workspaces === null && void list(), 2000);
    } finally {
      listing = null;
    }
  })();
  return listing;
}

/** Once for all that happens within a moment; a house that is never quiet is asked about all the same. */
export function askLimitsSoon(): void {
  limitsTimer ||= window.setTimeout(async () => {
    limitsTimer = 0;
    if (signed.get().state !== "in") return;
    try {
      limits.set(await ask<Limits>("GET", "/limits"));
    } catch {
      // A number in a corner is worth no message.
    }
  }, limits.get() === null ? 0 : LIMITS_AGAIN_MS);
}
