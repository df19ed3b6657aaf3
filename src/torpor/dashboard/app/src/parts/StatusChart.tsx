// A chart of the status of a workspace over time.

import { useMemo, useState } from "preact/hooks";
import { Choice } from "./controls.tsx";
import { LEVELS, recent, SPANS_S, segments, type Level, type Segment } from "../status-chart.ts";
import { duration, exactly, ttl } from "../time.ts";
import type { Operation, Phase } from "../api-types.ts";
import { OPERATION_NAME, OUTCOME_LABEL } from "../labels.ts";

const LABEL: Record<Level, string> = { RUNNING: "Running", STANDBY: "Stopped", ARCHIVED: "Archived", NOTHING: "No home" };
const RECENT = "recent";
const WIDTH = 1000;
const ROW = 34;
const HEIGHT = ROW * LEVELS.length;
const NARROWEST = 3;

const middle = (level: Level): number => LEVELS.indexOf(level) * ROW + ROW / 2;

interface Props {
  operations: Operation[];
  phase: Phase;
  now: number;
}

export function StatusChart({ operations, phase, now }: Props) {
  const [chosen, setChosen] = useState<string>(RECENT);
  const seconds = chosen === RECENT ? recent(operations, now) : Number(chosen);
  const begin = now - seconds * 1000;
  const found = useMemo(() => segments(operations, phase, begin, now), [operations, phase, begin, now]);
  const x = (at: number): number => ((at - begin) / (now - begin)) * WIDTH;
  const rests = found.filter((one) => one.operation === null);
  const works = found.filter((one) => one.operation !== null);
  return (
    <figure class="status-chart">
      <div class="chart">
        <div class="levels" aria-hidden="true">
          {LEVELS.map((level) => (
            <span key={level}>{LABEL[level]}</span>
          ))}
        </div>
        <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={textOf(found)}>
          {LEVELS.map((level) => (
            <line key={level} class="level" x1="0" x2={WIDTH} y1={middle(level)} y2={middle(level)} />
          ))}
          {rests.map((one) => (
            <rect
              key={one.from}
              class="rest"
              data-level={one.level}
              x={x(one.from)}
              y={middle(one.level) - 8}
              width={Math.max(x(one.to) - x(one.from), 1)}
              height={16}
            >
              <title>{`${LABEL[one.level]} for ${duration((one.to - one.from) / 1000)}`}</title>
            </rect>
          ))}
          <path class="steps" d={steps(found, x)} />
          {works.map((one) => (
            <rect
              key={`${one.operation?.op_id} ${one.operation?.attempt}`}
              class="work"
              data-outcome={one.operation?.outcome ?? "IN_PROGRESS"}
              x={Math.min(x(one.from), WIDTH - NARROWEST)}
              y={2}
              width={Math.max(x(one.to) - x(one.from), NARROWEST)}
              height={HEIGHT - 4}
            >
              <title>{operationText(one)}</title>
            </rect>
          ))}
        </svg>
      </div>
      <figcaption>
        <span class="axis">
          <time>{exactly(new Date(begin).toISOString())}</time>
          <span>now</span>
        </span>
        <Choice
          bare
          label="Time range"
          value={chosen}
          onValue={setChosen}
          options={[[RECENT, "recent"], ...SPANS_S.map((one) => [String(one), `last ${ttl(one)}`] as const)]}
        />
      </figcaption>
    </figure>
  );
}

function operationText({ operation, from, to }: Segment): string {
  if (!operation) return "";
  const outcome = operation.outcome ? OUTCOME_LABEL[operation.outcome] : "in progress";
  return `${OPERATION_NAME[operation.kind]}, ${outcome}, ${duration((to - from) / 1000)}`;
}

function steps(found: readonly Segment[], x: (at: number) => number): string {
  let path = "";
  for (const one of found) {
    const y = middle(one.level);
    path += `${path ? "L" : "M"}${x(one.from).toFixed(1)} ${y}L${x(one.to).toFixed(1)} ${y}`;
  }
  return path;
}

/** The chart as text, for screen readers. */
function textOf(found: readonly Segment[]): string {
  const spent = new Map<Level, number>();
  for (const one of found) if (!one.operation) spent.set(one.level, (spent.get(one.level) ?? 0) + (one.to - one.from) / 1000);
  const parts = [...spent].map(([level, seconds]) => `${LABEL[level].toLowerCase()} for ${duration(seconds)}`);
  return `Status chart: ${parts.join(", ") || "no operations yet"}.`;
}
