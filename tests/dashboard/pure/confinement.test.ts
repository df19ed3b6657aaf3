// The text about confinement on the System page.

import assert from "node:assert/strict";
import { test } from "node:test";
import { lacking, summary } from "../../../src/torpor/dashboard/app/src/confinement.ts";
import type { Confinement } from "../../../src/torpor/dashboard/app/src/api-types.ts";

const confined: Confinement = { node_id: "a", missing: [], is_accepted: false, summary: "" };
const open: Confinement = { ...confined, node_id: "b", missing: [{ what: "network", why: "", remedy: "" }] };

test("the page says when every controller confines workspaces", () => {
  assert.match(summary([confined]), /are confined/);
  assert.deepEqual(lacking([confined]), []);
});

test("a controller that cannot confine is listed", () => {
  assert.equal(summary([confined, open]), "");
  assert.deepEqual(lacking([confined, open]), [open]);
});

test("without a controller confinement is unknown", () => {
  assert.match(summary([]), /^No controller is running/);
  assert.doesNotMatch(summary([]), /are confined:/);
});
