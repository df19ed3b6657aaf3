// What do the pages' parts do again and again?

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ask } from "./api-client.ts";

export function words(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export interface Asked<Said> {
  said: Said | null;
  wrong: string;
  again(): void;
}

/** What a path says, asked again whenever `key` changes; what was said stays until something newer comes. */
export function useAsked<Said>(path: string | null, key: string = "", everyMs = 0): Asked<Said> {
  const [said, setSaid] = useState<Said | null>(null);
  const [wrong, setWrong] = useState("");
  const [turn, setTurn] = useState(0);
  const of = useRef(path);
  if (of.current !== path) {
    of.current = path;
    setSaid(null);
  }
  useEffect(() => {
    if (path === null) return;
    const ending = new AbortController();
    let timer = 0;
    const look = async (): Promise<void> => {
      try {
        if (!document.hidden || everyMs === 0) {
          const answer = await ask<Said>("GET", path, undefined, { signal: ending.signal });
          if (ending.signal.aborted) return;
          setSaid(() => answer);
          setWrong("");
        }
      } catch (error) {
        if (ending.signal.aborted) return;
        setWrong(words(error));
      }
      if (everyMs > 0) timer = window.setTimeout(() => void look(), everyMs);
    };
    void look();
    return () => {
      ending.abort();
      clearTimeout(timer);
    };
  }, [path, key, everyMs, turn]);
  return { said, wrong, again: useCallback(() => setTurn((before) => before + 1), []) };
}

export interface Doing {
  /** What is being done, or "". */
  busy: string;
  wrong: string;
  /** Whether it succeeded; what went wrong is kept to be shown in place. */
  run(what: string, act: () => Promise<unknown>): Promise<boolean>;
  clear(): void;
}

export function useDoing(): Doing {
  const [busy, setBusy] = useState("");
  const [wrong, setWrong] = useState("");
  const isBusy = useRef(false);
  const run = useCallback(async (what: string, act: () => Promise<unknown>): Promise<boolean> => {
    if (isBusy.current) return false;
    isBusy.current = true;
    setBusy(what);
    setWrong("");
    try {
      await act();
      return true;
    } catch (error) {
      setWrong(words(error));
      return false;
    } finally {
      isBusy.current = false;
      setBusy("");
    }
  }, []);
  return { busy, wrong, run, clear: useCallback(() => setWrong(""), []) };
}

/** The present instant, looked at every so often. */
export function useNow(everyMs = 5000): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

export function useTitle(title: string): void {
  useEffect(() => {
    document.title = title ? `${title} · Torpor` : "Torpor";
  }, [title]);
}
