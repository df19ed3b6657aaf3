// Announcements for screen readers.

import assert from "node:assert/strict";
import { test } from "node:test";
import { listed, updated, UNKNOWN } from "../../../src/torpor/dashboard/app/src/workspace-list.ts";
import { announcement } from "../../../src/torpor/dashboard/app/src/announcements.ts";
import type { Phase, Workspace } from "../../../src/torpor/dashboard/app/src/api-types.ts";

const one = (name: string, phase: Phase): Workspace => ({ id: `id-of-${name}`, name, phase }) as Workspace;

test("a changed status is announced; the first list and an equal status are not", () => {
  const first = listed(UNKNOWN, [one("ada", "STANDBY"), one("bob", "RUNNING")]);
  assert.equal(announcement(UNKNOWN, first), "");
  assert.equal(announcement(first, updated(first, one("ada", "STANDBY"))), "");
  assert.equal(announcement(first, updated(first, one("eve", "PENDING"))), "");
  assert.equal(announcement(first, updated(first, one("ada", "RUNNING"))), "ada: Running.");
  assert.equal(announcement(first, updated(first, one("bob", "DELETED"))), "bob: Deleted.");
});

test("many changes are counted", () => {
  const names = ["a", "b", "c", "d"];
  const before = listed(UNKNOWN, names.map((name) => one(name, "RUNNING")));
  const after = listed(UNKNOWN, names.map((name) => one(name, "STANDBY")));
  assert.equal(announcement(before, after), "4 workspaces have changed.");
});
