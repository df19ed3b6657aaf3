// What does the System page say about confinement?

import assert from "node:assert/strict";
import { test } from "node:test";
import { lacking, summary } from "../../../src/torpor/dashboard/app/src/confinement.ts";
import type { Confinement } from "../../../src/torpor/dashboard/app/src/api-types.ts";

const confined: Confinement = { node_id: "a", missing: [], is_accepted: false, summary: "" };
const open: Confinement = { ...confined, node_id: "b", missing: [{ what: "network", why: "", remedy: "" }] };

test("where every controller confines, the page says so", () => {
  assert.match(summary([confined]), /are confined/);
  assert.deepEqual(lacking([confined]), []);
});

test("a controller that lacks something is listed", () => {
  assert.equal(summary([confined, open]), "");
  assert.deepEqual(lacking([confined, open]), [open]);
});

test("without a controller nothing is known", () => {
  assert.match(summary([]), /^No controller is running/);
  assert.doesNotMatch(summary([]), /are confined:/);
});
