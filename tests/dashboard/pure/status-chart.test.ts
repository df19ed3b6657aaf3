// The segments of the status chart have no gaps.

import assert from "node:assert/strict";
import { test } from "node:test";
import { barLength, recent, segments } from "../../../src/torpor/dashboard/app/src/status-chart.ts";
import type { Operation, OperationKind, Outcome } from "../../../src/torpor/dashboard/app/src/api-types.ts";

const at = (second: number): string => new Date(second * 1000).toISOString();
const operation = (kind: OperationKind, from: number, to: number | null, outcome: Outcome | null): Operation =>
  ({
    op_id: `${kind} ${from}`,
    kind,
    attempt: 1,
    started_at: at(from),
    ended_at: to === null ? null : at(to),
    outcome,
  }) as Operation;
const drawn = (operations: Operation[], phase: Parameters<typeof segments>[1], begin: number, now: number) =>
  segments(operations, phase, begin * 1000, now * 1000).map((one) => [
    one.from / 1000,
    one.to / 1000,
    one.level,
    one.operation?.kind ?? null,
  ]);

test("a day of a workspace", () => {
  const history = [
    operation("ARCHIVING", 60, 65, "DONE"),
    operation("STOPPING", 40, 42, "DONE"),
    operation("STARTING", 12, 15, "DONE"),
    operation("PROVISIONING", 10, 12, "DONE"),
  ];
  assert.deepEqual(drawn(history, "ARCHIVED", 5, 100), [
    [5, 10, "NOTHING", null],
    [10, 12, "STANDBY", "PROVISIONING"],
    [12, 15, "RUNNING", "STARTING"],
    [15, 40, "RUNNING", null],
    [40, 42, "STANDBY", "STOPPING"],
    [42, 60, "STANDBY", null],
    [60, 65, "ARCHIVED", "ARCHIVING"],
    [65, 100, "ARCHIVED", null],
  ]);
});

test("a failed operation changes no level; an operation in progress lasts until now", () => {
  assert.deepEqual(drawn([operation("STARTING", 20, 30, "FAILED"), operation("STARTING", 40, null, null)], "STANDBY", 10, 50), [
    [10, 20, "STANDBY", null],
    [20, 30, "STANDBY", "STARTING"],
    [30, 40, "STANDBY", null],
    [40, 50, "RUNNING", "STARTING"],
  ]);
});

test("a segment is cut at the start of the time range", () => {
  assert.deepEqual(drawn([operation("STARTING", 10, 20, "DONE")], "RUNNING", 15, 30), [
    [15, 20, "RUNNING", "STARTING"],
    [20, 30, "RUNNING", null],
  ]);
});

test("without operations there is one segment", () => {
  assert.deepEqual(drawn([], "ARCHIVED", 0, 10), [[0, 10, "ARCHIVED", null]]);
});

test("the recent range includes the last operations", () => {
  const history = Array.from({ length: 20 }, (_, count) => operation("STARTING", count * 100, count * 100 + 1, "DONE"));
  assert.equal(Math.round(recent(history, 2_000_000, 2)), Math.round(200 * 1.03));
  assert.equal(recent([], 2_000_000), 10);
});

test("a bar grows with the duration, and the longest has length 1", () => {
  assert.equal(barLength(60, 60), 1);
  assert.ok(barLength(1, 60) > 0.2 && barLength(1, 60) < barLength(10, 60));
});
