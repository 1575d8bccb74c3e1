import { expect, test } from "vitest";
import { commandOf, isSend } from "../src/lib/keyboard";

const key = (init: KeyboardEventInit & { keyCode?: number }) => new KeyboardEvent("keydown", { key: "Enter", ...init });

test("Enter sends, Shift+Enter does not", () => {
  expect(isSend(key({}))).toBe(true);
  expect(isSend(key({ shiftKey: true }))).toBe(false);
  expect(isSend(key({ key: "a" }))).toBe(false);
});

test("Enter inside an input-method composition does not send, in Safari's order of events either", () => {
  expect(isSend(key({ isComposing: true }))).toBe(false);
  expect(isSend(key({ keyCode: 229 }))).toBe(false);
  expect(commandOf(key({ key: "Escape", isComposing: true }))).toBeNull();
});

test("plain shortcuts do not fire in fields, those with a modifier do", () => {
  const field = document.createElement("textarea");
  document.body.append(field);
  const commands: (string | null)[] = [];
  field.addEventListener("keydown", (event) => commands.push(commandOf(event)));
  for (const init of [
    { key: "?" },
    { key: "/" },
    { key: "k", ctrlKey: true },
    { key: "ñ", code: "KeyN", altKey: true },
  ]) {
    field.dispatchEvent(new KeyboardEvent("keydown", init));
  }
  expect(commands).toEqual([null, null, "search", "new"]);
  expect(commandOf(new KeyboardEvent("keydown", { key: "?" }))).toBe("help");
});
