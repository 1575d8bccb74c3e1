// @vitest-environment node
import { expect, test } from "vitest";
import { shownPath } from "../src/state/conversation";
import { DEFAULT_SETTINGS } from "../src/state/settings";
import { ImportError, parseExport } from "../src/state/transfer";

const message = { id: "m1", parent: "", role: "user", content: "Hi", created: 1 };

function fileWith(changed: Record<string, unknown>): string {
  const conversation = {
    id: "c1",
    title: "T",
    created: 1,
    updated: 2,
    settings: {},
    messages: { m1: message },
    selected: {},
    comparing: {},
  };
  return JSON.stringify({
    format: "chatserve-conversations",
    version: 1,
    conversations: [{ conversation: { ...conversation, ...changed }, details: [] }],
  });
}

const read = (text: string) => parseExport(text, new Set()).conversations[0]?.conversation;

test("a whole file is read, with defaults for what is missing", () => {
  expect(read(fileWith({}))).toMatchObject({
    id: "c1",
    title: "T",
    settings: DEFAULT_SETTINGS,
    messages: { m1: message },
  });
});

test("a taken id is replaced", () => {
  expect(parseExport(fileWith({}), new Set(["c1"])).conversations[0]?.conversation.id).not.toBe("c1");
});

test.each([
  "",
  "null",
  "[]",
  "{}",
  '{"format": "chatserve-conversations", "version": 2, "conversations": []}',
  '{"format": "chatserve-conversations", "version": 1}',
  '{"format": "chatserve-conversations", "version": 1, "conversations": [3]}',
  fileWith({ messages: null }),
  fileWith({ messages: { m1: { ...message, role: "system" } } }),
  fileWith({ messages: { m1: { ...message, content: 5 } } }),
  fileWith({ messages: { m1: { ...message, parent: "missing" } } }),
])("no export: %s", (text) => {
  expect(() => parseExport(text, new Set())).toThrow(ImportError);
});

test("fields of a wrong kind are left out, not taken over", () => {
  const conversation = read(
    fileWith({
      title: { a: 1 },
      settings: {
        n: "many",
        system: 4,
        sampling: { temperature: "hot", top_p: 0.5, stop: "x" },
        decoderParams: [],
        hasTokens: 1,
      },
      selected: { "": 3 },
      messages: { m1: { ...message, error: "text", usage: 5, group: {}, stream: { id: "x", lastEventId: 1 } } },
    }),
  );
  expect(conversation?.title).toBe("Hi");
  expect(conversation?.settings).toEqual({ ...DEFAULT_SETTINGS, sampling: { top_p: 0.5 } });
  expect(conversation?.selected).toEqual({});
  expect(conversation?.messages.m1).toEqual(message);
  expect(conversation && shownPath(conversation)).toHaveLength(1);
});
