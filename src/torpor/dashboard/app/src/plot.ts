// The geometry of a small plot over time.

export interface PlotPoint {
  /** Milliseconds since 1970. */
  at: number;
  value: number;
}

/** "last 5 min", "last 3 h", "last 2 d". */
export function rangeText(seconds: number): string {
  if (seconds < 2 * 3600) return `last ${Math.round(seconds / 60)} min`;
  return seconds < 2 * 86_400 ? `last ${Math.round(seconds / 3600)} h` : `last ${Math.round(seconds / 86_400)} d`;
}

/** Continue with the current value until now. A value that differs from the last point changed at `changedAt`: an archived home
 * is not on disk, and is not measured again. */
export function stepUntil(points: readonly PlotPoint[], current: number | null, changedAt: number, now: number): PlotPoint[] {
  const last = points.at(-1);
  if (!last) return [];
  const value = current ?? last.value;
  const at = Math.min(Math.max(last.at, changedAt), now);
  const step = value === last.value ? [] : [{ at, value: last.value }, { at, value }];
  return [...points, ...step, { at: now, value }];
}

export interface PlotShape {
  line: string;
  area: string;
}

const HEADROOM = 1.1;

/** The smallest of 1, 2, 4, 8, … times `unit` that is at least ten percent larger than the largest value. */
export function plotMaximum(points: readonly PlotPoint[], unit: number): number {
  const largest = Math.max(0, ...points.map((one) => one.value));
  let maximum = unit;
  while (maximum < largest * HEADROOM) maximum *= 2;
  return maximum;
}

// The line at the maximum is not cut at the edge.
const TOP = 2;

/** Paths in a box of this size. A gap longer than `gapMs` interrupts the line; a single point becomes a horizontal line. */
export function plotShape(
  points: readonly PlotPoint[],
  { begin, end, maximum, width, height, gapMs }: { begin: number; end: number; maximum: number; width: number; height: number; gapMs: number },
): PlotShape {
  const x = (at: number): string => (((at - begin) / (end - begin)) * width).toFixed(1);
  const y = (value: number): string => (height - (value / maximum) * (height - TOP)).toFixed(1);
  const runs: PlotPoint[][] = [];
  for (const point of points.filter((one) => one.at >= begin && one.at <= end)) {
    const run = runs.at(-1);
    const before = run?.at(-1);
    if (run && before && point.at - before.at <= gapMs) run.push(point);
    else runs.push([point]);
  }
  let line = "";
  let area = "";
  for (const run of runs) {
    const [first, final] = [run[0], run.at(-1)];
    if (!first || !final) continue;
    const drawn = run.map((one) => `${x(one.at)} ${y(one.value)}`).join("L");
    line += `M${drawn}`;
    area += `M${x(first.at)} ${height}L${drawn}L${x(final.at)} ${height}Z`;
  }
  return { line, area };
}
