// Does each path lead to its page, and does nobody get led to another origin?

import assert from "node:assert/strict";
import { test } from "node:test";
import { path, place, wanted, type Place } from "../../../src/torpor/dashboard/app/src/routes.ts";

const PLACES: [string, Place][] = [
  ["/", { page: "workspaces" }],
  ["/workspaces", { page: "workspaces" }],
  ["/workspaces/", { page: "workspaces" }],
  ["/workspaces/demo", { page: "workspace", name: "demo" }],
  ["/workspaces/demo/", { page: "workspace", name: "demo" }],
  ["/workspaces/demo/shell", { page: "shell", name: "demo" }],
  ["/workspaces/a%20b", { page: "workspace", name: "a b" }],
  ["/workspaces/%E0%A4%A", { page: "nowhere" }],
  ["/workspaces/demo/else", { page: "nowhere" }],
  ["/account", { page: "account" }],
  ["/system", { page: "system" }],
  ["/constructor", { page: "nowhere" }],
];

for (const [at, expected] of PLACES) test(`${at} is ${expected.page}`, () => assert.deepEqual(place(at), expected));

test("a place's path leads back to it", () => {
  for (const [, expected] of PLACES) if (expected.page !== "nowhere") assert.deepEqual(place(path(expected)), expected);
});

const ORIGIN = "http://localhost:8080";

test("a path of this origin is gone on to", () => {
  const next = "/door?workspace=demo&nonce=00ff&back=%2Fa";
  assert.equal(wanted(`?next=${encodeURIComponent(next)}`, ORIGIN), next);
  assert.equal(wanted("", ORIGIN), null);
});

for (const bad of [
  "//evil.example",
  "/\\evil.example",
  "https://evil.example/",
  "javascript:alert(1)",
  "door",
  "/\t/evil.example",
  "/\n/evil",
]) {
  test(`${JSON.stringify(bad)} is not`, () => assert.equal(wanted(`?next=${encodeURIComponent(bad)}`, ORIGIN), null));
}
