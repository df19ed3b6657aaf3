// The list is correct in any order of lists and events.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  listRequested,
  listFailed,
  sortedByName,
  listed,
  findByName,
  apply,
  UNKNOWN,
  type WorkspaceList,
} from "../../../src/torpor/dashboard/app/src/workspace-list.ts";
import type { Phase, ChangeEvent, Workspace } from "../../../src/torpor/dashboard/app/src/api-types.ts";

const one = (name: string, phase: Phase): Workspace => ({ id: `id-of-${name}`, name, phase }) as Workspace;
const event = (name: string, phase: Phase): ChangeEvent => ({ id: 1, event: "state_changed", at: null, workspace: one(name, phase) });
const phases = (list: WorkspaceList): string[] => sortedByName(list).map(({ name, phase }) => `${name} ${phase}`);

test("an event that arrives while the list is read is newer than the list", () => {
  let list = listRequested(UNKNOWN);
  list = apply(list, event("b", "RUNNING"));
  list = apply(list, event("c", "DELETED"));
  assert.equal(list.workspaces, null);
  list = listed(list, [one("c", "DELETING"), one("b", "STANDBY"), one("a", "ARCHIVED")]);
  assert.deepEqual(phases(list), ["a ARCHIVED", "b RUNNING"]);
});

test("a workspace that is not in a new list is removed, unless an event is newer", () => {
  let list = listed(UNKNOWN, [one("gone", "STANDBY")]);
  list = listRequested(list);
  list = apply(list, event("new", "PENDING"));
  list = listed(list, []);
  assert.deepEqual(phases(list), ["new PENDING"]);
  list = listed(listRequested(list), []);
  assert.deepEqual(phases(list), []);
});

test("events are collected only while a list is read", () => {
  const list = apply(listed(UNKNOWN, []), event("a", "STANDBY"));
  assert.equal(list.early, null);
  assert.equal(listFailed(apply(listRequested(list), event("a", "RUNNING"))).early, null);
});

test("a heartbeat changes nothing", () => {
  const list = listed(UNKNOWN, [one("a", "STANDBY")]);
  assert.equal(apply(list, { id: 9, event: "heartbeat", at: null, workspace: null }), list);
});

test("a workspace is found by name or id", () => {
  const list = listed(UNKNOWN, [one("a", "STANDBY")]);
  assert.equal(findByName(list, "a")?.id, "id-of-a");
  assert.equal(findByName(list, "id-of-a")?.name, "a");
  assert.equal(findByName(list, "b"), null);
});
