// @vitest-environment node
import { expect, test } from "vitest";
import {
  type Conversation,
  childrenOf,
  compared,
  emptyConversation,
  type Message,
  pathTo,
  ROOT,
  shownPath,
  siblingAt,
  titleFrom,
  withComparing,
  withMessages,
  withoutBranch,
  withReplaced,
  withSelected,
} from "../src/state/conversation";
import { branchBody, conversationBody } from "../src/state/requests";
import { DEFAULT_SETTINGS } from "../src/state/settings";

function message(id: string, parent: string, role: Message["role"], more: Partial<Message> = {}): Message {
  return { id, parent, role, content: id, created: Number(id.replace(/\D/g, "")), ...more };
}

/** u1 - a2 - u3 - a4, with a5 beside a4 and u6 - a7 beside u1. */
function branched(): Conversation {
  let conversation = emptyConversation(DEFAULT_SETTINGS, 0);
  for (const added of [
    message("u1", ROOT, "user"),
    message("a2", "u1", "assistant"),
    message("u3", "a2", "user"),
    message("a4", "u3", "assistant"),
    message("a5", "u3", "assistant"),
    message("u6", ROOT, "user"),
    message("a7", "u6", "assistant"),
  ]) {
    conversation = withMessages(conversation, [added]);
  }
  return conversation;
}

const ids = (messages: readonly Message[]) => messages.map(({ id }) => id);

test("what was added last is shown", () => {
  expect(ids(shownPath(branched()))).toEqual(["u6", "a7"]);
});

test("selecting a version shows it with what was selected below it", () => {
  const back = withSelected(branched(), "u1");
  expect(ids(shownPath(back))).toEqual(["u1", "a2", "u3", "a5"]);
  const other = withSelected(back, "a4");
  expect(ids(shownPath(other))).toEqual(["u1", "a2", "u3", "a4"]);
  expect(ids(shownPath(withSelected(withSelected(other, "u6"), "u1")))).toEqual(["u1", "a2", "u3", "a4"]);
});

test("siblings stand in the order in which they were made", () => {
  const conversation = branched();
  expect(ids(childrenOf(conversation, "u3"))).toEqual(["a4", "a5"]);
  const a4 = conversation.messages.a4 as Message;
  expect(siblingAt(conversation, a4, 1)?.id).toBe("a5");
  expect(siblingAt(conversation, a4, -1)).toBeUndefined();
});

test("a conversation is never changed in place", () => {
  const before = branched();
  const copy = structuredClone(before);
  withSelected(before, "u1");
  withReplaced(before, [message("a7", "u6", "assistant", { content: "other" })]);
  withoutBranch(before, "u1");
  withComparing(before, "u3", "g");
  expect(before).toEqual(copy);
});

test("the path to a message does not depend on what is shown", () => {
  expect(ids(pathTo(branched(), "a4"))).toEqual(["u1", "a2", "u3", "a4"]);
});

test("removing a branch removes all below it, and another version is shown", () => {
  const { rest, removed } = withoutBranch(branched(), "u6");
  expect(removed.sort()).toEqual(["a7", "u6"]);
  expect(ids(shownPath(rest))).toEqual(["u1", "a2", "u3", "a5"]);
});

test("candidates are compared until one is chosen; the others stay as versions", () => {
  const answers = [0, 1, 2].map((choice) =>
    message(`a${8 + choice}`, "a7", "assistant", { group: "g", choice, created: 8 }),
  );
  let conversation = withComparing(withMessages(branched(), answers), "a7", "g");
  expect(ids(compared(conversation, "a7"))).toEqual(["a8", "a9", "a10"]);
  expect(shownPath(conversation).at(-1)?.id).toBe("a8");
  conversation = withComparing(withSelected(conversation, "a10"), "a7", null);
  expect(compared(conversation, "a7")).toEqual([]);
  expect(shownPath(conversation).at(-1)?.id).toBe("a10");
  expect(childrenOf(conversation, "a7")).toHaveLength(3);
});

test("damaged data (a cycle) does not hang", () => {
  const conversation = { ...branched(), messages: { x: message("x1", "y1", "user"), y: message("y1", "x1", "user") } };
  expect(shownPath(conversation)).toEqual([]);
  expect(pathTo({ ...conversation, messages: { x1: message("x1", "x1", "user") } }, "x1")).toHaveLength(1);
});

test("a request holds the system prompt and the shown branch only", () => {
  const conversation = { ...branched(), settings: { ...DEFAULT_SETTINGS, system: "Be brief.", n: 2, decoder: "beam" } };
  const body = conversationBody(conversation, "u3");
  expect(body.messages).toEqual([
    { role: "system", content: "Be brief." },
    { role: "user", content: "u1" },
    { role: "assistant", content: "a2" },
    { role: "user", content: "u3" },
  ]);
  expect(body).toMatchObject({ n: 2, decoder: "beam", logprobs: true, return_trace: true });
  const branch = branchBody(conversation, "u3", "It is");
  expect(branch.messages.at(-1)).toEqual({ role: "assistant", content: "It is" });
  expect(branch).toMatchObject({ continue_final_message: true, add_generation_prompt: false });
  expect(branch).not.toHaveProperty("n");
});

test("a title is the first line, cut", () => {
  expect(titleFrom("  Hello\nworld")).toBe("Hello");
  expect(titleFrom("x".repeat(80))).toHaveLength(60);
  expect(titleFrom(" ")).toBe("New chat");
});
