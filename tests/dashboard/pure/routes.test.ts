// Paths, pages and the page after the sign-in.

import assert from "node:assert/strict";
import { test } from "node:test";
import { nextPath, pathOf, routeOf, type Route } from "../../../src/torpor/dashboard/app/src/routes.ts";

const ROUTES: [string, Route][] = [
  ["/", { page: "workspaces" }],
  ["/workspaces", { page: "workspaces" }],
  ["/workspaces/", { page: "workspaces" }],
  ["/workspaces/demo", { page: "workspace", name: "demo" }],
  ["/workspaces/demo/", { page: "workspace", name: "demo" }],
  ["/workspaces/demo/shell", { page: "shell", name: "demo" }],
  ["/workspaces/a%20b", { page: "workspace", name: "a b" }],
  ["/workspaces/%E0%A4%A", { page: "not-found" }],
  ["/workspaces/demo/else", { page: "not-found" }],
  ["/account", { page: "account" }],
  ["/system", { page: "system" }],
  ["/constructor", { page: "not-found" }],
];

for (const [at, expected] of ROUTES) test(`${at} is ${expected.page}`, () => assert.deepEqual(routeOf(at), expected));

test("the path of a route leads back to it", () => {
  for (const [, expected] of ROUTES) if (expected.page !== "not-found") assert.deepEqual(routeOf(pathOf(expected)), expected);
});

const ORIGIN = "http://localhost:8080";

test("a path of this origin is opened after the sign-in", () => {
  const next = "/door?workspace=demo&nonce=00ff&back=%2Fa";
  assert.equal(nextPath(`?next=${encodeURIComponent(next)}`, ORIGIN), next);
  assert.equal(nextPath("", ORIGIN), null);
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
  test(`${JSON.stringify(bad)} is not opened`, () => assert.equal(nextPath(`?next=${encodeURIComponent(bad)}`, ORIGIN), null));
}
