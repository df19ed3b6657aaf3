// The hooks that pages and parts share.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { request } from "./api-client.ts";

export function errorMessage(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export interface RequestState<Data> {
  data: Data | null;
  error: string;
  reload(): void;
}

/** The response of a GET request, requested again when `key` changes. The old response stays until a new one arrives. */
export function useRequest<Data>(path: string | null, key: string = "", everyMs = 0): RequestState<Data> {
  const [data, setData] = useState<Data | null>(null);
  const [error, setError] = useState("");
  const [turn, setTurn] = useState(0);
  const requested = useRef(path);
  if (requested.current !== path) {
    requested.current = path;
    setData(null);
  }
  useEffect(() => {
    if (path === null) return;
    const ending = new AbortController();
    let timer = 0;
    const load = async (): Promise<void> => {
      try {
        if (!document.hidden || everyMs === 0) {
          const response = await request<Data>("GET", path, undefined, { signal: ending.signal });
          if (ending.signal.aborted) return;
          setData(() => response);
          setError("");
        }
      } catch (error) {
        if (ending.signal.aborted) return;
        setError(errorMessage(error));
      }
      if (everyMs > 0) timer = window.setTimeout(() => void load(), everyMs);
    };
    void load();
    return () => {
      ending.abort();
      clearTimeout(timer);
    };
  }, [path, key, everyMs, turn]);
  return { data, error, reload: useCallback(() => setTurn((before) => before + 1), []) };
}

export interface PendingAction {
  /** The name of the action in progress, or "". */
  busy: string;
  error: string;
  /** Resolves to whether the action succeeded. The error message is kept, so that the page shows it in place. */
  run(what: string, act: () => Promise<unknown>): Promise<boolean>;
  clear(): void;
}

export function usePendingAction(): PendingAction {
  const [busy, setBusy] = useState("");
  const [error, setError] = useState("");
  const isBusy = useRef(false);
  const run = useCallback(async (what: string, act: () => Promise<unknown>): Promise<boolean> => {
    if (isBusy.current) return false;
    isBusy.current = true;
    setBusy(what);
    setError("");
    try {
      await act();
      return true;
    } catch (error) {
      setError(errorMessage(error));
      return false;
    } finally {
      isBusy.current = false;
      setBusy("");
    }
  }, []);
  return { busy, error, run, clear: useCallback(() => setError(""), []) };
}

/** The current time, updated at this interval. */
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
