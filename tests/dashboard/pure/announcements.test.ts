// Does somebody who cannot see the page hear what happens on it, and nothing else?

import assert from "node:assert/strict";
import { test } from "node:test";
import { listed, shown, UNKNOWN } from "../../../src/torpor/dashboard/app/src/workspace-list.ts";
import { news } from "../../../src/torpor/dashboard/app/src/announcements.ts";
import type { Phase, Workspace } from "../../../src/torpor/dashboard/app/src/api-types.ts";

const one = (name: string, phase: Phase): Workspace => ({ id: `id-of-${name}`, name, phase }) as Workspace;

test("another phase is said, a first list and the same phase are not", () => {
  const first = listed(UNKNOWN, [one("ada", "STANDBY"), one("bob", "RUNNING")]);
  assert.equal(news(UNKNOWN, first), "");
  assert.equal(news(first, shown(first, one("ada", "STANDBY"))), "");
  assert.equal(news(first, shown(first, one("eve", "PENDING"))), "");
  assert.equal(news(first, shown(first, one("ada", "RUNNING"))), "ada: Awake.");
  assert.equal(news(first, shown(first, one("bob", "DELETED"))), "bob: Deleted.");
});

test("a crowd is counted", () => {
  const names = ["a", "b", "c", "d"];
  const before = listed(UNKNOWN, names.map((name) => one(name, "RUNNING")));
  const after = listed(UNKNOWN, names.map((name) => one(name, "STANDBY")));
  assert.equal(news(before, after), "4 workspaces have changed.");
});
