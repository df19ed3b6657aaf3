// A command that you can copy.

import { Copyable } from "./controls.tsx";

export function Command({ words }: { words: string }) {
  return (
    <span class="command">
      <Copyable text={words} label="the command" />
    </span>
  );
}
