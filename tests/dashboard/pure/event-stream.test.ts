// Every event is parsed once, wherever the stream is cut.

import assert from "node:assert/strict";
import { test } from "node:test";
import { reader, type ServerEvent } from "../../../src/torpor/dashboard/app/src/event-stream.ts";

const STREAM =
  'id: 7\nevent: state_changed\ndata: {"a": 1}\n\n: a comment\n\nid: 8\r\ndata: one\r\ndata: two\r\n\r\ndata:bare\n\nevent: heartbeat\n\n';
const EVENTS: ServerEvent[] = [
  { id: "7", event: "state_changed", data: '{"a": 1}' },
  { id: "8", event: "message", data: "one\ntwo" },
  { id: "8", event: "message", data: "bare" },
];

test("in one piece", () => assert.deepEqual(reader()(STREAM), EVENTS));

test("cut in two, anywhere", () => {
  for (let at = 0; at <= STREAM.length; at += 1) {
    const read = reader();
    assert.deepEqual([...read(STREAM.slice(0, at)), ...read(STREAM.slice(at))], EVENTS, `cut at ${at}`);
  }
});

test("character by character", () => {
  const read = reader();
  assert.deepEqual([...STREAM].flatMap(read), EVENTS);
});
