// Format and parse times and durations.

const UNITS: [seconds: number, letter: string][] = [
  [86_400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

/** 0.4 s, 12 s, 3 min 20 s, 2 h 5 min, 4 d 3 h: two units at most. */
export function duration(seconds: number): string {
  if (seconds < 0.95) return `${Math.max(seconds, 0).toFixed(1)} s`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  let left = Math.round(seconds);
  const parts: string[] = [];
  for (const [size, letter] of UNITS) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count > 0) parts.push(`${count} ${letter}`);
    else if (parts.length > 0) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ") || "0 s";
}

/** In the largest unit that divides it, for fields that you edit. */
export function ttl(seconds: number): string {
  for (const [size, letter] of UNITS) if (seconds >= size && seconds % size === 0) return `${seconds / size} ${letter}`;
  return duration(seconds);
}

const LETTERS: Record<string, number> = { s: 1, sec: 1, m: 60, min: 60, h: 3600, d: 86_400, w: 604_800 };

/** The seconds of 90, 90s, 5 min, 1.5h, 2 d or 1 h 30 min; null for any other text. */
export function parseDuration(text: string): number | null {
  const trimmed = text.trim().toLowerCase();
  if (/^\d+$/.test(trimmed)) return Number(trimmed);
  if (!/^(\d+(\.\d+)?\s*[a-z]+\s*)+$/.test(trimmed)) return null;
  let total = 0;
  for (const [, number, unit] of trimmed.matchAll(/(\d+(?:\.\d+)?)\s*([a-z]+)/g)) {
    const size = LETTERS[unit ?? ""];
    if (size === undefined) return null;
    total += Number(number) * size;
  }
  return Math.round(total);
}

/** just now, 40 s ago, 3 min ago, 2 h ago, 5 d ago. */
export function ago(at: string, now: number): string {
  const seconds = (now - Date.parse(at)) / 1000;
  if (seconds < 5) return "just now";
  return `${coarse(seconds)} ago`;
}

/** in 40 s, in 3 min; "now" for a time in the past. */
export function ahead(at: string, now: number): string {
  const seconds = (Date.parse(at) - now) / 1000;
  return seconds <= 0 ? "now" : `in ${coarse(seconds)}`;
}

/** The remaining time as on a clock: 4:59. */
export function countdown(at: string, now: number): string {
  const seconds = Math.max(0, Math.ceil((Date.parse(at) - now) / 1000));
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}

/** 14:05:00, in the format of the browser's locale. */
export function clock(at: string): string {
  return CLOCK.format(new Date(at));
}

function coarse(seconds: number): string {
  for (const [size, letter] of UNITS) if (seconds >= size) return `${Math.floor(seconds / size)} ${letter}`;
  return "1 s";
}

const WHEN = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

const CLOCK = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const ISO = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)/g;

/** Replace the ISO 8601 times in a text by local times; times of today have no date. */
export function local(text: string, now: number): string {
  const today = new Date(now).toDateString();
  return text.replace(ISO, (at) => {
    const then = new Date(at);
    return (then.toDateString() === today ? CLOCK : WHEN).format(then);
  });
}

export function exactly(at: string): string {
  return WHEN.format(new Date(at));
}
