// What did a workspace's nights look like?

import { useMemo, useState } from "preact/hooks";
import { Choice } from "./controls.tsx";
import { DEPTHS, recent, SPANS_S, stretches, type Depth, type Stretch } from "../status-chart.ts";
import { duration, exactly, ttl } from "../time.ts";
import type { Operation, Phase } from "../api-types.ts";
import { OPERATION_NAME, OUTCOME_SAYS } from "../labels.ts";

const SAYS: Record<Depth, string> = { RUNNING: "Awake", STANDBY: "Asleep", ARCHIVED: "Torpor", NOTHING: "Nothing" };
const RECENT = "recent";
const WIDTH = 1000;
const ROW = 34;
const HEIGHT = ROW * DEPTHS.length;
const NARROWEST = 3;

const middle = (depth: Depth): number => DEPTHS.indexOf(depth) * ROW + ROW / 2;

interface Props {
  operations: Operation[];
  phase: Phase;
  now: number;
}

export function SleepChart({ operations, phase, now }: Props) {
  const [chosen, setChosen] = useState<string>(RECENT);
  const seconds = chosen === RECENT ? recent(operations, now) : Number(chosen);
  const begin = now - seconds * 1000;
  const found = useMemo(() => stretches(operations, phase, begin, now), [operations, phase, begin, now]);
  const x = (at: number): number => ((at - begin) / (now - begin)) * WIDTH;
  const rests = found.filter((one) => one.operation === null);
  const works = found.filter((one) => one.operation !== null);
  return (
    <figure class="sleep-chart">
      <div class="chart">
        <div class="depths" aria-hidden="true">
          {DEPTHS.map((depth) => (
            <span key={depth}>{SAYS[depth]}</span>
          ))}
        </div>
        <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={told(found)}>
          {DEPTHS.map((depth) => (
            <line key={depth} class="level" x1="0" x2={WIDTH} y1={middle(depth)} y2={middle(depth)} />
          ))}
          {rests.map((one) => (
            <rect
              key={one.from}
              class="rest"
              data-depth={one.depth}
              x={x(one.from)}
              y={middle(one.depth) - 8}
              width={Math.max(x(one.to) - x(one.from), 1)}
              height={16}
            >
              <title>{`${SAYS[one.depth]} for ${duration((one.to - one.from) / 1000)}`}</title>
            </rect>
          ))}
          <path class="steps" d={steps(found, x)} />
          {works.map((one) => (
            <rect
              key={`${one.operation?.op_id} ${one.operation?.attempt}`}
              class="work"
              data-outcome={one.operation?.outcome ?? "UNDER_WAY"}
              x={Math.min(x(one.from), WIDTH - NARROWEST)}
              y={2}
              width={Math.max(x(one.to) - x(one.from), NARROWEST)}
              height={HEIGHT - 4}
            >
              <title>{saysOf(one)}</title>
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
          label="How far back"
          value={chosen}
          onValue={setChosen}
          options={[[RECENT, "recently"], ...SPANS_S.map((one) => [String(one), `last ${ttl(one)}`] as const)]}
        />
      </figcaption>
    </figure>
  );
}

function saysOf({ operation, from, to }: Stretch): string {
  if (!operation) return "";
  const outcome = operation.outcome ? OUTCOME_SAYS[operation.outcome] : "under way";
  return `${OPERATION_NAME[operation.kind]}, ${outcome}, ${duration((to - from) / 1000)}`;
}

function steps(found: readonly Stretch[], x: (at: number) => number): string {
  let path = "";
  for (const one of found) {
    const y = middle(one.depth);
    path += `${path ? "L" : "M"}${x(one.from).toFixed(1)} ${y}L${x(one.to).toFixed(1)} ${y}`;
  }
  return path;
}

/** The picture in words, for those who do not see it. */
function told(found: readonly Stretch[]): string {
  const spent = new Map<Depth, number>();
  for (const one of found) if (!one.operation) spent.set(one.depth, (spent.get(one.depth) ?? 0) + (one.to - one.from) / 1000);
  const parts = [...spent].map(([depth, seconds]) => `${SAYS[depth].toLowerCase()} for ${duration(seconds)}`);
  return `Sleep chart: ${parts.join(", ") || "nothing happened yet"}.`;
}
