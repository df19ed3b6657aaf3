// How does a part of the page know that a value has changed?

import { useEffect, useState } from "preact/hooks";

export interface Kept<Value> {
  get(): Value;
  set(next: Value): void;
  watch(tell: () => void): () => void;
}

export function kept<Value>(first: Value): Kept<Value> {
  let value = first;
  const watchers = new Set<() => void>();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const tell of [...watchers]) tell();
    },
    watch(tell) {
      watchers.add(tell);
      return () => void watchers.delete(tell);
    },
  };
}

export function useKept<Value>(of: Kept<Value>): Value {
  const [value, setValue] = useState(of.get());
  useEffect(() => {
    const look = (): void => setValue(() => of.get());
    look();
    return of.watch(look);
  }, [of]);
  return value;
}
