// Split a command line into words.

/** Split like a shell: quotes and backslashes, but no variables or other expansions. */
export function splitCommand(line: string): string[] {
  const found: string[] = [];
  let word: string | null = null;
  let quote = "";
  for (let at = 0; at < line.length; at += 1) {
    const letter = line[at] ?? "";
    const next = line[at + 1] ?? "";
    if (quote) {
      if (letter === quote) quote = "";
      else if (letter === "\\" && quote === '"' && next && '"\\'.includes(next)) {
        word += next;
        at += 1;
      } else word += letter;
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      word ??= "";
    } else if (/\s/.test(letter)) {
      if (word !== null) found.push(word);
      word = null;
    } else if (letter === "\\" && next) {
      word = (word ?? "") + next;
      at += 1;
    } else {
      word = (word ?? "") + letter;
    }
  }
  if (quote) throw new Error(`The command has an unclosed quote (${quote}). Close it.`);
  if (word !== null) found.push(word);
  return found;
}
