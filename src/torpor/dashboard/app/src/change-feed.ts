// Follow the event stream of the API and reconnect when it breaks.
//
// The stream continues where it broke (`Last-Event-ID`). EventSource does the same, but it neither reports why a request was
// refused nor notices a connection that is silently lost.

import { reader } from "./event-stream.ts";
import type { ChangeEvent } from "./api-types.ts";

export type Connection = "connecting" | "live" | "reconnecting" | "signed-out";

export interface Listener {
  onEvent(event: ChangeEvent): void;
  /** The stream is open. Missed events follow; events of workspaces that this user no longer sees do not. */
  onOpen(): void;
  onConnection(now: Connection): void;
}

const RETRY_MS = [250, 500, 1000, 2000, 4000, 8000];
// The server sends a heartbeat every 30 s. A connection that misses two is lost, even if the browser does not report it.
const SILENCE_MS = 70_000;

/** Follow until the returned function is called or the user is signed out. */
export function follow(listener: Listener): () => void {
  const ending = new AbortController();
  let lastId = "";
  let attempts = 0;
  let retryNow: () => void = () => {};

  const listen = async (): Promise<"broken" | "signed-out"> => {
    const silence = new AbortController();
    const headers: Record<string, string> = { Accept: "text/event-stream" };
    if (lastId) headers["Last-Event-ID"] = lastId;
    let timer = setTimeout(() => silence.abort(), SILENCE_MS);
    try {
      const signal = AbortSignal.any([ending.signal, silence.signal]);
      const response = await fetch("/api/v1/events", { headers, credentials: "same-origin", cache: "no-store", signal });
      if (response.status === 401) return "signed-out";
      if (response.status === 422) lastId = "";
      if (!response.ok || !response.body) return "broken";
      attempts = 0;
      listener.onConnection("live");
      listener.onOpen();
      const read = reader();
      const pieces = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await pieces.read();
        if (done) return "broken";
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENCE_MS);
        for (const event of read(value)) {
          listener.onEvent(JSON.parse(event.data) as ChangeEvent);
          if (event.id) lastId = event.id;
        }
      }
    } catch {
      return "broken";
    } finally {
      clearTimeout(timer);
      silence.abort();
    }
  };

  const wait = (ms: number): Promise<void> =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, ms * (0.75 + Math.random() / 2));
      retryNow = () => {
        clearTimeout(timer);
        resolve();
      };
    });

  const run = async (): Promise<void> => {
    listener.onConnection("connecting");
    while (!ending.signal.aborted) {
      const end = await listen();
      if (ending.signal.aborted) return;
      if (end === "signed-out") {
        listener.onConnection("signed-out");
        return;
      }
      listener.onConnection("reconnecting");
      const pause = RETRY_MS[Math.min(attempts, RETRY_MS.length - 1)] ?? 8000;
      attempts += 1;
      await wait(pause);
    }
  };

  const onVisible = (): void => {
    if (!document.hidden) retryNow();
  };
  window.addEventListener("online", onVisible);
  document.addEventListener("visibilitychange", onVisible);
  void run();
  return () => {
    ending.abort();
    retryNow();
    window.removeEventListener("online", onVisible);
    document.removeEventListener("visibilitychange", onVisible);
  };
}
