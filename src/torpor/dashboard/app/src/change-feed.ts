// How does the page hear what happens, and what does it do when it hears nothing?
//
// A stream of events, opened again where it broke (`Last-Event-ID`). EventSource would do the same, but cannot tell why it was
// refused, nor notice that a connection is silently gone.

import { reader } from "./event-stream.ts";
import type { Told } from "./api-types.ts";

export type Connection = "connecting" | "live" | "reconnecting" | "signed-out";

export interface Listener {
  told(told: Told): void;
  /** A stream has begun; what was missed follows, but for what may no longer be seen. */
  begun(): void;
  connection(now: Connection): void;
}

const WAITS_MS = [250, 500, 1000, 2000, 4000, 8000];
// Heartbeats come every 30 s; a connection that misses two is gone, whatever the browser thinks.
const SILENCE_MS = 70_000;

/** Follows until the returned function is called, or until nobody is signed in any more. */
export function follow(listener: Listener): () => void {
  const ending = new AbortController();
  let lastId = "";
  let tries = 0;
  let hurry: () => void = () => {};

  const listen = async (): Promise<"broken" | "signed-out"> => {
    const silence = new AbortController();
    const headers: Record<string, string> = { Accept: "text/event-stream" };
    if (lastId) headers["Last-Event-ID"] = lastId;
    let timer = setTimeout(() => silence.abort(), SILENCE_MS);
    try {
      const signal = AbortSignal.any([ending.signal, silence.signal]);
      const answer = await fetch("/api/v1/events", { headers, credentials: "same-origin", cache: "no-store", signal });
      if (answer.status === 401) return "signed-out";
      if (answer.status === 422) lastId = "";
      if (!answer.ok || !answer.body) return "broken";
      tries = 0;
      listener.connection("live");
      listener.begun();
      const read = reader();
      const pieces = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await pieces.read();
        if (done) return "broken";
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENCE_MS);
        for (const event of read(value)) {
          listener.told(JSON.parse(event.data) as Told);
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
      hurry = () => {
        clearTimeout(timer);
        resolve();
      };
    });

  const run = async (): Promise<void> => {
    listener.connection("connecting");
    while (!ending.signal.aborted) {
      const end = await listen();
      if (ending.signal.aborted) return;
      if (end === "signed-out") {
        listener.connection("signed-out");
        return;
      }
      listener.connection("reconnecting");
      const pause = WAITS_MS[Math.min(tries, WAITS_MS.length - 1)] ?? 8000;
      tries += 1;
      await wait(pause);
    }
  };

  const wake = (): void => {
    if (!document.hidden) hurry();
  };
  window.addEventListener("online", wake);
  document.addEventListener("visibilitychange", wake);
  void run();
  return () => {
    ending.abort();
    hurry();
    window.removeEventListener("online", wake);
    document.removeEventListener("visibilitychange", wake);
  };
}
