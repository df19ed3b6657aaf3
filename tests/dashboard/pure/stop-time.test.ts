// The text that says when a workspace stops.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { StayAwake, Workspace } from "../../../src/torpor/dashboard/app/src/api-types.ts";
import { stopText } from "../../../src/torpor/dashboard/app/src/stop-time.ts";

const NOW = Date.parse("2026-11-17T12:00:00Z");
const running = (changes: Partial<Workspace> = {}): Workspace =>
  ({
    phase: "RUNNING",
    desired_state: "RUNNING",
    operation: "NONE",
    sleeps_at: null,
    error: null,
    standby_ttl: 300,
    archive_ttl: 86_400,
    ...changes,
  }) as Workspace;
const because = (why: string, until: string | null = null, words = ""): StayAwake => ({ why, words, until });

test("the announced time is used first", () => {
  assert.equal(stopText(running({ sleeps_at: "2026-11-17T12:04:10Z" }), [because("CONNECTED")], NOW), "stops in 4 min");
});

test("without an announced time the reasons decide", () => {
  const timer = because("IDLE_TIMER", "2026-11-17T12:03:00Z");
  assert.equal(stopText(running(), [timer, because("USED_LATELY", "2026-11-17T12:02:00Z")], NOW), "stops in 3 min");
  assert.equal(stopText(running(), [timer, because("CONNECTED")], NOW), "in use");
  assert.equal(stopText(running(), [timer, because("BUSY", null, "make runs")], NOW), "busy: make runs");
  assert.match(stopText(running(), [because("HELD", "2026-11-17T13:00:00Z"), because("CONNECTED")], NOW), /^kept awake until /);
  assert.equal(stopText(running(), [because("BUS_OUT")], NOW), "stops after 5 min without use");
  assert.equal(stopText(running(), [], NOW), "stops after 5 min without use");
});

test("a stopped workspace is archived later", () => {
  const stopped = running({ phase: "STANDBY", desired_state: "STANDBY" });
  assert.equal(stopText(stopped, [because("USED_LATELY", "2026-11-18T11:30:00Z")], NOW), "archived in 23 h");
  assert.equal(stopText(stopped, [because("HELD")], NOW), "archived after 1 d");
});

test("no text while the workspace changes or has an error", () => {
  assert.equal(stopText(running({ operation: "STOPPING" }), [], NOW), "");
  assert.equal(stopText(running({ desired_state: "STANDBY" }), [], NOW), "");
  assert.equal(stopText(running({ phase: "ARCHIVED", desired_state: "ARCHIVED" }), [], NOW), "");
});
