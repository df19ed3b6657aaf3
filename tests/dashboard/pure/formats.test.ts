// Formats of times, sizes, command lines and user agents, and the offered actions.

import assert from "node:assert/strict";
import { test } from "node:test";
import { access, actions, may } from "../../../src/torpor/dashboard/app/src/actions.ts";
import { browser } from "../../../src/torpor/dashboard/app/src/user-agent.ts";
import { splitCommand } from "../../../src/torpor/dashboard/app/src/command-line.ts";
import { outage, outageText } from "../../../src/torpor/dashboard/app/src/outage.ts";
import { size } from "../../../src/torpor/dashboard/app/src/sizes.ts";
import { ago, ahead, duration, local, parseDuration, ttl } from "../../../src/torpor/dashboard/app/src/time.ts";
import { waitReason } from "../../../src/torpor/dashboard/app/src/labels.ts";
import type { Me, Workspace } from "../../../src/torpor/dashboard/app/src/api-types.ts";

const check = (format: (value: number) => string, table: [number, string][]): void => {
  for (const [value, expected] of table) assert.equal(format(value), expected);
};

test("durations", () =>
  check(duration, [
    [0, "0.0 s"],
    [0.42, "0.4 s"],
    [9.96, "10 s"],
    [59.9, "1 min"],
    [200, "3 min 20 s"],
    [7500, "2 h 5 min"],
    [86_400 * 4 + 30, "4 d"],
    [86_400 * 4 + 3600 * 3, "4 d 3 h"],
  ]));

test("a formatted duration is parsed back", () => {
  for (const seconds of [1, 90, 300, 3600, 5400, 86_400, 86_400 * 7]) assert.equal(parseDuration(ttl(seconds)), seconds);
  assert.equal(parseDuration("1.5h"), 5400);
  assert.equal(parseDuration(" 2 d "), 172_800);
  for (const wrong of ["", "soon", "5 x", "-3", "1e3", "5 min ago"]) assert.equal(parseDuration(wrong), null, wrong);
});

test("relative times", () => {
  const now = Date.parse("2026-11-16T12:00:00Z");
  assert.equal(ago("2026-11-16T11:59:58Z", now), "just now");
  assert.equal(ago("2026-11-16T09:59:58Z", now), "2 h ago");
  assert.equal(ahead("2026-11-16T12:03:10Z", now), "in 3 min");
  assert.equal(ahead("2026-11-16T11:00:00Z", now), "now");
});

test("times in a text become local times", () => {
  const now = Date.parse("2026-11-16T12:00:00Z");
  assert.doesNotMatch(local("until 2026-11-16T12:34:18+00:00; then", now), /2026|T/);
  assert.match(local("until 2025-01-02T12:34:18.123Z", now), /2025/);
  assert.equal(local("no time", now), "no time");
});

test("what a workspace waits for is described", () => {
  const condition = (reason: string) => ({ status: "True" as const, reason, message: "5 MiB are free", last_transition_time: null });
  assert.match(waitReason({ conditions: { "policy.healthy": condition("DiskLow") } }), /Waiting for disk space: 5 MiB are free/);
  assert.match(waitReason({ conditions: { "infra.container_ready": condition("Paused") } }), /Paused: 5 MiB are free/);
  assert.match(waitReason({ conditions: { "infra.container_ready": condition("Waiting") } }), /^Waiting: 5 MiB are free\.$/);
  assert.match(waitReason({ conditions: { "infra.container_ready": condition("StoppedOutside") } }), /started again/);
  assert.equal(waitReason({ conditions: { "policy.healthy": condition("Healthy") } }), "");
  assert.equal(waitReason({ conditions: {} }), "");
});

test("sizes", () =>
  check(size, [
    [0, "0 B"],
    [1023, "1023 B"],
    [1024, "1.0 KiB"],
    [1024 * 1024 * 150, "150 MiB"],
    [1024 ** 5 * 3, "3072 TiB"],
  ]));

test("a command line is split like in a shell", () => {
  assert.deepEqual(splitCommand(`sh -c 'echo "a  b" $PORT' "x\\"y" '' a\\ b`), ["sh", "-c", 'echo "a  b" $PORT', 'x"y', "", "a b"]);
  assert.deepEqual(splitCommand("   "), []);
  assert.throws(() => splitCommand("sh -c 'oops"), /unclosed quote/);
});

test("browsers", () => {
  assert.equal(
    browser("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36"),
    "Chrome on Linux",
  );
  assert.equal(
    browser("Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 Version/18.0 Mobile Safari/604.1"),
    "Safari on iPhone",
  );
  assert.equal(browser("curl/8.5.0"), "curl");
  assert.equal(browser(""), "Unknown");
});

const user = (username: string, is_admin = false): Me => ({ id: username, username, is_admin }) as Me;
const shared = {
  owner: "ada",
  shares: { bob: "use", eve: "manage" },
  phase: "RUNNING",
  desired_state: "RUNNING",
} as unknown as Workspace;

test("access and offered actions", () => {
  assert.deepEqual(
    [user("ada"), user("root", true), user("eve"), user("bob"), user("mallory")].map((me) =>
      access(shared, me),
    ),
    ["OWN", "OWN", "MANAGE", "USE", "NONE"],
  );
  assert.deepEqual(actions(shared, user("ada")), ["open", "stop", "archive", "delete"]);
  assert.deepEqual(actions(shared, user("eve")), ["open", "stop", "archive"]);
  assert.deepEqual(actions(shared, user("bob")), ["open"]);
  assert.deepEqual(actions(shared, user("mallory")), []);
  assert.equal(may(shared, user("eve"), "SHARE"), false);
});

test("an outage is described while it lasts", () => {
  const healthy = (reason: string, message: string) => ({
    conditions: { "policy.healthy": { status: "True" as const, reason, message, last_transition_time: null } },
  });
  const out = healthy("RuntimeOut", "the runtime cannot be reached: no answer");
  assert.equal(outage(out)?.reason, "RuntimeOut");
  assert.equal(outageText(out), "The runtime cannot be reached: no answer. Torpor retries until it responds.");
  assert.equal(outage(healthy("Healthy", "")), null);
  assert.equal(outageText(healthy("Healthy", "")), "");
  assert.equal(outageText({ conditions: {} }), "");
});
