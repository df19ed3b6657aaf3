// Plots of the CPU, memory and disk use of a workspace.

import { workspacePath } from "../../api-client.ts";
import type { Usage as UsageData, Workspace } from "../../api-types.ts";
import { useRequest } from "../../hooks.ts";
import { Card } from "../../parts/controls.tsx";
import { Plot } from "../../parts/Plot.tsx";
import { type PlotPoint, stepUntil } from "../../plot.ts";
import { size } from "../../sizes.ts";

const EVERY_MS = 15_000;
const RANGE_MS = 30 * 60_000;
const SHORTEST_MS = 5 * 60_000;
const GAP_MS = 50_000;
const LONGEST_DISK_MS = 7 * 86_400_000;
const KIB = 1024;
const MIB = 1024 * 1024;

export function Usage({ workspace, now }: { workspace: Workspace; now: number }) {
  const isRunning = workspace.phase === "RUNNING";
  const key = `${workspace.phase} ${workspace.disk_measured_at}`;
  const { data } = useRequest<UsageData>(`${workspacePath(workspace.id)}/usage`, key, isRunning ? EVERY_MS : 0);
  const samples = (data?.points ?? []).filter((one) => Date.parse(one.at) >= now - RANGE_MS);
  const cpu = samples.map((one): PlotPoint => ({ at: Date.parse(one.at), value: one.cpu_cores }));
  const memory = samples.map((one): PlotPoint => ({ at: Date.parse(one.at), value: one.memory_bytes }));
  const disk = (data?.disk ?? []).map((one): PlotPoint => ({ at: Date.parse(one.at), value: one.disk_bytes }));
  // A workspace that runs for a short time has a short time range.
  const range = { begin: Math.min(cpu[0]?.at ?? now, now - SHORTEST_MS), end: now, gapMs: GAP_MS };
  const diskBegin = Math.max(now - LONGEST_DISK_MS, Math.min(disk[0]?.at ?? now, now - SHORTEST_MS));
  return (
    <Card title="Usage">
      <div class="plots">
        <Plot title="CPU" points={cpu} {...range} unit={0.125} format={cores} />
        <Plot title="Memory" points={memory} {...range} unit={MIB} format={size} />
        <Plot
          title="Disk"
          points={stepUntil(disk, workspace.disk_bytes, Date.parse(workspace.phase_changed_at), now)}
          begin={diskBegin}
          end={now}
          gapMs={LONGEST_DISK_MS}
          unit={KIB}
          format={size}
        />
      </div>
    </Card>
  );
}

function cores(value: number): string {
  return `${value < 10 ? value.toFixed(2) : value.toFixed(1)} cores`;
}
