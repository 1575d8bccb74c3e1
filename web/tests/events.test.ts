// @vitest-environment node
import { expect, test } from "vitest";
import { readEvents, type ServerEvent } from "../src/api/events";

const FRAMES = [
  ": keep-alive",
  "",
  "event: delta",
  "id: 7",
  'data: {"text":"Hi 🦙 日本語"}',
  "",
  "event: delta",
  "id: 8",
  'data: {"text":"é\\n"}',
  "",
  "data: never finis",
];
const EXPECTED: ServerEvent[] = [
  { id: 7, name: "delta", data: '{"text":"Hi 🦙 日本語"}' },
  { id: 8, name: "delta", data: '{"text":"é\\n"}' },
];

async function read(chunks: Uint8Array[]): Promise<ServerEvent[]> {
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(chunk);
      controller.close();
    },
  });
  const events: ServerEvent[] = [];
  for await (const event of readEvents(body)) events.push(event);
  return events;
}

for (const [name, lineEnd] of [
  ["LF", "\n"],
  ["CRLF", "\r\n"],
]) {
  const bytes = new TextEncoder().encode(FRAMES.join(lineEnd));

  test(`h9: the same events for every cut in two, ${name}`, async () => {
    for (let cut = 0; cut <= bytes.length; cut++) {
      expect(await read([bytes.slice(0, cut), bytes.slice(cut)])).toEqual(EXPECTED);
    }
  });

  test(`h9: the same events byte by byte, ${name}`, async () => {
    expect(await read(Array.from(bytes, (byte) => Uint8Array.of(byte)))).toEqual(EXPECTED);
  });
}

test("several events in one chunk, and several lines of data in one event", async () => {
  const text = "event: a\nid: 1\ndata: x\ndata: y\n\nevent: b\nid: 2\ndata: z\n\n";
  expect(await read([new TextEncoder().encode(text)])).toEqual([
    { id: 1, name: "a", data: "x\ny" },
    { id: 2, name: "b", data: "z" },
  ]);
});

test("fields that nobody knows, and ids that are no numbers, do no harm", async () => {
  const text = "colour: red\nid: abc\nevent: a\ndata: x\n\nnonsense\n\ndata: y\n\n";
  expect(await read([new TextEncoder().encode(text)])).toEqual([
    { id: null, name: "a", data: "x" },
    { id: null, name: "message", data: "y" },
  ]);
});

test("whoever stops reading closes the connection", async () => {
  let isCancelled = false;
  const body = new ReadableStream<Uint8Array>({
    start: (controller) => controller.enqueue(new TextEncoder().encode("data: x\n\n")),
    cancel: () => {
      isCancelled = true;
    },
  });
  for await (const _ of readEvents(body)) break;
  expect(isCancelled).toBe(true);
});
