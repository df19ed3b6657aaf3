// Does the list stay right, in whatever order lists and events come?

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  asked,
  gaveUp,
  inOrder,
  listed,
  named,
  tell,
  UNKNOWN,
  type House,
} from "../../../src/torpor/dashboard/app/src/workspace-list.ts";
import type { Phase, Told, Workspace } from "../../../src/torpor/dashboard/app/src/api-types.ts";

const one = (name: string, phase: Phase): Workspace => ({ id: `id-of-${name}`, name, phase }) as Workspace;
const told = (name: string, phase: Phase): Told => ({ id: 1, event: "state_changed", at: null, workspace: one(name, phase) });
const phases = (house: House): string[] => inOrder(house).map(({ name, phase }) => `${name} ${phase}`);

test("what is told while the list is on its way counts more than the list", () => {
  let house = asked(UNKNOWN);
  house = tell(house, told("b", "RUNNING"));
  house = tell(house, told("c", "DELETED"));
  assert.equal(house.workspaces, null);
  house = listed(house, [one("c", "DELETING"), one("b", "STANDBY"), one("a", "ARCHIVED")]);
  assert.deepEqual(phases(house), ["a ARCHIVED", "b RUNNING"]);
});

test("a list forgets what is no longer in it, but not what was told since it was asked for", () => {
  let house = listed(UNKNOWN, [one("gone", "STANDBY")]);
  house = asked(house);
  house = tell(house, told("new", "PENDING"));
  house = listed(house, []);
  assert.deepEqual(phases(house), ["new PENDING"]);
  house = listed(asked(house), []);
  assert.deepEqual(phases(house), []);
});

test("nothing is kept for a list that nobody asked for, or that did not come", () => {
  const house = tell(listed(UNKNOWN, []), told("a", "STANDBY"));
  assert.equal(house.early, null);
  assert.equal(gaveUp(tell(asked(house), told("a", "RUNNING"))).early, null);
});

test("a heartbeat changes nothing", () => {
  const house = listed(UNKNOWN, [one("a", "STANDBY")]);
  assert.equal(tell(house, { id: 9, event: "heartbeat", at: null, workspace: null }), house);
});

test("found by name or id", () => {
  const house = listed(UNKNOWN, [one("a", "STANDBY")]);
  assert.equal(named(house, "a")?.id, "id-of-a");
  assert.equal(named(house, "id-of-a")?.name, "a");
  assert.equal(named(house, "b"), null);
});
