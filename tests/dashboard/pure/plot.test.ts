// The geometry of the small plots.

import assert from "node:assert/strict";
import { test } from "node:test";
import { plotMaximum, plotShape, rangeText, stepUntil } from "../../../src/torpor/dashboard/app/src/plot.ts";

const box = { begin: 0, end: 100, maximum: 10, width: 100, height: 52, gapMs: 20 };

test("the maximum is a round multiple of the unit", () => {
  assert.equal(plotMaximum([], 0.1), 0.1);
  assert.equal(plotMaximum([{ at: 0, value: 0.3 }], 0.1), 0.4);
  assert.equal(plotMaximum([{ at: 0, value: 1000 }], 1), 2048);
});

test("time ranges", () => {
  assert.deepEqual([300, 1799, 9000, 400_000].map(rangeText), ["last 5 min", "last 30 min", "last 3 h", "last 5 d"]);
});

test("the current value continues until now, with a step where it changed", () => {
  const points = [{ at: 10, value: 4 }];
  assert.deepEqual(stepUntil(points, 4, 20, 50), [...points, { at: 50, value: 4 }]);
  assert.deepEqual(stepUntil(points, null, 20, 50), [...points, { at: 50, value: 4 }]);
  const step = [{ at: 20, value: 4 }, { at: 20, value: 0 }, { at: 50, value: 0 }];
  assert.deepEqual(stepUntil(points, 0, 20, 50), [...points, ...step]);
  assert.deepEqual(stepUntil([], 0, 20, 50), []);
});

test("a gap interrupts the line, and points outside the range are left out", () => {
  const points = [-10, 10, 20, 60, 80].map((at) => ({ at, value: 5 }));
  const { line, area } = plotShape(points, box);
  assert.equal(line, "M10.0 27.0L20.0 27.0M60.0 27.0L80.0 27.0");
  assert.equal(area, "M10.0 52L10.0 27.0L20.0 27.0L20.0 52ZM60.0 52L60.0 27.0L80.0 27.0L80.0 52Z");
});

test("no points give empty paths", () => assert.deepEqual(plotShape([], box), { line: "", area: "" }));
