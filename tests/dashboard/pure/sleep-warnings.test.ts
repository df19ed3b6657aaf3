// Warnings of workspaces that go to sleep soon.

import assert from "node:assert/strict";
import { test } from "node:test";
import { listed, updated, UNKNOWN } from "../../../src/torpor/dashboard/app/src/workspace-list.ts";
import { announcement } from "../../../src/torpor/dashboard/app/src/announcements.ts";
import { countdown } from "../../../src/torpor/dashboard/app/src/time.ts";
import { bannerText, sleepingSoon } from "../../../src/torpor/dashboard/app/src/sleep-warnings.ts";
import type { Me, Workspace } from "../../../src/torpor/dashboard/app/src/api-types.ts";

const AT = "2026-03-01T12:05:00Z";
const NOW = Date.parse("2026-03-01T12:00:00Z");
const one = (name: string, changes: Partial<Workspace> = {}): Workspace =>
  ({ id: `id-of-${name}`, name, phase: "RUNNING", owner: "ada", shares: {}, sleeps_at: null, ...changes }) as Workspace;
const user = (username: string, is_admin = false): Me => ({ username, is_admin }) as Me;

test("a user sees own and shared workspaces; an administrator sees another user's on its page", () => {
  const list = listed(UNKNOWN, [
    one("quiet"),
    one("mine", { sleeps_at: AT }),
    one("shared", { owner: "eve", shares: { ada: "use" }, sleeps_at: AT }),
    one("other", { owner: "eve", sleeps_at: AT }),
  ]);
  const names = (me: Me, page: Parameters<typeof sleepingSoon>[2]) => sleepingSoon(list, me, page).map((found) => found.name);
  assert.deepEqual(names(user("ada", true), { page: "workspaces" }), ["mine", "shared"]);
  assert.deepEqual(names(user("ada", true), { page: "workspace", name: "other" }), ["mine", "other", "shared"]);
  assert.deepEqual(names(user("bob"), { page: "activity" }), []);
});

test("the countdown ends at 0:00", () => {
  assert.equal(countdown(AT, NOW), "5:00");
  assert.equal(countdown(AT, NOW + 1001), "4:59");
  assert.equal(countdown(AT, NOW + 299_500), "0:01");
  assert.equal(countdown(AT, NOW + 400_000), "0:00");
  assert.equal(bannerText(AT, NOW), "goes to sleep in 5:00: it is not in use.");
  assert.equal(bannerText(AT, NOW + 400_000), "goes to sleep now: it is not in use.");
});

test("a warning is announced once", () => {
  const before = listed(UNKNOWN, [one("ada")]);
  const after = updated(before, one("ada", { sleeps_at: AT }));
  assert.equal(announcement(before, after), "ada goes to sleep soon: it is not in use.");
  assert.equal(announcement(after, updated(after, one("ada", { sleeps_at: AT }))), "");
  assert.equal(announcement(after, updated(after, one("ada"))), "");
});
