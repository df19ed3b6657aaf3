// A value that parts of the page watch.

import { useEffect, useState } from "preact/hooks";

export interface Observable<Value> {
  get(): Value;
  set(next: Value): void;
  watch(onChange: () => void): () => void;
}

export function observable<Value>(first: Value): Observable<Value> {
  let value = first;
  const watchers = new Set<() => void>();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const onChange of [...watchers]) onChange();
    },
    watch(onChange) {
      watchers.add(onChange);
      return () => void watchers.delete(onChange);
    },
  };
}

export function useObservable<Value>(source: Observable<Value>): Value {
  const [value, setValue] = useState(source.get());
  useEffect(() => {
    const update = (): void => setValue(() => source.get());
    update();
    return source.watch(update);
  }, [source]);
  return value;
}
